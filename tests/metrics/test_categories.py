"""Results by category: what is counted, what is timed, and where it is shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from specbench.analysis import decoding as analysis
from specbench.core.machine.progress import console
from specbench.decoding import Completion, Request, Step
from specbench.metrics.acceptance import totals_by_prompt
from specbench.metrics.disturbance import Disturbance
from specbench.metrics.results import CATEGORIES, CategoryRow, write_rows
from specbench.protocols.categories import by_category
from specbench.protocols.decode import step_log
from specbench.protocols.rounds import Timed, TimedRounds
from specbench.reports.templates import words
from specbench.runs import summary
from specbench.runs.tracking import panels
from specbench.sampling import SamplingParams
from tests.helpers.made_up_rows import frame, make_category, make_row, write_run

GREEDY = SamplingParams(temperature=0.0)
QUIET = Disturbance(None, None, None)


def completion(name: str, category: str, accepted: list[int], conversation: str = "") -> Completion:
    request = Request(name, (1,), 0, GREEDY, 9, category=category, conversation=conversation)
    return Completion(request, [0], [Step(name, i, 4, count, count + 1, 4) for i, count in enumerate(accepted)])


def test_a_category_is_timed_by_the_batches_that_hold_no_other():
    a, b, c = (completion(name, name, [2]) for name in "abc")
    batches = [[a], [b, c], [c], [a]]
    speedups = (2.0, 4.0, 8.0, 2.0)
    pairs = [(Timed(batch, 1.0, 1), Timed(batch, 1 / gain, 1)) for batch, gain in zip(batches, speedups, strict=True)]
    timed = TimedRounds([pairs, pairs], QUIET)
    rows = {row.category: row for row in by_category(step_log([c for batch in batches for c in batch]), timed)}
    assert list(rows) == ["a", "b", "c"]
    assert rows["a"].speedup == pytest.approx(2.0)
    assert rows["a"].tokens_per_second == pytest.approx(2.0)
    assert (rows["a"].drafted_per_step, rows["a"].acceptance_length) == (4.0, 3.0)
    assert rows["b"].speedup is None
    assert rows["c"].speedup is None
    plain = [completion("a", "", [1])]
    nothing = TimedRounds([[(Timed(plain, 1.0, 1),) * 2]], QUIET)
    assert by_category(step_log(plain), nothing) == []


def test_the_turns_of_a_conversation_are_one_unit_of_resampling():
    texts = [completion("a", "", [4, 4]), completion("a#turn-2", "", [0]), completion("b", "", [1])]
    for text in texts:
        text.request = dataclasses.replace(text.request, conversation=text.request.name[0])
    log = step_log(texts)
    totals = totals_by_prompt(log)
    assert totals["accepted"].tolist() == [8, 1]
    assert totals["steps"].tolist() == [3, 1]
    assert totals_by_prompt(log.drop(columns="conversation"))["accepted"].tolist() == [8, 0, 1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two jobs, each with two categories."""
    folder = write_run(tmp_path / "run", [make_row(gamma=g, job=i) for i, g in enumerate((2, 4))], empirical=False)
    for job, speedup in enumerate((1.5, None)):
        (folder / str(job)).mkdir(exist_ok=True)
        rows = [make_category("[red]", speedup), make_category("", 1.25)]
        write_rows(folder / str(job) / CATEGORIES, rows, CategoryRow)
    return folder


def tables(run: Path, settings: list[str]) -> dict[str, Any]:
    """The tables of a report on that run."""
    results = frame([make_row(gamma=g, job=i) for i, g in enumerate((2, 4))])
    rows = analysis.read_categories(run, results, settings)
    return analysis.by_category(rows, results, settings)


def shown(run: Path, settings: list[str], name: str = "categories") -> pd.DataFrame:
    return tables(run, settings)[name].shown


def test_reports_have_a_line_a_run_and_category(run, tmp_path):
    table = shown(run, ["gamma"])
    assert table[["category", "gamma", "texts", "tokens drafted", "speedup"]].to_numpy().tolist() == [
        ["[red]", "2", "4", "2.50", "1.50"], ["[red]", "4", "4", "2.50", "-"],
        ["(none)", "2", "4", "2.50", "1.25"], ["(none)", "4", "4", "2.50", "1.25"],
    ]  # fmt: skip
    rows = frame([make_row()])
    none = analysis.by_category(analysis.read_categories(tmp_path, rows, []), rows, [])
    assert set(none.values()) == {None}


