"""The typed rows on disk: what is written is what is read, and a crash never leaves half a file."""

import dataclasses
import inspect
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.core.errors import ConfigError
from specbench.core.machine.disk import WriteError
from specbench.metrics import results
from specbench.metrics.results import RESULT_SCHEMA, RunRow, StepRow

EXAMPLES = {"str": "text", "int": 3, "float": 0.25, "bool": True}
EXAMPLES |= {"str | None": None, "int | None": 5, "float | None": None, "bool | None": None}
EXAMPLES |= {"list[int] | None": [4, 0, 1]}
EXAMPLES |= {"list[float | None] | None": [0.5, None], "list[float] | None": [0.5]}
SCALARS = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
ARROW = SCALARS | {f"{name} | None": kind for name, kind in SCALARS.items()}
ARROW |= {"list[int] | None": pa.list_(pa.int64()), "list[float | None] | None": pa.list_(pa.float64())}
ARROW["list[float] | None"] = pa.list_(pa.float64())


def example_row(**changes: object) -> RunRow:
    values = {field.name: EXAMPLES[inspect.formatannotation(field.type)] for field in dataclasses.fields(RunRow)}
    return RunRow(**(values | changes))


def step(**changes: object) -> dict[str, object]:
    return dataclasses.asdict(StepRow("a", 0, 4, 2, 3, 4)) | changes


def leave(sweep: Path, job: int, state: object = None, **changes: object) -> Path:
    """A job's folder with its row, and what ``job.json`` says; returns the path of the row."""
    path = sweep / str(job) / results.RESULTS
    path.parent.mkdir()
    results.write_rows(path, [example_row(job=job, **changes)], RESULT_SCHEMA)
    if state is not None:
        path.with_name("job.json").write_text(json.dumps(state))
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_schema_is_the_dataclass():
    expected = [(field.name, ARROW[inspect.formatannotation(field.type)]) for field in dataclasses.fields(RunRow)]
    assert [(column.name, column.type) for column in RESULT_SCHEMA] == expected


def test_round_trip(tmp_path):
    row = example_row(target="/models/ü 'x'\n", overlap=0.125, joint_rates=[0.5, None, None], acceptance_histogram=[])
    results.write_rows(tmp_path / "results.parquet", [row], RESULT_SCHEMA)
    assert pq.read_schema(tmp_path / "results.parquet").equals(RESULT_SCHEMA)
    assert pq.read_table(tmp_path / "results.parquet").to_pylist() == [dataclasses.asdict(row)]


def test_no_rows_leave_a_table_with_columns(tmp_path):
    """A run without the empirical check has an empty empirical.parquet, which reports must be able to read."""
    results.write_rows(tmp_path / "steps.parquet", [], StepRow)
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table.num_rows == 0
    assert table.schema.equals(results.schema_of(StepRow))


@pytest.mark.parametrize(
    ("column", "value"), [("gamma", "3"), ("gamma", 3.5), ("speedup", "fast"), ("lossless", "no"), ("verifier", 3)]
)
def test_a_wrong_type_is_an_error(tmp_path, column, value):
    row = dataclasses.asdict(example_row()) | {column: value}
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        results.write_rows(tmp_path / "results.parquet", [row], RESULT_SCHEMA)
    assert names_in(tmp_path) == []


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "steps.parquet"
    results.write_rows(path, [step(prompt="old")], StepRow)
    before = path.read_bytes()

    def half(table: pa.Table, where: Path) -> None:
        Path(where).write_bytes(before[: len(before) // 2])
        raise OSError("No space left on device")

    monkeypatch.setattr(results.pq, "write_table", half)
    with pytest.raises(WriteError, match="No space"):
        results.write_rows(path, [step(prompt="new")], StepRow)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["steps.parquet"]


def test_collect_merges_finished_jobs_in_order(tmp_path):
    """Twelve jobs, since 10 sorts before 2 as text; one failed before it had a row."""
    (tmp_path / "5").mkdir()
    for job in {*range(12)} - {5}:
        leave(tmp_path, job)
    assert results.collect(tmp_path) == 11
    rows = results.read_results(tmp_path)
    assert rows["job"].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert results.collect(tmp_path) == 11  # the collected file is not one of the jobs'


def test_what_is_collected_is_of_jobs_that_are_done(tmp_path):
    """A job that was killed while it wrote its rows, or right afterwards, runs again: what it left is not read."""
    for job, status in enumerate(("done", "started", "failed", "started")):
        last = leave(tmp_path, job, {"id": str(job), "status": status})
    last.write_bytes(last.read_bytes()[:100])
    assert results.collect(tmp_path) == 1
    assert results.read_results(tmp_path)["job"].tolist() == [0]


def test_rows_of_jobs_that_the_plan_does_not_have_are_not_read(tmp_path):
    """Folders of another sweep's jobs, copied among its own or over one of them; and one whose state is damaged."""
    done = {"status": "done"}
    for job, state in enumerate(({"id": "a", **done}, {"id": "x", **done}, [], {"id": "d", **done})):
        leave(tmp_path, job, state)
    planned = [{"number": number, "id": name} for number, name in enumerate("abc")]
    (tmp_path / "plan.json").write_text(json.dumps({"jobs": planned}))
    assert results.collect(tmp_path) == 1
    assert results.read_results(tmp_path)["job"].tolist() == [0]


def test_collect_of_nothing_writes_nothing(tmp_path):
    assert results.collect(tmp_path) == 0
    assert names_in(tmp_path) == []


def test_rows_without_the_newest_columns_are_read(tmp_path):
    """Of a sweep before there was a version: what it lacks is empty, in its own table and where rows are gathered."""
    path = leave(tmp_path, 0, version="0.1.0")
    old = pq.read_table(path).drop_columns(["version", "check_p_value"])
    pq.write_table(old, path)
    assert results.collect(tmp_path) == 1
    for gathered in (None, old):
        if gathered is not None:
            pq.write_table(gathered, tmp_path / results.RESULTS)
        rows = results.read_results(tmp_path)
        assert rows["version"].isna().tolist() == [True]
        assert rows["commit"].tolist() == ["text"]


def test_read_jobs_says_which_job(tmp_path):
    for job in (2, 10):
        (tmp_path / str(job)).mkdir()
        results.write_rows(tmp_path / str(job) / results.STEPS, [step(step=job)], StepRow)
    steps = results.read_jobs(tmp_path, results.STEPS)
    assert (steps["job"] == steps["step"]).all()
    assert sorted(steps["job"]) == [2, 10]
    assert results.read_jobs(tmp_path, results.TEXTS).empty


def test_a_missing_column_is_an_error(tmp_path):
    """A renamed field of decoding.Step must not become a column of nulls."""
    row = step()
    del row["num_emitted"]
    with pytest.raises(KeyError, match="num_emitted"):
        results.write_rows(tmp_path / "steps.parquet", [row], StepRow)


def test_a_damaged_table_is_named_with_what_to_do(tmp_path):
    (tmp_path / "3").mkdir()
    readers = {results.RESULTS: results.read_rows, results.STEPS: lambda sweep: results.read_jobs(sweep, results.STEPS)}
    for name, read in readers.items():
        (tmp_path / "3" / name).write_bytes(b"PAR1 and no more")
        with pytest.raises(ConfigError, match=rf"3/{name}: .*damaged .*\. Delete .*/3 and run it again with resume="):
            read(tmp_path)


@pytest.mark.parametrize("folder", ["missing", "."])
def test_reading_a_folder_without_results(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"no results\.parquet in it"):
        results.read_results(tmp_path / folder)
