"""Columns of tables as attributes of the dataclass of their rows, so that a type checker knows every column.

    Case = columns_of(LatencyRow)
    frame[Case.median_us].max()  # a whole column: Case.median_us is the name "median_us"
    [row.median_us for row in typed(frame, LatencyRow)]  # row by row

A column that is misspelt, or that was renamed in the dataclass, fails in ``ty check``. A table with further columns has
a dataclass of its own, derived from this one.
"""

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import pandas as pd
import pyarrow as pa

from specbench.metrics.results import schema_of

Row = TypeVar("Row")
Column = Any  # an attribute of columns_of: a name, which a type checker takes for a value of the column


def columns_of(row: type[Row]) -> type[Row]:
    """The columns of a dataclass: each attribute is its own name. A type checker sees the dataclass."""
    return cast("type[Row]", type(row.__name__, (), {name: name for name in schema_of(row).names}))


def typed(frame: pd.DataFrame, row: type[Row]) -> list[Row]:
    """The rows of a frame as instances of a dataclass, in the types of its fields; what is missing is None.

    Columns that the dataclass lacks are dropped. A field whose column the frame lacks takes its default.

    Raises:
        pa.ArrowTypeError, pa.ArrowInvalid: a value that does not fit its field.
    """
    schema = pa.schema([field for field in schema_of(row) if field.name in frame])
    return [row(**line) for line in pa.Table.from_pandas(frame, schema, preserve_index=False).to_pylist()]


def typed_row(values: pd.Series, row: type[Row]) -> Row:
    """A row of a frame as an instance of a dataclass, as :func:`typed` makes it."""
    (line,) = typed(pd.DataFrame([values]), row)
    return line


def frame_of(rows: Iterable[Row], row: type[Row]) -> pd.DataFrame:
    """Instances of a dataclass as a frame, which has its columns even without rows."""
    return pd.DataFrame(list(rows), columns=schema_of(row).names)
