"""Workloads: which rows of a file become which prompts, and what is refused by line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError
from specbench.runs.config import ColumnsConfig, WorkloadConfig
from specbench.runs.workloads import Prompt, Workload, load_prompts, load_workload, sources
from specbench.runs.workloads.prompts import PLACEHOLDERS
from specbench.runs.workloads.selection import shuffled
from tests.helpers.command_lines import new_process

ROWS = [
    {"question_id": 7, "category": "math", "turns": ["one", "two"], "temperature": 0.5},
    {"question_id": 8, "category": "code", "turns": ["three"], "temperature": None},
    {"question_id": 9, "category": "math", "turns": ["four"], "temperature": None},
]


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "w.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def load(path: Path, **settings: Any) -> Workload:
    columns = ColumnsConfig(**settings.pop("columns", {}))
    return load_workload(WorkloadConfig(path=str(path), columns=columns, **settings))


def only(folder: Path, row: dict[str, Any], **settings: Any) -> Prompt:
    (prompt,) = load(written(folder, row), **settings).prompts
    return prompt


def refusal(folder: Path, *rows: Any, **settings: Any) -> str:
    path = written(folder, *rows)
    with pytest.raises(ConfigError) as caught:
        load(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def parquet(folder: Path) -> Path:
    """Two shards of one split, as in the hub's cache."""
    (folder / "data").mkdir(parents=True)
    for i, rows in enumerate((ROWS[:2], ROWS[2:])):
        pq.write_table(pa.Table.from_pylist(rows), folder / "data" / f"test-{i:05}-of-00002.parquet")
    return folder


