"""What tells the runs of a sweep apart: whatever was asked for, and nothing that follows from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from specbench.analysis import gamma_sweep
from specbench.metrics.results import RESULTS, read_results
from specbench.metrics.run_row import COLUMNS_OF, SETTINGS
from specbench.metrics.run_settings import distinguishing_columns, sampling_of, with_settings
from specbench.runs.config import PairConfig, WorkloadConfig
from specbench.runs.job_row import pair_name, workload_name
from specbench.runs.tracking.sweeps import facts_of
from tests.helpers.made_up_rows import frame, gamma_rows, make_row, markdown_report, table_of, write_run


def labels(*changes: dict[str, Any]) -> list[str]:
    return distinguishing_columns(with_settings(frame([make_row(job=i, **change) for i, change in enumerate(changes)])))


def sampling(**parameters: Any) -> dict[str, str]:
    """The column as runs write it: every parameter, most of them off."""
    return {"sampling": json.dumps({"temperature": 1.0, "stop": [], "seed": None, "n": 1, **parameters})}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("frequency_penalty", (0.0, 1.5)), ("token_rules", ("", '{"bad_words": ["self"]}')), ("min_tokens", (0, 3)),
        ("draft_temperature", (None, 0.7)), ("prompt_chunk", (None, 512)), ("target", ("hf:a", "hf:b")),
        ("draft", ("hf:a", "hf:b")), ("workload", ("file", "embedded")), ("max_new_tokens", (16, 64)),
    ],
)  # fmt: skip
def test_a_setting_in_which_rows_differ_is_told(column: str, values: tuple[Any, Any]) -> None:
    assert labels(*({column: value} for value in values)) == [column]


def test_every_column_of_what_is_asked_for_is_told() -> None:
    """But for names, verdicts and copies of what others say."""
    untold = {name for name, setting in SETTINGS.items() if not setting.in_tables}
    assert untold == {"sampler", "sampling", "lossless", "synthetic"}
    assert {column for columns in COLUMNS_OF.values() for column in columns} <= set(SETTINGS)


def test_sampling_parameters_without_a_column_are_told() -> None:
    rows = [make_row(job=i, **sampling(thinking_token_budget=budget)) for i, budget in enumerate((None, 2, 8))]
    rows = with_settings(frame(rows))
    assert distinguishing_columns(rows) == ["sampler.thinking_token_budget"]
    assert rows["sampler.thinking_token_budget"].tolist() == ["", "2", "8"]
    assert labels(sampling(seed=1), sampling(seed=2)) == ["sampler.seed"]  # which is not the run's
    assert labels(sampling(stop=["a"]), sampling()) == ["sampler.stop"]


def test_what_is_off_is_not_asked_for() -> None:
    assert sampling_of(make_row(**sampling(stop=["a"], temperature=0.5))) == {"stop": ["a"], "temperature": 0.5}
    assert sampling_of(make_row()) == {}  # older than the column


def test_what_follows_from_another_setting_is_not_told() -> None:
    assert labels({"pair": "a", "target": "a", "draft": "b"}, {"pair": "c", "target": "c", "draft": "d"}) == ["pair"]
    assert labels({"workload": "a", "prompts": 4}, {"workload": "b", "prompts": 9}) == ["workload"]
    assert labels({"workload": "a", "prompts": 4}, {"workload": "a", "prompts": 9}) == ["prompts"]  # workload.limit
    assert labels({"batch_size": 1, "group": 1}, {"batch_size": 8, "group": 8}) == ["batch_size"]
    assert labels({"batch_size": 8, "group": 8}, {"batch_size": 8, "group": 16}) == ["group"]


def test_rows_that_settings_do_not_tell_apart_have_their_jobs_number() -> None:
    assert labels({}, {}) == ["job"]
    assert labels({"gamma": 2}, {"gamma": 4}, {"gamma": 4}) == ["gamma", "job"]
    rows = with_settings(frame([make_row(job=0, gamma=2), make_row(job=1, gamma=4)]))
    assert distinguishing_columns(rows, "gamma", "verifier") == []
    assert labels({}) == []


def test_a_workload_is_called_by_the_rows_that_were_chosen_of_it() -> None:
    """Else a category and the whole set, or two orders of which a limit takes the first, have one name."""

    def named(**chosen: Any) -> str:
        return workload_name(WorkloadConfig(name="gsm8k", path="a.jsonl", limit=4, **chosen))

    assert named() == "gsm8k"
    assert named(split="test") == "gsm8k[split=test]"
    assert named(shuffle=0) == "gsm8k[shuffle=0]"
    assert named(where=["a=b", "a=c"], shuffle=1) == "gsm8k[where=a=b a=c,shuffle=1]"
    assert workload_name(WorkloadConfig(name="file", path="a.jsonl", shuffle=2)) == "file:a.jsonl[shuffle=2]"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2-1.7B-Instruct"),
        ("/models/smol/", "smol"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abcd", "Qwen3-8B"),
        (".", Path.cwd().name),
        ("embedded:target", "embedded:target"),
    ],
)
def test_a_pair_of_the_users_own_is_called_by_its_target(target: str, name: str) -> None:
    """Captions, tables and tags said "pair hf", whatever the models were."""
    assert pair_name(PairConfig(name="hf", target=target)) == name
    assert pair_name(PairConfig(name="hf", target=target, thinking=True)) == f"{name}[thinking=true]"


def test_tags_have_the_name_of_the_target_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("pair:\n  name: hf\n  target: Qwen/Qwen3-8B\n")
    assert facts_of({"pair": "hf", "verifier": "block"}, tmp_path) == {"pair": "Qwen3-8B", "verifier": "block"}
    assert facts_of({"pair": "qwen3"}, tmp_path) == {"pair": "qwen3"}
    assert facts_of({"pair": "hf"}, tmp_path / "none") == {"pair": "hf"}


def test_a_pair_is_called_by_how_its_prompts_are_made() -> None:
    """Else runs with thinking and without, or with two system prompts, are one setting in every table."""

    def named(**options: Any) -> str:
        return pair_name(PairConfig(name="own", target="a", **options))

    assert named(draft="b", draft_dtype="float32", vocabularies="different") == "own"
    assert named(chat=False) == "own[chat=false]"
    assert named(system="Be brief.", thinking=True) == "own[system=Be brief.,thinking=true]"
    assert named(thinking_tokens=["<a>", "</a>"]) == "own[thinking_tokens=['<a>', '</a>']]"
    long = "You are a helpful assistant who answers "
    first, second = named(system=f"{long}briefly."), named(system=f"{long}at length.")
    assert first != second
    assert max(len(first), len(second)) < 70
    assert "\n" not in named(system="a\nb")
    assert named(system="a\nb") != named(system="a b")


def configured(**settings: Any) -> dict[str, str]:
    """The columns of a row with these settings, as JSON."""
    return {"config": json.dumps({"sampler": {}, "choices": {}, **settings})}


def test_values_without_a_column_are_told_by_their_path() -> None:
    protocols = [{"check": {"draws": draws}, "rounds": 3} for draws in (1, 2)]
    rows = [make_row(job=i, **configured(protocol=protocol)) for i, protocol in enumerate(protocols)]
    rows = with_settings(frame(rows))
    assert distinguishing_columns(rows) == ["protocol.check.draws"]
    assert rows["protocol.check.draws"].tolist() == ["1", "2"]
    assert "protocol.rounds" not in rows


def test_a_report_has_a_column_for_a_value_that_none_is_made_for(tmp_path: Path) -> None:
    """A key of the schema that nothing else knows, and one of a component."""
    rows = [make_row(job=i, **configured(made_up="ab"[i], engine={"depth": i})) for i in range(2)]
    lines = table_of(markdown_report(gamma_sweep, write_run(tmp_path, rows)))
    assert [(line["made_up"], line["engine.depth"]) for line in lines] == [("a", "0"), ("b", "1")]


def test_values_that_follow_from_a_name_are_not_told() -> None:
    one, other = configured(drafter={"lag": 1}), configured(drafter={"lag": 2})
    assert labels({**one, "drafter": "echo[lag=1]"}, {**other, "drafter": "echo[lag=2]"}) == ["drafter"]
    assert labels(one, other) == ["drafter.lag"]  # the file drafter/echo.yaml was edited in between


def test_a_value_that_a_row_lacks_differs_from_one_that_it_has() -> None:
    assert labels(configured(engine={"depth": 1}), configured(engine={})) == ["engine.depth"]


def test_rows_older_than_the_configuration_are_told_apart_by_their_columns() -> None:
    assert labels({}, configured(engine={"depth": 1}), {"gamma": 2}) == ["gamma", "job"]
    old, new = {**sampling(stop=["a"])}, {**sampling(), **configured(engine={"depth": 1})}
    assert labels(old, new, {**new, **configured(engine={"depth": 2})}) == ["sampler.stop", "engine.depth"]


def test_a_sweep_that_is_older_than_the_configuration_is_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", gamma_rows())
    for path in run.rglob(RESULTS):
        pq.write_table(pq.read_table(path).drop_columns(["config", "sampling"]), path)
    rows = with_settings(read_results(run))
    assert rows["config"].isna().all()
    assert distinguishing_columns(rows) == ["verifier", "gamma"]
    page = markdown_report(gamma_sweep, run)
    assert (
        "The highest speedup is that of **gamma 3 with masked**" in page or "Fastest: **gamma 3 with masked**" in page
    )