def test_speedups_of_all_categories_stand_side_by_side(run):
    """As in Spec-Bench's own table: a line a run, a column a category, and all of the workload."""
    table = shown(run, ["gamma"], "speedups")
    assert table.to_numpy().tolist() == [
        ["2", "1.50", "1.25", "1.25 [1.20, 1.30]", "2.50 [2.31, 2.72]"],
        ["4", "-", "1.25", "1.25 [1.20, 1.30]", "2.50 [2.31, 2.72]"],
    ]
    assert list(table) == ["gamma", "[red]", "(none)", "all", "acceptance length"]
    write_rows(run / "1" / CATEGORIES, [make_category("[red]", 1.75)], CategoryRow)
    assert shown(run, ["gamma"], "speedups")["(none)"].tolist() == ["1.25", "-"]  # of a run without the category
    write_rows(run / "0" / CATEGORIES, [make_category("a", None), make_category("b", None)], CategoryRow)
    write_rows(run / "1" / CATEGORIES, [make_category("a", None)], CategoryRow)
    assert tables(run, ["gamma"])["speedups"] is None  # no speedup of any category is known


def test_runs_on_more_and_fewer_prompts_are_told_apart(run):
    """Both the runs and their categories have a column of prompts: report and console ended in a KeyError."""
    results = frame([make_row(prompts=prompts, job=job) for job, prompts in enumerate((6, 8))])
    rows = analysis.read_categories(run, results, ["prompts"])
    table = analysis.by_category(rows, results, ["prompts"])["categories"].shown
    assert table["prompts in all"].tolist() == ["6", "8", "6", "8"]
    assert set(table["prompts"]) == {"3"}
    with console.capture() as printed:
        summary.print_categories(results, pd.DataFrame([vars(make_category("a", 1.5))] * 2).assign(job=[0, 1]))
    assert "prompts in all" in printed.get()


@pytest.mark.parametrize("name", ["gamma", "all", "acceptance length"])
def test_a_category_with_the_name_of_another_column_has_its_own(run, name):
    """Its speedup took the place of a setting, or the whole workload's speedup took its own place."""
    for job, speedup in enumerate((1.5, 1.75)):
        rows = [make_category(name, speedup), make_category("b", 1.25)]
        write_rows(run / str(job) / CATEGORIES, rows, CategoryRow)
    table = shown(run, ["gamma"], "speedups")
    assert list(table) == ["gamma", f"category {name}", "b", "all", "acceptance length"]
    assert table["gamma"].tolist() == ["2", "4"]
    assert table[f"category {name}"].tolist() == ["1.50", "1.75"]
    assert table["all"].tolist() == ["1.25 [1.20, 1.30]"] * 2


def test_few_prompts_of_a_category_are_said(run):
    results = frame([make_row(gamma=g, job=i) for i, g in enumerate((2, 4))])
    rows = analysis.read_categories(run, results, ["gamma"])
    text = words("shared.by_category", rows, "")
    assert "prompts of a category number 3, with which a nominal 95% holds about" in text


def test_a_table_of_an_earlier_version_lacks_a_column_and_is_shown(run):
    for path in run.glob(f"*/{CATEGORIES}"):
        pq.write_table(pq.read_table(path).drop_columns(["drafted_per_step", "drafted_per_step_low"]), path)
    assert set(shown(run, ["gamma"])["tokens drafted"]) == {"-"}


def test_the_console_says_why_a_speedup_is_missing(monkeypatch):
    monkeypatch.setattr(console, "_width", 150)

    def printed(categories: pd.DataFrame) -> str:
        with console.capture() as shown:
            summary.print_categories(frame([make_row(gamma=2, job=0)]), categories)
        return shown.get()

    assert printed(pd.DataFrame()) == ""
    output = printed(pd.DataFrame([vars(make_category("[red]", None))]).assign(job=0))
    assert "[red]" in output
    assert "protocol.group=category" in output
    assert "without an interval" not in output
    assert "prompts of a category number 3" in output
    alone = dataclasses.asdict(make_category("b", 1.25)) | {"speedup_low": None, "speedup_high": None}
    assert "A speedup without an interval is of one batch" in printed(pd.DataFrame([alone]).assign(job=0))


def test_wandb_gets_a_table(run):
    shown = panels.of_job(run / "0", 0).tables["tables/categories"]
    assert shown["category"].to_pylist() == ["[red]", ""]
