"""Pages: a template of pages/ in Markdown, filled with values, tables and figures, and read into a Report.

A template is a Jinja file of macros. ``page`` is the page, and its parameters are what it is filled with; the others
are its sentences. Whatever a value holds is text: it is escaped (specbench/reports/markdown.py), unless it is Markup.

In a page ``# ...`` is the title, and the words below it the question; ``## ...`` begins a section; an empty one is
left out. ``### NAME: QUESTION`` places a figure, with the paragraphs below it as its reading; ``### NAME`` places a
table, with the first paragraph below it as its caption and the others as its note. ``***`` ends them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from specbench.core.errors import ArgumentError
from specbench.core.sampling_params import NUMBERS
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.run_settings import as_text, sampling_of
from specbench.reports import Block, Picture, Report, Section, Table, cells, markdown, winner

from .folder import report_of

Shown = Table | Figure | None  # what a page places; None is left out


def page(
    run_dir: Path | None,
    name: str,
    shown: Mapping[str, Shown],
    rules: Iterable[str] = (),
    warning: str = "",
    data: Mapping[str, pd.DataFrame] | None = None,
    headlines: Mapping[str, str] | None = None,
    **values: Any,
) -> Report:
    """The report of an experiment, by the template of its name.

    Args:
        run_dir: the sweep's folder; None for a report that is of no sweep.
        name: of the experiment.
        shown: tables and figures by name.
        rules, warning, data, headlines: of :func:`analysis.folder.report_of`; the warning is Markdown.
        values: of the template's macro ``page``.

    Raises:
        ArgumentError: a table or figure that the page has no place for, or a place without one.
    """
    title, question, sections, unplaced = "", "", list[Section](), dict(shown)
    for level, heading, texts in _parts(_macro(f"{name}.page")(**values)):
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
    sections = [section for section in sections if section.blocks]
    return report_of(run_dir, name, title, question, sections, rules, data, headlines, markdown.literal(warning))


def words(macro: str, *values: Any) -> Markup:
    """What a macro says, as one paragraph of Markdown.

    Args:
        macro: ``FILE.MACRO`` of pages/, such as ``gamma_sweep.theory``.
    """
    return Markup(" ".join(text for _, _, blocks in _parts(_macro(macro)(*values)) for text in blocks))


def section_of(macro: str, *values: Any) -> Section:
    """The first section of what a macro says."""
    return next(Section(heading, tuple(blocks)) for level, heading, blocks in _parts(_macro(macro)(*values)) if level)


def _placed(name: str, question: str, shown: Shown, texts: list[Markup]) -> list[Block]:
    if isinstance(shown, Figure):
        return [Picture(name, shown, question, " ".join(texts))]
    if shown is None:
        return []
    return [dataclasses.replace(shown, caption="".join(texts[:1]), note=" ".join(texts[1:]))]


def _macro(name: str) -> Any:
    file, _, macro = name.partition(".")
    return getattr(_templates().get_template(f"{file}.md").module, macro)


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("pages")),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, jinja2.Undefined) else markdown.escape(value),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        f=lambda value, form=".2f": cells.number(value, form), plain=cells.plain, strong=markdown.strong
    )
    environment.filters["log10"] = math.log10
    environment.tests["missing"] = lambda value: bool(pd.isna(value))
    functions: dict[str, Any] = {
        **{"sampling": _sampling, "interval": cells.interval, "values": cells.values, "few_units": cells.few_units},
        "machine": winner.machine,
        "level": f"{CONFIDENCE:.0%}",
    }
    environment.globals.update(functions)
    return environment


def _parts(text: str) -> Iterator[tuple[str, str, list[Markup]]]:
    """Each heading with the blocks below it: its level, such as ``h2``, and its words; of a rule all are empty."""
    level, heading, blocks = "", "", list[Markup]()
    for tag, texts in markdown.blocks(text):
        if tag in ("h1", "h2", "h3"):
            if level or blocks:
                yield level, heading, blocks
            level, heading, blocks = tag, markdown.literal(texts[0]), []
        elif tag == "hr" or (level == "h3" and tag != "p"):
            yield level, heading, blocks
            level, heading, blocks = "more", "", []
        if tag == "p":
            blocks.append(markdown.line(texts[0]))
        elif tag == "ul":
            blocks.append(markdown.bullets(map(Markup, texts)))
        elif tag == "code":
            blocks.append(markdown.lines(texts))
    yield level, heading, blocks


def _sampling(results: pd.DataFrame) -> dict[str, str]:
    """The sampling parameters that any row asks for beside the four numbers, each with its values."""
    samplings = [sampling_of(row) for _, row in results.iterrows()]
    names = sorted({name for row in samplings for name in row} - set(NUMBERS))
    return {name: ", ".join(dict.fromkeys(as_text(row.get(name)) or "off" for row in samplings)) for name in names}
