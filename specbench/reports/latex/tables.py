"""Tables as LaTeX, in the style of the package booktabs."""

import re

import pandas as pd

from specbench.reports.latex.escape import escape
from specbench.reports.latex.numbers import Numbers
from specbench.reports.model import Table

COLUMN = 56  # characters of a row that a column of 3.3 inches has room for, at \footnotesize
ROWS = 45  # at \footnotesize, with a caption, that fit on a page of the class article


def tabular(table: Table, place: str, numbers: Numbers) -> str:
    """The rows; every number of a cell is a macro, named by what tells its row apart and its column."""
    (whole,) = tabulars(table, place, numbers, max(len(table.shown), 1))
    return whole


def tabulars(table: Table, place: str, numbers: Numbers, rows: int = ROWS) -> list[str]:
    """The same in parts of ``rows`` rows each, but for the last, which may be shorter."""
    shown = table.shown.astype(str).rename(columns=str)
    form = "".join("l" if column in table.left else "r" for column in shown)
    form = f"@{{}}{form}@{{}}"
    heads = [_head(column, shown[column], column in table.left) for column in shown]
    lines = []
    for row, name in zip(shown.itertuples(index=False), row_names(table), strict=True):
        cells = zip(shown, row, strict=True)
        first, *others = [
            _cell(cell, f"{place}/{name}/{column}", numbers, column in table.left) for column, cell in cells
        ]
        # What \\ before it would read as its own.
        lines.append([f"{{}}{first}" if first.startswith(("[", "*")) else first, *others])
    whole = pd.DataFrame(lines, columns=heads)
    parts = [whole[start : start + rows] for start in range(0, max(len(lines), 1), rows)]
    return [part.to_latex(index=False, escape=False, column_format=form).strip() for part in parts]


def is_wide(table: Table) -> bool:
    """Returns whether the table needs the width of both columns of a page."""
    shown = table.shown.astype(str)
    return sum(2 + max(map(len, shown[column]), default=0) for column in shown) > COLUMN


def row_names(table: Table) -> list[str]:
    """What tells rows apart, such as ``gamma=4,verifier=masked``: as few of the first columns as it takes, and the
    columns of words right behind those. Rows that are alike in all columns are counted."""
    shown = table.shown.astype(str)
    columns = list(shown)
    count = next((n for n in range(1, len(columns)) if not shown[columns[:n]].duplicated().any()), len(columns))
    while count < len(columns) and columns[count] in table.left:
        count += 1
    cells_of_rows = (zip(columns, row, strict=False) for row in shown[columns[:count]].itertuples(index=False))
    names = pd.Series([",".join(f"{column}={cell}" for column, cell in pairs) for pairs in cells_of_rows], dtype=object)
    copies = names.groupby(names).cumcount()
    return [f"{name},{copy + 1}" if copy else name for name, copy in zip(names, copies, strict=True)]


def _cell(cell: str, name: str, numbers: Numbers, is_word: bool) -> str:
    if not is_word and re.search(r"\d", cell):
        return numbers.macro(name, cell)
    return escape(cell)


def _head(column: str, cells: pd.Series, is_left: bool) -> str:
    """A heading, in two lines if it is wider than what stands below it."""
    if " " not in column or len(column) <= cells.str.len().max():
        return escape(column)
    middle = min((at for at, letter in enumerate(column) if letter == " "), key=lambda at: abs(at - len(column) / 2))
    return rf"\shortstack[{'l' if is_left else 'r'}]{{{escape(column[:middle])}\\{escape(column[middle + 1 :])}}}"
