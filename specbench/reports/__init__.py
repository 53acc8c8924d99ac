"""One model of a report, and those who render it: Markdown, HTML, LaTeX, Weights & Biases."""

from specbench.reports.model import (
    Block,
    Bullets,
    Code,
    Inline,
    Lines,
    Link,
    Paragraph,
    Picture,
    Report,
    Section,
    Strong,
    Table,
    Text,
)

__all__ = [
    "Block",
    "Bullets",
    "Code",
    "Inline",
    "Lines",
    "Link",
    "Paragraph",
    "Picture",
    "Report",
    "Section",
    "Strong",
    "Table",
    "Text",
]
