"""What a document needs of a paper's folder: preamble, words, BibTeX of rules; a small document that includes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from specbench.core.errors import ArgumentError
from specbench.reports.latex.escape import escape
from specbench.reports.latex.numbers import Numbers, block, words
from specbench.reports.model import Picture, Report, Table
from specbench.reports.plots.style import Page
from specbench.rules import RULES

MARK = "% Written by python -m specbench paper, which writes it again.\n"
PREAMBLE = rf"""{MARK}% In the preamble of your document:
%   \newcommand\specbenchpath{{PATH OF THIS FOLDER}}
%   \input{{\specbenchpath/specbench}}
\usepackage{{booktabs}}
\usepackage{{graphicx}}
\providecommand\specbenchpath{{.}}
% A table at its own size, or as wide as the text if it is wider than that.
\newsavebox\specbenchbox
\newcommand\specbenchfit[1]{{%
  \sbox\specbenchbox{{#1}}%
  \ifdim\wd\specbenchbox>\linewidth \resizebox{{\linewidth}}{{!}}{{\usebox\specbenchbox}}%
  \else \usebox\specbenchbox \fi}}
\input{{\specbenchpath/numbers}}
"""
MATHPTMX = r"\usepackage{mathptmx} % Times, which goes with the letters of the figures"
TIMES = ("STIXGeneral", "Times New Roman", "Nimbus Roman", "TeX Gyre Termes", "Liberation Serif")
SPECBENCH_ENTRY = """\
@misc{{specbench,
  author = {{{{the specbench authors}}}},
  title  = {{specbench: a laboratory for speculative decoding, version {version}}},
  year   = {{2026}},
}}
"""
_ENTRY = re.compile(r"@\w+\{(?P<key>[^,\s]+),\n.*?\n\}", re.DOTALL)


def remark(report: Report, numbers: Numbers) -> str:
    """What stands in front of every caption of a report that is of a part of its sweep."""
    return rf"\textbf{{{numbers.in_text(report.warning, f'{report.name}/remark')}}} " if report.warning else ""


def answer(report: Report, numbers: Numbers, remark: str) -> str:
    """The question, and the words of the first section."""
    question = remark + words(report.question, f"{report.name}/question", numbers)
    texts = (
        block(content, f"{report.name}/{section.heading}", numbers)
        for section in report.sections[:1]
        for content in section.blocks
        if isinstance(content, str)
    )
    return "\n\n".join([question, *texts]) + "\n"


def whole(report: Report, numbers: Numbers) -> str:
    """All sections, with what they show: for an appendix."""
    parts = [rf"\input{{\specbenchpath/{report.name}/answer}}"]
    for i, section in enumerate(report.sections):
        parts.append(rf"\subsection*{{{escape(section.heading)}}}")
        for content in section.blocks:
            if isinstance(content, Table | Picture):
                parts.append(_input(report, content))
            elif i:
                parts.append(block(content, f"{report.name}/{section.heading}", numbers))
    return "\n\n".join(parts) + "\n"


def main(reports: Sequence[Report], pages: Mapping[str, Page]) -> str:
    """main.tex: an example, each report with its first table and its first figure."""
    column, wide = pages["column"], pages["wide"]
    fonts = f"{MATHPTMX}\n" if column.font in TIMES else ""
    return rf"""% An example of a document that includes this folder. Change it as you like: it is kept.
\documentclass[twocolumn]{{article}}
\usepackage[textwidth={wide.width}in,textheight=9.4in,columnsep={wide.width - 2 * column.width:.3f}in]{{geometry}}
{fonts}\newcommand\specbenchpath{{.}}
\input{{\specbenchpath/specbench}}
\begin{{document}}

Numbers are macros of \texttt{{numbers.tex}}; they were measured with specbench~\cite{{specbench}}.
{_cited(reports)}
{"".join(map(_body, reports))}\bibliographystyle{{plain}}
\bibliography{{\specbenchpath/refs}}
\end{{document}}
"""


def bibtex_entries() -> dict[str, str]:
    """The entries of references.bib and of registered rules, by key."""
    text = (Path(__file__).parent / "references.bib").read_text(encoding="utf-8")
    texts = [text, *(info.bibtex for info in RULES.values())]
    return {entry["key"]: f"{entry.group()}\n" for text in texts for entry in _ENTRY.finditer(text)}


def bibliography(rules: Iterable[str], version: str) -> str:
    """refs.bib: specbench, and the papers of rules by name. A name that is not registered adds nothing."""
    entries = bibtex_entries()
    cited = dict.fromkeys(key for rule in rules for key in citation_keys(rule, with_trees=True))
    return "\n".join([SPECBENCH_ENTRY.format(version=version), *(entries[key] for key in cited)])


def citation_keys(rule: str, with_trees: bool = False) -> list[str]:
    """The BibTeX keys of a rule's papers; none for a name that is not registered.

    Raises:
        ArgumentError: the rule names a paper without an entry.
    """
    if rule not in RULES:
        return []
    info, entries = RULES[rule], bibtex_entries()
    keys = [*info.papers, *(info.tree_papers if with_trees else ())]
    for key in keys:
        if key not in entries:
            raise ArgumentError(
                f"rule={rule}: papers has {key!r}, of which there is no BibTeX entry. Add it to the rule's `bibtex`."
            )
    return keys


def _body(report: Report) -> str:
    tables, pictures = report.tables, report.pictures
    lines = [
        rf"\section*{{{escape(report.title)}}}",
        *(_input(report, shown) for shown in (*tables[:1], *pictures[:1])),
        *(f"% {_input(report, shown)}" for shown in (*tables[1:], *pictures[1:])),
        rf"\input{{\specbenchpath/{report.name}/answer}}",
        *(f"Table~\\ref{{tab:{report.name}-{table.name}}} has the numbers." for table in tables[:1]),
        *(f"Figure~\\ref{{fig:{report.name}-{picture.name}}} shows them." for picture in pictures[:1]),
    ]
    return "\n".join(lines) + "\n\n"


def _input(report: Report, shown: Table | Picture) -> str:
    kind = "table" if isinstance(shown, Table) else "figure"
    return rf"\input{{\specbenchpath/{report.name}/{kind}-{shown.name}}}"


def _cited(reports: Sequence[Report]) -> str:
    rules = dict.fromkeys(rule for report in reports for rule in report.rules)
    cited = [(RULES[rule].title, ",".join(keys)) for rule in rules if (keys := citation_keys(rule))]
    listed = " and ".join(rf"the {escape(title)}~\cite{{{papers}}}" for title, papers in cited)
    return f"Verifiers follow {listed}.\n" if cited else ""
