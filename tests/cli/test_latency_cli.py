"""``+exp=verifier_latency`` and ``+exp=verifier_agreement`` from the command line.

On a CPU, with small vocabularies.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.core.errors import NotInstalledError
from tests.helpers.cli_cases import TRACE
from tests.helpers.command_lines import Ran, run_once

OFF = "tracking.mode=disabled"
KINDS = ("truncated", "greedy", "one_hot")
GRID = f"protocol.grid=[{{batch_size:[1,2]}},{{sampler:[{','.join(KINDS)}]}},{{batch_size:[2],vocabulary:[90000]}}]"
BATCHES = "protocol.grid=[{batch_size:[1,2]}]"
FEW = ("protocol.vocabulary=97", "protocol.rounds=2", "protocol.replays=3", "protocol.host_calls=1")
SMALL = (*FEW, "batch_size=2", GRID, "protocol.cpu_logits=1000000", OFF)
VERIFIERS = "verifier=masked,block"
MASKED, ABSENT = "specbench.rules.token.masked.MaskedVerifier", "tests.cli.test_latency_cli.AbsentVerifier"
LINES = {
    "latency": ("+exp=verifier_latency", *SMALL, VERIFIERS, "device=cpu"),
    "agreement": (
        *("+exp=verifier_agreement", "protocol.vocabulary=97", "protocol.draws=300", "protocol.steps=3"),
        *("batch_size=4", OFF, VERIFIERS),
    ),
    "replay": ("protocol=replay", "protocol.trace=../trace.jsonl", "protocol.gammas=[1,2]", OFF),
    "absent": (
        *("-m", "protocol=latency", *FEW, BATCHES, OFF, "protocol.budget=0"),
        f"verifier._target_={MASKED},{ABSENT}",
    ),
    "absent alone": ("protocol=latency", *FEW, BATCHES, OFF, f"verifier._target_={ABSENT}"),
    "nothing fits": ("protocol=latency", *SMALL, "device=cpu", "protocol.cpu_logits=1"),
}


class AbsentVerifier:
    """Stands for a verifier whose package is not there."""

    rule, lossless = "absent", True

    def __init__(self) -> None:
        raise NotInstalledError("verifier", "absent", "no_such_package is not installed", "Install it.")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, thorough: bool, small_buffers: None) -> dict[str, Ran]:
    def prepare(folder: Path) -> None:
        (folder / "trace.jsonl").write_text(TRACE["trace.jsonl"])

    lines = {name: (arguments, False) for name, arguments in LINES.items()}
    return run_once(tmp_path_factory, "latency_lines", lines, prepare, anew=thorough)


@pytest.mark.thorough
def test_what_needs_no_models_imports_nothing_that_only_they_need(ran):
    """Which takes seconds. Later lines of their process have verifiers of tests, which import more."""
    for name in ("latency", "agreement", "replay"):
        ran[name].ended.check(0)
        assert ran[name].ended.heavy == []


def test_latency_ends_with_rows_and_a_report(ran):
    got = ran["latency"]
    got.ended.check(0, "Report: outputs/verifier_latency/")
    assert not got.ended.loaded
    assert "**Timed on a CPU" in (got.sweep / "report" / "report.md").read_text(encoding="utf-8")
    assert (got.sweep / "0" / "time_against_batch.png").read_bytes().startswith(b"\x89PNG")
    rows = got.table("latency.parquet")
    assert sorted(set(rows["verifier"])) == ["block", "masked"]
    masked = rows[(rows["verifier"] == "masked") & rows["skipped"].isna()]
    assert masked["variant"].tolist() == ["base", "base", *(f"sampler={kind}" for kind in KINDS)]
    assert masked["batch_size"].tolist() == [1, 2, 2, 2, 2]
    assert not masked["graph"].any()
    assert masked["comparable"].all()
    assert (masked["temperature"] == [0.8, 0.8, 0.8, 0.0, 0.8]).all()
    assert (masked["dtype"] == "float32").all()
    floor_us = masked["floor_bytes"] / masked["copy_bandwidth"] * 1e6
    assert (masked["ratio"] * floor_us).tolist() == pytest.approx(masked["median_us"].tolist())
    assert (masked["checked"] == 2 * masked["batch_size"]).all()
    (reason,) = set(rows["skipped"].dropna())
    assert "protocol.cpu_logits=1000000" in reason


def test_latency_samples_are_those_of_the_medians(ran):
    got = ran["latency"]
    rows, samples = got.table("latency.parquet"), got.table("latency_samples.parquet")
    medians = samples.groupby(["job", "case"])["microseconds"].median()
    timed = rows[rows["skipped"].isna()].set_index(["job", "case"])["median_us"]
    assert medians.to_dict() == pytest.approx(timed.to_dict())
    assert (samples.groupby(["job", "case", "round"]).size() == 3).all()


def test_a_row_of_a_run_without_models(ran):
    rows = ran["latency"].rows
    assert rows["verifier"].tolist() == ["masked", "block"]
    assert rows["target"].isna().all()
    assert (rows["batch_size"] == 2).all()
    configured = [json.loads(text) for text in rows["config"]]
    assert all(config["batch_size"] == 2 and "pair" not in config for config in configured), "what was used alone"


def test_agreement_ends_with_rows_and_a_report(ran):
    got = ran["agreement"]
    got.ended.check(0)
    rows = got.table("agreement.parquet")
    assert (rows["draws"] >= 300).all()
    assert (rows["differences"] == 0).all()
    assert "masked differs from MaskedVerifier in 0 of" in (got.sweep / "report" / "report.md").read_text()


def test_a_package_that_is_not_there_is_skipped_and_fails_no_sweep(ran):
    got = ran["absent"]
    got.ended.check(0)
    last = got.ended.text.rstrip().splitlines()[-2]
    assert last.startswith("skipped: ")
    assert "no_such_package is not installed. Install it." in last
    assert len(got.rows) == 1
    ran["absent alone"].ended.check(1, "no_such_package is not installed")


def test_a_spent_budget_ends_after_the_first_round(ran):
    rows = ran["absent"].table("latency.parquet")
    assert (rows.loc[rows["skipped"].isna(), "rounds"] == 1).all()
    assert (ran["latency"].table("latency.parquet")["rounds"].dropna() == 2).all()


def test_a_sweep_in_which_no_case_can_be_timed_fails(ran):
    ran["nothing fits"].ended.check(1, "no case could be timed. The first:")
