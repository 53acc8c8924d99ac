"""Prompt files and traces that cannot be: one clear message each, with the line."""

import contextlib
import json

import pytest

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin
from specbench.replay.imports import read_any
from specbench.runs.workloads import load_prompts
from tests.helpers.broken_files import (
    PROMPTS,
    TRACE_LINES,
    TRACES,
    BrokenFile,
    broken_prompts,
    broken_traces,
    damaged_traces,
    lines,
    table,
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> dict[str, BrokenFile]:
    return {broken_file.reason: broken_file for broken_file in broken_prompts(tmp_path_factory.mktemp("prompts"))}


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> dict[tuple[str, str], BrokenFile]:
    return {
        (broken_file.path.suffix, broken_file.reason): broken_file
        for broken_file in broken_traces(tmp_path_factory.mktemp("traces"))
    }


def check(caught: ConfigError, case: BrokenFile, key: str) -> None:
    message = str(caught)
    assert message.startswith(f"{key}={case.path}: ")
    for words in case.says:
        assert words in message
    assert len(message) < 1000
    assert "\n" not in message
    message.encode()


@pytest.mark.parametrize("reason", PROMPTS)
def test_prompt_files(reason, prompts):
    with pytest.raises(ConfigError) as caught:
        load_prompts(str(prompts[reason].path))
    check(caught.value, prompts[reason], "workload.path")


@pytest.mark.parametrize(
    ("suffix", "reason"), [(".parquet", reason) for reason in TRACES] + [(".jsonl", reason) for reason in TRACE_LINES]
)
def test_traces(suffix, reason, traces):
    with pytest.raises(ConfigError) as caught:
        read_any(traces[suffix, reason].path)
    check(caught.value, traces[suffix, reason], "protocol.trace")


def test_damaged_traces_are_read_or_refused(tmp_path):
    refused = 0
    for path in damaged_traces(tmp_path, 300):
        with contextlib.suppress(ConfigError):
            read_any(path)
            continue
        refused += 1
    assert 100 < refused < 300


def test_unusual_prompts_that_can_be(tmp_path):
    """A byte order mark, a zero that is meant, lines that end as on Windows, blank lines, whole numbers as names."""
    path = tmp_path / "p.jsonl"
    lines(b'\xef\xbb\xbf{"prompt": "a\\u0000b"}\r', "", {"prompt": "c", "prompt_id": 7}, {"prompt": "d"})(path)
    assert [(prompt.name, prompt.text, prompt.place) for prompt in load_prompts(str(path))] == [
        ("line-1", "a\0b", "line 1"),
        ("7", "c", "line 3"),
        ("line-4", "d", "line 4"),
    ]


def test_no_more_is_read_than_asked_for(tmp_path):
    path = tmp_path / "p.jsonl"
    lines({"prompt": "a"}, {"prompt": "b"}, "{")(path)
    assert len(load_prompts(str(path), 2)) == 2


def test_a_trace_may_lie_in_a_folder_named_like_a_column(tmp_path):
    """As sweeps name them; pyarrow would take the folder's token for the file's."""
    import pyarrow.parquet as pq

    folder = tmp_path / "token=3"
    folder.mkdir()
    pq.write_table(table(), folder / "trace.parquet")
    assert read_any(folder / "trace.parquet").tokens.tolist() == [5, 6, 7]


def test_names_may_be_numbers_or_categories(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for prompt in (pa.array([1, 1, 2]), pa.array(["1", "1", "2"]).dictionary_encode()):
        pq.write_table(table(prompt=prompt), tmp_path / "t.parquet")
        assert list(read_any(tmp_path / "t.parquet").prompts) == ["1", "2"]


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    """As a user sees it; a superuser, who runs tests in containers, may read everything."""
    path = tmp_path / "p.jsonl"
    path.write_text("{}")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be read .permission denied."):
        load_prompts(str(path))
    with pytest.raises(ConfigError, match="p.jsonl cannot be read .permission denied."):
        Origin("pair.target", "x", "y").json_object(path)


def test_a_path_with_half_a_character_can_be_printed():
    with pytest.raises(ConfigError) as caught:
        load_prompts("nowhere/\udcff.jsonl")
    assert "\\udcff" in str(caught.value)
    json.dumps(str(caught.value), ensure_ascii=False).encode()
