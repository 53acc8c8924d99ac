"""The words of a report, which are Markdown, as LaTeX."""

from __future__ import annotations

from markdown_it.tree import SyntaxTreeNode

from specbench.reports.latex.escape import code, escape
from specbench.reports.latex.numbers import Numbers
from specbench.reports.markdown import READER, inlines


def words(markdown: str, place: str, numbers: Numbers) -> str:
    """Text within a paragraph; every number is a macro, but for those in code and links."""
    parts, in_link = [], False
    for token in inlines(markdown):
        if token.type == "code_inline":
            parts.append(code(token.content))
        elif token.type.startswith("strong"):
            parts.append(r"\textbf{" if token.nesting == 1 else "}")
        elif token.type.startswith("link"):
            in_link = token.nesting == 1  # paper has no links of a report's folder
        else:
            text = token.content or " "
            parts.append(escape(text) if in_link else numbers.in_text(text, place))
    return "".join(parts)


def block(markdown: str, place: str, numbers: Numbers) -> str:
    """A paragraph, a list, or lines as they stand."""
    parts = []
    for node in SyntaxTreeNode(READER.parse(str(markdown))):
        if node.type == "bullet_list":
            texts = (item.children[0].children[0].content for item in node.children if item.children)
            items = [rf"  \item {words(text, place, numbers)}" for text in texts]
            parts.append("\n".join([r"\begin{itemize}", *items, r"\end{itemize}"]))
        elif node.type == "fence":
            lines = [code(line) for line in node.content.removesuffix("\n").split("\n")]
            listed = (f"{line}\\\\" for line in lines)
            parts.append("\n".join([r"\begin{flushleft}\footnotesize", *listed, r"\end{flushleft}"]))
        else:
            parts.append(words(node.children[0].content, place, numbers))
    return "\n\n".join(parts)
