"""Figures as LaTeX: PDF files as wide as the document's columns, with their captions."""

from __future__ import annotations

from specbench.reports.latex.escape import escape
from specbench.reports.latex.numbers import Numbers
from specbench.reports.latex.text import words
from specbench.reports.model import Picture
from specbench.reports.plots.style import Page


def pages(column: float, wide: float, font: str) -> dict[str, Page]:
    """What figures are drawn for, by the end of their files' names: one column, and the width of the text.

    Args:
        column, wide: inches.
        font: a family that matplotlib finds.
    """
    mathtext = {"DejaVu Sans": "dejavusans", "DejaVu Serif": "dejavuserif"}.get(font, "stix")
    return {
        "column": Page(column, font, mathtext, filled=True),
        "wide": Page(wide, font, mathtext, filled=True),
    }


def floated(picture: Picture, experiment: str, numbers: Numbers, remark: str = "") -> str:
    """The figure with its caption and the label ``fig:EXPERIMENT-NAME``; across both columns if it has several panels.

    Args:
        remark: LaTeX in front of the caption: what a reader must know of the whole run.
    """
    env, page = ("figure", "column") if len(picture.figure.axes) == 1 else ("figure*", "wide")
    question = rf"\emph{{{escape(picture.question)}}}"
    reading = words(picture.reading, f"{experiment}/{picture.name}/caption", numbers)
    return "\n".join(
        [
            rf"\begin{{{env}}}[t]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{\specbenchpath/{experiment}/{picture.name}-{page}.pdf}}",
            rf"\caption{{{remark}{question} {reading}}}",
            rf"\label{{fig:{experiment}-{picture.name}}}",
            rf"\end{{{env}}}",
        ]
    )
