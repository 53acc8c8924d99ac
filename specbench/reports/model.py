"""What a report says, apart from how it is written: sections of Markdown, tables and figures.

Titles, headings, questions of figures and cells of tables are literal text, which a renderer escapes, so that a prompt
or a name can hold anything. All other words are Markdown: paragraphs, lists, lines as they stand; within a line
emphasis, code and links (specbench/reports/markdown.py).
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from specbench.core.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one kind.

    Attributes:
        name: of its files, such as ``table`` for table.csv; unique in a report, letters, digits and underscores.
        shown: as people read it: text in every cell, "-" where there is nothing.
        raw: unrounded, for those who compute with it; the rows of ``shown`` in the same order, whatever the columns.
            Rows that are not shown may follow them.
        caption: what the rows are, in what setting, with how many units and which intervals; a paper needs it.
        note: how to read the columns.
        left: columns that hold words, which stand at the left; all others hold numbers.
    """

    name: str
    shown: pd.DataFrame
    raw: pd.DataFrame | None = None
    caption: str = ""
    note: str = ""
    left: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure.

    Attributes:
        name: of its files; unique in a report, letters, digits and underscores.
        question: the heading: what the figure answers.
        reading: how to read it, with setting, number of units and intervals; the caption in a paper.
    """

    name: str
    figure: Figure
    question: str
    reading: str

    def __post_init__(self) -> None:
        _check_name(self.name)


Block = str | Table | Picture  # Markdown of a paragraph, a list or lines as they stand


@dataclass(frozen=True)
class Section:
    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Report:
    """A report of one experiment.

    Attributes:
        name: of the experiment, such as ``gamma_sweep``.
        question: what the experiment was run for, a paragraph.
        sections: the answer first, then what it rests on, then where it ran and how to repeat it.
        warning: what a reader must know before all else, such as jobs that are missing; empty if nothing.
        rules: names of the rules that were run, whose papers a reader may want to cite.
        data: tables that are written as NAME.csv for those who compute with them, and shown nowhere.
        alone: whether the page has no files of its tables and figures beside it, and links to none.
        headlines: what an abstract would quote, as text, by names of letters alone, such as ``Speedup``.

    Raises:
        ArgumentError: two tables or two figures of one name, or a name that is none for a file.
    """

    name: str
    title: str
    question: str
    sections: tuple[Section, ...]
    warning: str = ""
    rules: tuple[str, ...] = ()
    data: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    headlines: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    def __post_init__(self) -> None:
        files = [table.name for table in self.tables if table.raw is not None] + list(self.data)
        for names in ([table.name for table in self.tables], [picture.name for picture in self.pictures], files):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ArgumentError(f"sections: {twice[0]!r} is the name of two. Give each a name of its own.")
        for name in self.data:
            _check_name(name)
        for name in self.headlines:
            if not re.fullmatch(r"[A-Za-z]+", name):
                raise ArgumentError(f"headlines: {name!r} is not of letters alone. Rename it.")

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Table))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Picture))


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w+", name):
        remedy = "Use letters, digits and underscores (specbench.reports.cells.file_name)."
        raise ArgumentError(f"name={name!r}: cannot be a file's. {remedy}")