def saved(folder: Path, split: str = "") -> Path:
    """As datasets.save_to_disk writes a set: the stream format, and files of its own beside it."""
    (folder / split).mkdir(parents=True)
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(str(folder / split / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / split / "state.json").write_text("{}")
    (folder / split / "cache-0123.arrow").write_bytes(b"not to be read")
    return folder


def file_format(folder: Path) -> Path:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(str(folder / "w.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "w.arrow"


def test_the_same_rows_are_the_same_prompts_in_every_format(tmp_path):
    lines = load(written(tmp_path, *ROWS)).prompts
    assert [(prompt.name, prompt.text, prompt.further, prompt.category) for prompt in lines] == [
        ("7", "one", ("two",), "math"),
        ("8", "three", (), "code"),
        ("9", "four", (), "math"),
    ]
    assert [prompt.sampling for prompt in lines] == [{"temperature": 0.5}, {}, {}]
    for place in (parquet(tmp_path / "hub"), saved(tmp_path / "saved"), file_format(tmp_path)):
        rows = load(place).prompts
        in_lines = [vars(row) | {"place": row.place.replace("row", "line")} for row in rows]
        assert in_lines == [vars(prompt) for prompt in lines], place
        assert [prompt.place for prompt in rows] == ["row 1", "row 2", "row 3"]


def test_lines_of_a_folder_have_names_of_their_own_and_are_named_in_their_files(tmp_path):
    """The second file's first prompt had the first one's name."""
    (tmp_path / "test-00000-of-00003.jsonl").write_text('{"prompt": "x"}\n\n{"prompt": "y"}\n')
    (tmp_path / "test-00001-of-00003.jsonl").write_text('{"prompt": "z"}\n')
    assert [(prompt.text, prompt.name) for prompt in load(tmp_path).prompts] == [
        ("x", "line-1"), ("y", "line-3"), ("z", "line-4"),
    ]  # fmt: skip
    (tmp_path / "test-00002-of-00003.jsonl").write_text('{"prompt"')
    with pytest.raises(ConfigError, match=r"line 1 of test-00002-of-00003\.jsonl is not JSON"):
        load(tmp_path)
    (tmp_path / "test-00002-of-00003.jsonl").write_bytes(b"\xe9")
    with pytest.raises(ConfigError, match=r"test-00002-of-00003\.jsonl: line 1 is not UTF-8"):
        load(tmp_path)
    (tmp_path / "test-00002-of-00003.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match=r"line 1 of test-00002-of-00003\.jsonl has no usable prompt"):
        load(tmp_path)


def test_one_split_of_a_folder_is_read(tmp_path):
    folder = parquet(tmp_path)
    pq.write_table(pa.Table.from_pylist([{"prompt": "x"}]), folder / "data" / "train-00000-of-00001.parquet")
    with pytest.raises(ConfigError, match=r"several splits \(data/test, data/train\).*workload\.split="):
        load(folder)
    with pytest.raises(ConfigError, match=r"of which 0 are called 'dev'"):
        load(folder, split="dev")
    assert [prompt.text for prompt in load(folder, split="train").prompts] == ["x"]
    assert len(load(folder, split="data/test").prompts) == 3
    both = saved(saved(tmp_path / "d", "a") / "..", "d/b") / "d"
    assert len(load(both, split="b").prompts) == 3
    with pytest.raises(ConfigError, match="a file, which has no splits"):
        load(written(tmp_path, *ROWS), split="test")


def test_a_damaged_table_is_named(tmp_path):
    for suffix in ("parquet", "arrow"):
        path = tmp_path / f"w.{suffix}"
        path.write_bytes(b"PAR1 and no more")
        with pytest.raises(ConfigError, match=rf"workload\.path=.*w\.{suffix} cannot be read"):
            load(path)


def test_whole_numbers_with_gaps_as_pandas_writes_them(tmp_path):
    """A number of tokens would be 3.0, and be refused. Numbers without gaps are as they were written."""
    path = tmp_path / "w.parquet"
    columns = {"max_tokens": [3, None], "temperature": [1.0, 0.0], "top_p": [0.5, None]}
    pd.DataFrame({"prompt": ["a", "b"], **columns}).to_parquet(path)
    assert pq.read_schema(path).field("max_tokens").type == pa.float64()
    first, second = load(path).prompts
    assert first.max_new_tokens == 3
    assert first.sampling == {"temperature": 1.0, "top_p": 0.5}
    assert isinstance(first.sampling["temperature"], float)
    assert second.sampling == {"temperature": 0.0}


SCHEMAS = [
    ({"question_id": 3, "category": "qa", "turns": ["a", "b"]}, ("3", "a", ("b",), "qa")),
    ({"task_id": "HumanEval/0", "prompt": "def f", "test": "x"}, ("HumanEval/0", "def f", (), "")),
    ({"question": "How many?", "answer": "3"}, ("line-1", "How many?", (), "")),
    ({"problem": "x = ?", "solution": "s", "subject": "Algebra", "unique_id": "t/1"}, ("t/1", "x = ?", (), "Algebra")),
    ({"prompt": "hello"}, ("line-1", "hello", (), "")),
    (
        {"question_id": "s", "category": "rag", "messages": [{"role": "user", "content": c} for c in "ab"]},
        ("s", "a", ("b",), "rag"),
    ),
]


@pytest.mark.parametrize(
    ("row", "expected"), SCHEMAS, ids=["spec_bench", "humaneval", "gsm8k", "math", "redhat", "speed"]
)
def test_columns_of_known_sets_are_guessed_and_said(row, expected, tmp_path):
    workload = load(written(tmp_path, row))
    (prompt,) = workload.prompts
    assert (prompt.name, prompt.text, prompt.further, prompt.category) == expected
    for name in ("question_id", "task_id", "unique_id", "subject", "turns", "messages", "problem"):
        assert (f" from {name}" in workload.description) == (name in row)


def test_columns_that_are_named_go_before_those_that_are_guessed(tmp_path):
    row = {"turns": ["t"], "prompt": "p", "mine": "m", "kind": "k", "prompt_id": "i", "category": "c"}
    prompt = only(tmp_path, row, columns={"prompt": "mine", "id": None, "category": "kind"})
    assert (prompt.text, prompt.name, prompt.category, prompt.further) == ("m", "line-1", "k", ())
    assert only(tmp_path, row).text == "t"
    assert 'line 1 has no usable prompt (no "x")' in refusal(tmp_path, row, columns={"turns": "x"})
    problem = refusal(tmp_path, row, {"prompt": "q"}, columns={"category": "kind"})
    assert "line 2 has no 'kind'; it has 'prompt'" in problem
    assert "workload.columns" in problem


def test_a_log_may_mix_requests_of_several_kinds(tmp_path):
    """Each line as an engine takes it, together as the guide shows them."""
    lines = [
        {"prompt": "a", "max_tokens": 3},
        {"messages": [{"role": "user", "content": "b"}]},
        {"custom_id": "r-3", "body": {"prompt": "c"}},
        {"text": "d", "sampling_params": {"temperature": 0.7}},
    ]
    workload = load(written(tmp_path, *lines))
    assert [(prompt.name, prompt.text) for prompt in workload.prompts] == [
        ("line-1", "a"), ("line-2", "b"), ("r-3", "c"), ("line-4", "d"),
    ]  # fmt: skip
    assert "prompt from prompt, messages from messages, id from custom_id, prompt from text" in workload.description


def test_an_empty_cell_is_not_looked_for_in_another_column(tmp_path):
    problem = refusal(tmp_path, {"prompt": "a", "text": "b"}, {"prompt": None, "text": "c"})
    assert 'line 2 has no usable prompt (no "prompt")' in problem


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_messages_are_read_up_to_the_first_that_nobody_answered(tmp_path):
    messages = [message("system", "S"), message("user", "a"), message("assistant", "b"), message("user", "c")]
    prompt = only(tmp_path, {"messages": messages})
    assert prompt.messages == messages
    assert (prompt.text, prompt.further) == ("c", ())
    open_ended = only(tmp_path, {"messages": [*messages, message("user", "d")]})
    assert (open_ended.text, open_ended.further) == ("c", ("d",))
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    assert only(tmp_path, {"messages": [message("user", parts)]}).text == "xy"
    for wrong, words in (
        ([*messages, message("assistant", "d")], "no question without a reply"),
        ([message("user", "a"), message("user", "b"), message("assistant", "c")], "messages[0] has no reply, but"),
        ([message("tool", "a")], "not a message with a role out of system"),
        ([message("user", [{"type": "image_url"}])], "parts that are not of type text"),
        ([message("user", " ")], "messages[0].content is empty"),
        ([], "not a list of messages"),
    ):
        assert "line 1 has no usable prompt (messages" in (problem := refusal(tmp_path, {"messages": wrong}))
        assert words in problem


def test_turns_that_are_none_are_refused(tmp_path):
    for turns, words in (("a", "turns is 'a', not a list"), ([], "not a list"), (["a", ""], "turns[1] is empty")):
        assert words in refusal(tmp_path, {"turns": turns})


def test_placeholders_are_refused_by_name_unless_they_are_left_out(tmp_path):
    rows = [*ROWS, {"question_id": 10, "category": "qa", "turns": ["x", f"{PLACEHOLDERS[0]} USING SPECDEC_BENCH"]}]
    problem = refusal(tmp_path, *rows)
    assert "line 4: turns[1] is a placeholder" in problem
    assert "workload.where" in problem
    assert len(load(written(tmp_path, *rows), where=["category=math", "category=code"]).prompts) == 3


def test_where_keeps_any_of_the_values_of_a_column_and_all_columns(tmp_path):
    path = written(tmp_path, *ROWS)

    def names(*where: str) -> list[str]:
        return [prompt.name for prompt in load(path, where=list(where)).prompts]

    assert names("category=math") == ["7", "9"]
    assert names("category=math", "category=code") == ["7", "8", "9"]
    assert names("category=math", "question_id=9") == ["9"]
    assert "no row is kept (category is 'code', 'math')" in refusal(tmp_path, *ROWS, where=["category=art"])
    assert "no row is kept (kind is in no row)" in refusal(tmp_path, *ROWS, where=["kind=art"])
    assert "'category' is no column=value" in refusal(tmp_path, *ROWS, where=["category"])


def test_every_beginning_of_a_shuffle_holds_all_categories_in_their_shares():
    sizes = {"a": 60, "b": 30, "c": 10}
    prompts = [
        Prompt(f"{name}{i}", "x", f"line {i}", category=name) for name, size in sizes.items() for i in range(size)
    ]
    mixed = shuffled(prompts, 3)
    assert sorted(prompt.name for prompt in mixed) == sorted(prompt.name for prompt in prompts)
    for length in range(1, 101):
        counts = Counter(prompt.category for prompt in mixed[:length])
        assert all(abs(counts[name] - length * size / 100) <= 1 for name, size in sizes.items()), length
    of_a = [[prompt.name for prompt in shuffled(prompts, seed) if prompt.category == "a"] for seed in (3, 3, 4)]
    assert of_a[0] == of_a[1] != of_a[2]
    assert of_a[0] != [prompt.name for prompt in prompts[:60]]


def test_a_limit_is_taken_after_the_shuffle(tmp_path):
    path = written(tmp_path, *({"prompt": "x", "category": "ab"[i // 8]} for i in range(16)))
    kept = load(path, shuffle=1, limit=4).prompts
    assert Counter(prompt.category for prompt in kept) == {"a": 2, "b": 2}
    assert {prompt.place for prompt in kept} != {"line 1", "line 2", "line 9", "line 10"}


def test_what_stands_twice_in_a_row_is_refused(tmp_path):
    """JSON's and parquet's readers keep the last of two values."""
    path = tmp_path / "twice.jsonl"
    path.write_text('{"prompt": "p", "temperature": 0, "temperature": 1}\n')
    with pytest.raises(ConfigError, match=r"line 1 has two values of 'temperature': 0 and 1"):
        load(path)
    path.write_text('{"prompt": "p", "temperature": 0, "temperature": 0}\n')
    assert load(path).prompts[0].sampling == {"temperature": 0}
    columns = pa.table([pa.array(["p"]), pa.array(["q"])], names=["prompt", "prompt"])
    pq.write_table(columns, tmp_path / "twice.parquet")
    with pytest.raises(ConfigError, match=r"twice.parquet has two columns called 'prompt'. Rename one of them"):
        load(tmp_path / "twice.parquet")


def test_a_folder_without_end_is_not_walked(tmp_path, monkeypatch):
    parquet(tmp_path)
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    with pytest.raises(ConfigError, match=r"a folder of more than 2 files and folders. Give the data set's own"):
        load(tmp_path)


@pytest.mark.parametrize("order", [1, -1])
def test_a_prompt_may_not_have_the_name_of_a_turn_to_come(tmp_path, order):
    rows = [{"prompt_id": "q", "turns": ["a", "b"]}, {"prompt_id": "q#turn-2", "prompt": "c"}]
    assert "'q#turn-2' was used before" in refusal(tmp_path, *rows[::order])


def kinds(folder: Path, names: str, **settings: Any) -> list[tuple[str, str]]:
    """Text and category of each prompt of a workload whose rows have these categories, a letter each."""
    rows = [{"prompt": f"p{i}", "category": category} for i, category in enumerate(names)]
    return [(prompt.text, prompt.category) for prompt in load(written(folder, *rows), **settings).prompts]


def test_the_first_of_each_category_are_used(tmp_path):
    assert kinds(tmp_path, "aabacb", per_category=2) == [
        ("p0", "a"), ("p1", "a"), ("p2", "b"), ("p4", "c"), ("p5", "b"),
    ]  # fmt: skip
    assert kinds(tmp_path, "aabacb", per_category=1, limit=2) == [("p0", "a"), ("p2", "b")]
    shuffled_first = kinds(tmp_path, "aabacb", per_category=1, shuffle=3)
    assert sorted(name for _, name in shuffled_first) == ["a", "b", "c"]
    assert shuffled_first == [row for row in kinds(tmp_path, "aabacb", shuffle=3) if row in shuffled_first]


def test_pooled_categories_are_one_before_the_first_of_each_are_taken(tmp_path):
    pool = {"a": "x", "b": "x"}
    assert kinds(tmp_path, "abca", pool=pool) == [("p0", "x"), ("p1", "x"), ("p2", "c"), ("p3", "x")]
    assert kinds(tmp_path, "abca", pool=pool, per_category=2) == [("p0", "x"), ("p1", "x"), ("p2", "c")]
    assert kinds(tmp_path, "1b", pool={1: "x"}) == [("p0", "x"), ("p1", "b")]  # as Hydra reads a number


def test_a_pool_that_names_no_category_is_said(tmp_path):
    path = written(tmp_path, *ROWS)
    assert "workload.pool names none of their categories" in load(path, pool={"maths": "x"}).description
    assert "workload.pool" not in load(path, pool={"math": "x"}).description


def test_spec_bench_has_the_categories_of_its_own_table():
    pool = yaml.safe_load((CONF / "workload" / "spec_bench.yaml").read_text())["pool"]
    ours = ["MT-Bench", "Translation", "Summarization", "QA", "Math", "RAG"]
    assert list(dict.fromkeys(pool.values())) == ours
    assert Counter(pool.values())["MT-Bench"] == 8  # of ten questions each, as in MT-Bench itself


def test_a_missing_file_is_found_before_anything_heavy_is_imported(tmp_path):
    code = "import sys; from specbench.__main__ import main\ntry: main()\nfinally: print(*sys.modules, sep=chr(10))"
    ended = new_process(tmp_path, "-c", code, "workload=file", "workload.path=none.jsonl", status=1)
    assert "workload.path=none.jsonl: cannot be read (no such file). Give a UTF-8 file" in ended.stderr
    assert not {"torch", "transformers", "pyarrow", "pandas"} & set(ended.stdout.split())
    assert not list(tmp_path.glob("outputs"))


def test_the_copy_heavy_workload_has_four_categories():
    prompts = load_prompts("embedded:copy_heavy.jsonl")
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(("repeat", "edit", "rows", "new"), 6)
    assert len({prompt.text for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(("category", "expected"), [("x", "x"), (None, ""), (3, "3")])
def test_a_line_may_have_a_category(tmp_path, category, expected):
    assert only(tmp_path, {"prompt": "a", "category": category}).category == expected
