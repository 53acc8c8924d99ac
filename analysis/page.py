"""Pages: a template of pages/ in Markdown, filled with values, tables and figures, and read into a Report.

The macro ``page`` of a template (specbench/reports/templates.py) is the page, and its parameters are what it is filled
with; the other macros are its sentences.

In a page ``# ...`` is the title, and the words below it the question; ``## ...`` begins a section; an empty one is
left out. ``### NAME: QUESTION`` places a figure, with the paragraphs below it as its reading; ``### NAME`` places a
table, with the first paragraph below it as its caption and the others as its note. ``***`` ends them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from specbench.core.errors import ArgumentError
from specbench.core.sampling_params import NUMBERS
from specbench.metrics.columns import typed
from specbench.metrics.run_row import RunRow
from specbench.metrics.run_settings import as_text, sampling_of
from specbench.reports import Block, Picture, Report, Section, Table, markdown, templates, winner
from specbench.reports.cells import Run
from specbench.rules import rules_followed
from specbench.runs.plan import commands
from specbench.runs.status import SweepStatus

PAGES = Path(__file__).with_name("pages")
Shown = Table | Figure | None  # what a page places; None is left out


def page(
    run_dir: Path | None,
    run_rows: pd.DataFrame | None,
    name: str,
    shown: Mapping[str, Shown],
    rules: Iterable[str] = (),
    warning: str = "",
    data: Mapping[str, pd.DataFrame] | None = None,
    headlines: Mapping[str, str] | None = None,
    **values: Any,
) -> Report:
    """The report of an experiment, by the template of its name.

    The report of a sweep cites the rules that its verifiers follow, and warns of jobs that are missing and of rows that
    are synthetic.

    Args:
        run_dir: the sweep's folder; None for a report that is of no sweep.
        run_rows: all rows of the sweep, of :func:`analysis.folder.read_rows`, or what else the report is of. The
            macro ``page`` has them as its first parameter, ``rows``.
        shown: tables and figures by name.
        rules: further rules that were run, by name.
        warning: Markdown: what else keeps the numbers from being taken at their word.
        data, headlines: of :class:`specbench.reports.Report`.
        values: of the macro ``page`` besides.

    Raises:
        ArgumentError: a table or figure that the page has no place for, or a place without one.
    """
    status, followed, synthetic = None, list[str](), ""
    if run_dir is not None and run_rows is not None:
        status = SweepStatus.of(run_dir)
        followed, synthetic = rules_followed(run_rows[Run.verifier]), templates.words("shared.synthetic", run_rows)
    values = {"rows": run_rows, **values}
    title, question, sections, unplaced = "", "", list[Section](), dict(shown)
    for level, heading, texts in (*templates.parts(f"{name}.page", **values), *_of_sweep(status, name)):
        if level == "h1":
            title, question = heading, " ".join(texts)
        elif level == "h2":
            sections.append(Section(heading, tuple(texts)))
        else:
            place, _, words = heading.partition(": ")
            if level == "h3" and place not in unplaced:
                raise ArgumentError(f"{name}.md: {place!r} is no table or figure of the page. Pass it, or None.")
            blocks = _placed(place, words, unplaced.pop(place), texts) if level == "h3" else texts
            sections[-1] = dataclasses.replace(sections[-1], blocks=(*sections[-1].blocks, *blocks))
    if left := [place for place, value in unplaced.items() if value is not None]:
        raise ArgumentError(f"{name}.md: has no place for {left[0]!r}. Add a line: ### {left[0]}")
    return Report(
        name,
        title,
        question,
        tuple(section for section in sections if section.blocks),
        " ".join(filter(None, [status.partial() if status else "", *map(markdown.literal, (synthetic, warning))])),
        tuple(dict.fromkeys([*rules, *followed])),
        data or {},
        headlines or {},
    )


def _of_sweep(status: SweepStatus | None, name: str) -> Iterator[tuple[str, str, list[Markup]]]:
    """The parts behind a page: what the folder lacks, and how to repeat the run."""
    if status is not None:
        problems = [sentence for _, sentence in status.problems() if not sentence.startswith("warning")]
        lines = markdown.lines(commands(status.plan))
        yield from templates.parts("shared.of_sweep", status, problems, lines, name)


def _placed(name: str, question: str, shown: Shown, texts: list[Markup]) -> list[Block]:
    if isinstance(shown, Figure):
        return [Picture(name, shown, question, " ".join(texts))]
    if shown is None:
        return []
    return [dataclasses.replace(shown, caption="".join(texts[:1]), note=" ".join(texts[1:]))]


def _sampling(results: pd.DataFrame) -> dict[str, str]:
    """The sampling parameters that any row asks for beside the four numbers, each with its values."""
    samplings = [sampling_of(run) for run in typed(results, RunRow)]
    names = sorted({name for sampling in samplings for name in sampling} - set(NUMBERS))
    return {
        name: ", ".join(dict.fromkeys(as_text(sampling.get(name)) or "off" for sampling in samplings)) for name in names
    }


FUNCTIONS: dict[str, Any] = {"sampling": _sampling, "machine": winner.machine}
templates.ENVIRONMENT.globals.update(FUNCTIONS)
templates.LOADER.searchpath.append(str(PAGES))
