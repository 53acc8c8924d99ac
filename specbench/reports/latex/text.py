"""Blocks of a report that hold words, as LaTeX."""

from __future__ import annotations

from specbench.reports.latex.escape import code, escape
from specbench.reports.latex.numbers import Numbers
from specbench.reports.model import Bullets, Code, Lines, Link, Paragraph, Strong, Text
from specbench.reports.text import inlines, lines_of


def words(text: Text, place: str, numbers: Numbers) -> str:
    """Text within a paragraph; every number is a macro, but for those in code and links."""
    return "".join(_inline(part, place, numbers) for part in inlines(text))


def _inline(part: str | Strong | Code | Link, place: str, numbers: Numbers) -> str:
    match part:
        case Strong():
            return rf"\textbf{{{numbers.in_text(part.text, place)}}}"
        case Code():
            return code(part.text)
        case Link():
            return escape(part.text)  # paper has no links of a report's folder
        case _:
            return numbers.in_text(part, place)


def block(content: Paragraph | Bullets | Lines, place: str, numbers: Numbers) -> str:
    """A block without a float."""
    match content:
        case Paragraph():
            return words(content.text, place, numbers)
        case Bullets():
            items = [rf"  \item {words(item, place, numbers)}" for item in content.items]
            return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}"]) if items else ""
        case Lines():
            lines = [code(line) for line in lines_of(content.lines)]
            return "\n".join(
                [r"\begin{flushleft}\footnotesize", *(f"{line}\\\\" for line in lines), r"\end{flushleft}"]
            )
