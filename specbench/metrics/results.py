"""The typed rows that a run leaves behind, written atomically as parquet.

``results.parquet`` has one row a run; ``steps.parquet`` one line a verification and request; ``empirical.parquet`` one
line a prefix and token of the empirical-against-target check; ``texts.parquet`` one line a decoded text; other
protocols leave tables of their own. Each job writes its own, and the sweep's folder holds the collected
``results.parquet`` of all its jobs: a copy for other programs. Whatever is said here of a sweep with jobs' folders is
read from these.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from specbench.core.errors import ConfigError
from specbench.core.machine.disk import beside, read_json
from specbench.core.machine.files import wrap_library_errors
from specbench.metrics.run_row import RunRow

RESULTS, STEPS, EMPIRICAL, TEXTS = "results.parquet", "steps.parquet", "empirical.parquet", "texts.parquet"
CATEGORIES = "categories.parquet"
BASELINES = "baselines.parquet"  # protocols/against.py
OF_WORKLOAD = {"prompts": "prompts in all"}  # a run's columns that CATEGORIES has too, by their names beside it


@dataclass(frozen=True)
class StepRow:
    """One verification of one request; num_emitted < num_accepted + 1 only where an end of the text cut the block."""

    prompt: str
    step: int
    num_draft_tokens: int
    num_accepted: int
    num_emitted: int
    draft_depth: int  # tokens on the longest path of a tree; num_draft_tokens of a chain
    category: str | None = None  # the workload's; empty if it has none, None in tables older than this column
    conversation: str | None = None  # the prompt of its first turn, by which intervals are resampled
    turn: int | None = None  # from 1


@dataclass(frozen=True)
class EmpiricalRow:
    """A token at a prefix of the empirical-against-target check: the target's probability, and how often it came."""

    prefix: str
    token_id: int
    token: str
    prob: float
    count: int
    draws: int


@dataclass(frozen=True)
class TextRow:
    prompt: str
    text: str  # of the prompt
    completion: str
    tokens: int
    finished: str  # "stop" or "length"
    stop_reason: str | None = None  # the stop string, or in digits the id of stop_token_ids, that ended it
    category: str | None = None  # these three as in StepRow
    conversation: str | None = None
    turn: int | None = None


@dataclass(frozen=True, kw_only=True)
class CategoryRow:
    """One category of a run; intervals as in results.RunRow.

    Attributes:
        prompts: of the workload; a conversation is one.
        texts: decoded: of a conversation, one a turn.
    """

    category: str
    prompts: int
    texts: int
    tokens: int
    steps: int
    drafted: int
    accepted: int
    drafted_per_step: float | None
    drafted_per_step_low: float | None
    drafted_per_step_high: float | None
    acceptance_rate: float | None
    acceptance_rate_low: float | None
    acceptance_rate_high: float | None
    acceptance_length: float | None
    acceptance_length_low: float | None
    acceptance_length_high: float | None
    tokens_per_second: float | None
    plain_tokens_per_second: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None


@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """One way to decode a run's requests; numbers are None for a way that is not possible, or has failed.

    Attributes:
        name: one of generate.WAYS.
        batch: requests side by side.
        texts: decoded in a round.
        tokens: new ones of all texts.
        seconds: of decoding all texts once, prompts included: of each batch the median over rounds, added up.
        seconds_prepared: of the first batch, once, before the clock counts; what is compiled is compiled there.
        rounds: how often each batch was decoded under the clock.
        times_plain, times_plain_low, times_plain_high: tokens a second over those of plain decoding, which took turns
            with it, and the 95% interval; None for one batch, or if all of them share prompts.
        equal_texts: how many equal plain decoding's; None at a temperature above 0, where texts differ by chance.
        note: why there are no numbers, or what to know of them.
    """

    name: str
    batch: int
    texts: int
    tokens: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    seconds_prepared: float | None = None
    rounds: int | None = None
    times_plain: float | None = None
    times_plain_low: float | None = None
    times_plain_high: float | None = None
    equal_texts: int | None = None
    note: str = ""


_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _arrow_type(annotation: object) -> pa.DataType:
    if typing.get_origin(annotation) is list:
        return pa.list_(_arrow_type(typing.get_args(annotation)[0]))
    if typing.get_origin(annotation) is types.UnionType:
        return _arrow_type(next(a for a in typing.get_args(annotation) if a is not type(None)))
    return _ARROW[annotation]  # ty: ignore[invalid-argument-type]


def schema_of(row: type) -> pa.Schema:
    """The columns of a dataclass whose fields are str, int, float, bool, lists of these, or None beside one of them."""
    return pa.schema([(name, _arrow_type(hint)) for name, hint in typing.get_type_hints(row).items()])


