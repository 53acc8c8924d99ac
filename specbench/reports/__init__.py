"""One model of a report, and those who render it: Markdown, HTML, LaTeX."""

from specbench.reports.model import Block, Picture, Report, Section, Table

__all__ = ["Block", "Picture", "Report", "Section", "Table"]
