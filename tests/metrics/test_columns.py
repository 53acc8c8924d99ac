"""Columns as attributes: names at run time, rows as instances of their dataclass, and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pytest

from specbench.metrics.columns import columns_of, frame_of, typed, typed_row


@dataclass(frozen=True)
class Line:
    name: str
    count: int
    share: float | None
    places: list[int]
    note: str | None = None


LINE = Line("a", 3, None, [1, 2], "x")


def test_a_column_is_its_name() -> None:
    columns = columns_of(Line)
    assert [columns.name, columns.share, columns.note] == ["name", "share", "note"]
    with pytest.raises(AttributeError, match="shares"):
        columns.shares  # noqa: B018 # ty: ignore[unresolved-attribute]


def test_rows_are_instances_in_the_types_of_python() -> None:
    """Whatever pandas made of them: NaN of a missing number or word, an array of a list, a scalar of numpy's."""
    lines = [LINE, Line("b", 4, 0.5, [])]
    frame = frame_of(lines, Line).assign(more=1)
    frame["places"] = frame["places"].map(np.array)
    assert typed(frame, Line) == lines
    assert [type(value) for value in asdict(typed(frame, Line)[0]).values()] == [str, int, type(None), list, str]
    assert typed_row(frame.loc[1], Line) == lines[1]


def test_a_column_that_is_missing_has_its_default_or_is_an_error() -> None:
    frame = frame_of([LINE], Line)
    assert typed(frame.drop(columns="note"), Line) == [Line("a", 3, None, [1, 2])]
    with pytest.raises(TypeError, match="count"):
        typed(frame.drop(columns="count"), Line)


def test_a_frame_without_rows_has_its_columns() -> None:
    frame = frame_of([], Line)
    assert list(frame) == ["name", "count", "share", "places", "note"]
    assert typed(frame, Line) == []