RESULT_SCHEMA = schema_of(RunRow)


def write_atomically(path: Path, table: pa.Table) -> None:
    """Writes a parquet file that is either whole or not there; a file already written is kept until the new one is."""
    with beside(path) as temporary:
        pq.write_table(table, temporary)


def write_rows(path: Path, rows: Iterable[object] | pa.Table, schema: pa.Schema | type) -> None:
    """Writes the table of :func:`table_of`, and raises its errors."""
    write_atomically(path, table_of(rows, schema))


def table_of(rows: Iterable[object] | pa.Table, schema: pa.Schema | type) -> pa.Table:
    """Returns a table of dataclass instances or dicts, under a schema or their dataclass's; a table as it is.

    Raises:
        KeyError: a row without one of the columns.
        pa.ArrowTypeError, pa.ArrowInvalid: a value that does not fit its column, which is named.
    """
    if isinstance(rows, pa.Table):
        return rows
    schema = schema if isinstance(schema, pa.Schema) else schema_of(schema)
    plain = [dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row for row in rows]
    columns = [_column([row[field.name] for row in plain], field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    # pyarrow would cut a float down to fit an integer column.
    if pa.types.is_integer(field.type) and any(isinstance(value, float) for value in values):
        raise pa.ArrowTypeError(f"column {field.name}: a float in a column of whole numbers")
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise type(error)(f"column {field.name}: {error}") from error


def done_jobs(sweep: Path, name: str = RESULTS) -> list[Path]:
    """The folders of a sweep's jobs that are done and left a table of that name, in their order."""
    folders = [file.parent for file in sweep.glob(f"*/{name}") if file.parent.name.isdigit()]
    folders.sort(key=lambda folder: int(folder.name))
    planned = _ids(read_json(sweep / "plan.json"))
    return [folder for folder in folders if _is_done(read_json(folder / "job.json"), planned, folder.name)]


def _ids(plan: Any) -> dict[str, str] | None:
    """The id of the job of each folder, by a sweep's plan; None if there is none that can be read."""
    try:
        return {str(job["number"]): job["id"] for job in plan["jobs"]}
    except (TypeError, KeyError):
        return None


def _is_done(state: Any, planned: dict[str, str] | None, folder: str) -> bool:
    """Whether a job's file says that it is done, and that it is the sweep's own; True if there is no such file."""
    if state is None:
        return True
    # A job that was killed after its rows were written may lack what else it found, such as a verdict: it runs again.
    done = isinstance(state, dict) and state.get("status") == "done"
    return done and (planned is None or planned.get(folder) == state.get("id"))


def read_rows(sweep: Path) -> pa.Table | None:
    """The rows of a sweep: of its jobs, or the collected ones if it has no jobs' folders; None if there are none.

    Raises:
        ConfigError: a file that is damaged, or of another schema.
    """
    folders = done_jobs(sweep)
    paths = [folder / RESULTS for folder in folders] if folders else [sweep / RESULTS]
    tables = [_read(path, RESULT_SCHEMA) for path in paths if path.is_file()]
    return pa.concat_tables(tables).sort_by("job") if tables else None


def _read(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """A table of a sweep. Raises ConfigError, which names the file."""
    again = "Run it again"
    if path.parent.name.isdigit():
        again = f"Delete {path.parent} and run it again with resume={path.parent.parent}"
    remedy = f"{again}, or read it with the version that wrote it."
    with wrap_library_errors("RUN_DIR", path, "rows of another version of specbench, or damaged", remedy):
        return pq.read_table(path, schema=schema)


def collect(sweep: Path) -> int:
    """Gathers the results of all finished jobs of a sweep into its results.parquet; returns how many there are.

    Raises:
        ConfigError: as read_rows.
        WriteError: the sweep's folder cannot be written.
    """
    rows = read_rows(sweep)
    if rows is not None and done_jobs(sweep):
        write_atomically(sweep / RESULTS, rows)
    return 0 if rows is None else len(rows)


def read_results(sweep: Path) -> pd.DataFrame:
    """The rows of a sweep. Raises ConfigError for a folder without results, or as read_rows."""
    rows = read_rows(sweep)
    if rows is None:
        raise ConfigError(
            "RUN_DIR", sweep, "no results.parquet in it", "Give a folder of outputs/<exp>/<time>, after a run."
        )
    return rows.to_pandas()


def read_jobs(sweep: Path, name: str) -> pd.DataFrame:
    """A table that each job wrote (STEPS, EMPIRICAL, TEXTS), concatenated, with a column ``job``.

    Raises:
        ConfigError: a file that is damaged.
    """
    folders = done_jobs(sweep, name)
    frames = [_read(folder / name).to_pandas().assign(job=int(folder.name)) for folder in folders]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
