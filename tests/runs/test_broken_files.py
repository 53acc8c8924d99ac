"""Prompt files and traces that cannot be: one clear message each, with the line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin
from specbench.replay.imports import read_any
from specbench.runs.workloads import load_prompts
from tests.helpers.broken_files import PROMPTS, TRACE_LINES, TRACES, lines, table


def assert_refused(read: Callable, key: str, path: Path, says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{key}={path}: ")
    for words in says:
        assert words in message
    assert len(message) < 1000
    assert "\n" not in message
    message.encode()


@pytest.mark.parametrize(("make", "says"), PROMPTS.values(), ids=PROMPTS)
def test_prompt_files(make, says, tmp_path):
    make(tmp_path / "prompts.jsonl")
    assert_refused(lambda path: load_prompts(str(path)), "workload.path", tmp_path / "prompts.jsonl", says)


@pytest.mark.parametrize(("make", "says"), TRACES.values(), ids=TRACES)
def test_traces_in_parquet(make, says, tmp_path):
    make(tmp_path / "trace.parquet")
    assert_refused(read_any, "protocol.trace", tmp_path / "trace.parquet", says)


@pytest.mark.parametrize(("make", "says"), TRACE_LINES.values(), ids=TRACE_LINES)
def test_traces_in_json_lines(make, says, tmp_path):
    make(tmp_path / "trace.jsonl")
    assert_refused(read_any, "protocol.trace", tmp_path / "trace.jsonl", says)


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
