"""Prompt files and traces that hypothesis makes up: each is read, or refused in words that name the file.

tests/helpers/broken_files.py and test_trace_refusals.py have cases written by hand, with the words of each message.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from specbench.replay.imports import read_any
from specbench.replay.trace import FIELDS
from specbench.runs.workloads import load_prompts
from tests.helpers.bounded import refusal
from tests.helpers.broken_files import GOOD, TEXT, table
from tests.helpers.cli_cases import HEADER
from tests.helpers.markov_pair import IDENTITY
from tests.helpers.mutations import damaged, dumped, each_odd, json_files, line_files, try_all

MOST = 10**6  # rows; a file of a few kilobytes has no more
COUNTS = pytest.mark.parametrize(
    "count",
    [100, pytest.param(300, marks=pytest.mark.thorough), pytest.param(10_000, marks=pytest.mark.long)],
)
PROMPTS = [GOOD, {"prompt": "b\nc", "prompt_id": "two"}, {"prompt": "é😀", "prompt_id": 7}, GOOD | {"more": [1, {}]}]
SCORED = TEXT | {
    "token_ids": [5, 17, 2],
    "target_logprobs": [-1.0, {"17": {"logprob": -0.5, "rank": 1}}, [-0.25, 2, "c"]],
    "draft_logprobs": [-1.0, -2.0, {"2": -3.0}],
    "sample": 1,
    "max_new_tokens": 3,
}
TRACE_LINES = [HEADER | {"dtype": "bfloat16", "source": "an engine"}, TEXT, SCORED, TEXT | {"prompt_id": 4}]


def read_or_refused(key: str, path: Path, content: bytes, read: Callable[[Path], object]) -> str | None:
    """What was said against a file of this content; None if it was read."""
    path.write_bytes(content)
    return refusal(lambda: read(path), f"{key}={path}: ", longest=1000)


def check_prompts(path: Path) -> None:
    prompts = load_prompts(str(path))
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert prompt.text.strip()
        assert prompt.text.encode()
        assert prompt.name.isprintable()


def check_trace(path: Path) -> None:
    trace = read_any(path)
    assert 0 < len(trace) < MOST
    assert (trace.columns["log_p"] <= 0).all()
    assert (trace.columns["log_p"] > -float("inf")).all()
    assert (trace.columns["log_q"] <= 0).all()
    assert (trace.tokens >= 0).all()
    assert (trace.acceptance_limits >= 0).all()
    assert (trace.lengths > 0).all()
    json.dumps(trace.identity.sampler, allow_nan=False)


@COUNTS
def test_prompt_files_are_read_or_refused(count, tmp_path):
    path = tmp_path / "prompts.jsonl"
    try_all(line_files(PROMPTS), lambda made: read_or_refused("workload.path", path, made, check_prompts), count)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])  # few are sound
def test_traces_of_engines_are_read_or_refused(count, tmp_path):
    path = tmp_path / "trace.jsonl"
    try_all(line_files(TRACE_LINES), lambda made: read_or_refused("protocol.trace", path, made, check_trace), count)


@pytest.mark.parametrize(
    ("lines", "key", "read", "name"),
    [
        (PROMPTS, "workload.path", check_prompts, "prompts.jsonl"),
        (TRACE_LINES, "protocol.trace", check_trace, "trace.jsonl"),
    ],
    ids=["prompts", "trace"],
)
def test_every_value_of_a_line_may_be_odd(lines, key, read, name, tmp_path):
    """One after the other, whatever hypothesis chooses."""
    for at, line in enumerate(lines):
        for odd in each_odd(line):
            written = [*lines[:at], odd, *lines[at + 1 :]]
            read_or_refused(key, tmp_path / name, b"\n".join(map(dumped, written)), read)


# Three values of each kind that a parquet file can hold.
KINDS = [
    *(pa.array([0, 1, 0], kind) for kind in (pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.float16())),
    *(pa.array([0, 1, 0], kind) for kind in (pa.float64(), pa.decimal128(5, 2), pa.date32(), pa.timestamp("ns"))),
    *(pa.array([-1.0, value, -1.0]) for value in (0.0, -0.0, 1.0, 1e300, float("nan"), float("inf"), -float("inf"))),
    *(pa.array([5, value, 7]) for value in (-1, 2**31, 2**62, -(2**63), None)),
    *(pa.array(["a", value, "b"]) for value in ("a", "", " ", "\0", "x" * 300, "é", "1", None)),
    *(pa.array([b"a", b"\xff", b""]), pa.array([True, False, None]), pa.nulls(3)),
    *(pa.array([[0], [], [1, 2]]), pa.array([{"x": 1}, {}, None])),
    pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int8())),
    *(pa.array(["a", "a", "b"], kind) for kind in (pa.large_string(), pa.string_view(), pa.binary())),
    *(pa.array(["a", None, "b"]).dictionary_encode(), pa.array([5, 6, 5]).dictionary_encode()),
    *(pa.array(["a"] * 3, pa.string()).view(pa.binary()), pa.array([0, 0, 1], pa.duration("s"))),
]  # fmt: skip
WRITTEN = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(("none", "snappy", "zstd", "gzip")),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(("1.0", "2.0")),
        "row_group_size": st.sampled_from((1, 3)),
        "write_statistics": st.booleans(),
    }
)


@st.composite
def other_traces(draw: st.DrawFn) -> bytes:
    """Traces whose columns are of other kinds, left out, renamed or repeated; or whose metadata is another one."""
    arrow_table = table(max_new_tokens=pa.array([2, 2, None]), overlap=pa.array([0.5, 0.5, 0.5], pa.float32()))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, arrow_table.num_columns - 1))
        name, change = (
            arrow_table.column_names[at],
            draw(st.sampled_from(("kind", "kind", "kind", "drop", "name", "metadata"))),
        )
        if change == "kind":
            arrow_table = arrow_table.set_column(at, name, draw(st.sampled_from(KINDS)))
        elif change == "drop" and arrow_table.num_columns > 1:
            arrow_table = arrow_table.remove_column(at)
        elif change == "name":
            named = draw(st.sampled_from([*(field for field, _ in FIELDS), "", "x", "é", "a.b"]))
            arrow_table = arrow_table.rename_columns(
                [*arrow_table.column_names[:at], named, *arrow_table.column_names[at + 1 :]]
            )
        elif change == "metadata":
            written = draw(json_files({"version": 1, **vars(IDENTITY)}))
            arrow_table = arrow_table.replace_schema_metadata({b"specbench.trace": written})
    place = pa.BufferOutputStream()
    try:
        pq.write_table(arrow_table.slice(0, draw(st.sampled_from((3, 3, 3, 2, 1, 0)))), place, **draw(WRITTEN))
    except pa.ArrowException:  # parquet has no such column
        reject()
    return place.getvalue().to_pybytes()


@st.composite
def damaged_traces(draw: st.DrawFn) -> bytes:
    """A good file with bytes changed, as often in what describes the columns, at its end, as in the pages."""
    content = draw(st.sampled_from(list(map(written, ("none", "snappy", "zstd")))))
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return draw(
        damaged(content, first=draw(st.sampled_from((0, 4, footer, footer, len(content) - 8))), most=1, slight=True)
    )


@functools.cache
def written(compression: str) -> bytes:
    """A good trace."""
    place = pa.BufferOutputStream()
    pq.write_table(table(), place, compression=compression, store_schema=compression == "none")
    return place.getvalue().to_pybytes()


@COUNTS
@pytest.mark.parametrize("made", [other_traces(), damaged_traces()], ids=["other columns", "damaged"])
def test_traces_are_read_or_refused(made, count, tmp_path):
    path = tmp_path / "trace.parquet"
    try_all(made, lambda content: read_or_refused("protocol.trace", path, content, check_trace), count)
