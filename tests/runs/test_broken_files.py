"""Prompt files that cannot be: one clear message each, with the line."""

import json

import pytest

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin
from specbench.runs.workloads import load_prompts
from tests.helpers.broken_files import PROMPTS, assert_refused, lines


@pytest.mark.parametrize(("make", "says"), PROMPTS.values(), ids=PROMPTS)
def test_prompt_files(make, says, tmp_path):
    make(tmp_path / "prompts.jsonl")
    assert_refused(lambda path: load_prompts(str(path)), "workload.path", tmp_path / "prompts.jsonl", says)


def test_unusual_prompts_that_can_be(tmp_path):
    """A byte order mark, a zero that is meant, lines that end as on Windows, blank lines, whole numbers as names.

    And Unicode's line separators, which json.dumps(ensure_ascii=False) writes as they are.
    """
    path = tmp_path / "p.jsonl"
    lines(
        b'\xef\xbb\xbf{"prompt": "a\\u0000b"}\r',
        "",
        {"prompt": "c", "prompt_id": 7},
        json.dumps({"prompt": "d\u2028\x85e"}, ensure_ascii=False),
    )(path)
    assert [(prompt.name, prompt.text, prompt.place) for prompt in load_prompts(str(path))] == [
        ("line-1", "a\0b", "line 1"),
        ("7", "c", "line 3"),
        ("line-4", "d\u2028\x85e", "line 4"),
    ]


def test_no_more_is_read_than_asked_for(tmp_path):
    path = tmp_path / "p.jsonl"
    lines({"prompt": "a"}, {"prompt": "b"}, "{")(path)
    assert len(load_prompts(str(path), 2)) == 2


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
