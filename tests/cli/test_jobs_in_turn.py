"""Jobs of a sweep that take turns, as a command: what each leaves is what it would have left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.core.machine.journal import TOGETHER
from specbench.metrics import results
from tests.helpers.cli_cases import CUT
from tests.helpers.command_lines import Ran, run_once
from tests.helpers.small_sweeps import sweeps

SMALL = (
    *("+exp=gamma_sweep", "gamma=1,2", "workload.limit=3", "max_new_tokens=4", CUT),
    *("protocol.warmup=0", "protocol.check.prefixes=1", "protocol.check.draws=4", "tracking.mode=disabled"),
)
ALONE = ("protocol.together=false", "protocol.rounds=1", "protocol.max_rounds=1")
LINES = {
    "together": SMALL,
    "alone": (*SMALL, *ALONE),
    "greedy and hot": (*SMALL, "verifier=masked", "gamma=1", "sampler.temperature=0,1"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_once(tmp_path_factory, "jobs_in_turn", {name: (line, True) for name, line in LINES.items()})


def sweep_of(ended: dict[str, Ran], name: str) -> Path:
    (sweep,) = sweeps(ended[name].folder)
    return sweep


def test_each_job_has_its_row_and_its_tables(ended):
    assert ended["together"].ended.status == 0, ended["together"].ended.text
    assert (
        "2 settings and plain decoding take turns: up to 3 rounds of 1 text, at most 60 s"
        in ended["together"].ended.text
    )
    sweep = sweep_of(ended, "together")
    rows = results.read_results(sweep)
    assert rows["gamma"].tolist() == [1, 2]
    assert rows["rounds_of"].tolist() == [0, 0]
    assert rows["looks"].tolist() == [1, 1]
    assert [path.parent.name for path in sweep.glob(f"*/{TOGETHER}")] == ["0"]
    assert (sweep / "report/report.md").is_file()
    assert rows["batch_plain_seconds"][0].tolist() == pytest.approx(rows["batch_plain_seconds"][1].tolist())


@pytest.mark.parametrize("table", [results.STEPS, results.TEXTS, results.EMPIRICAL])
def test_texts_and_steps_are_those_of_jobs_that_run_alone(ended, table):
    assert ended["alone"].ended.status == 0, ended["alone"].ended.text
    one, other = (results.read_jobs(sweep_of(ended, name), table) for name in ("together", "alone"))
    keys = [name for name in ("job", "prompt", "prefix", "step", "token_id") if name in one]
    one, other = (rows.sort_values(keys, ignore_index=True) for rows in (one, other))
    assert len(one)
    assert one.to_json() == other.to_json()


def test_a_job_alone_shares_no_rounds(ended):
    rows = results.read_results(sweep_of(ended, "alone"))
    assert rows["rounds_of"].isna().all()
    assert not list(sweep_of(ended, "alone").glob(f"*/{TOGETHER}"))


def test_jobs_that_differ_in_more_than_verifier_and_gamma_share_no_rounds(ended):
    assert ended["greedy and hot"].ended.status == 0, ended["greedy and hot"].ended.text
    assert results.read_results(sweep_of(ended, "greedy and hot"))["rounds_of"].tolist() == [0, 1]
