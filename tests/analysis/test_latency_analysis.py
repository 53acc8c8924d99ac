"""Reports and figures of verifier timings and comparisons, from made-up rows: every number shown is a row's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from specbench.analysis import verifier_agreement, verifier_latency
from specbench.benchmark.tables import (
    AGREEMENT,
    AGREEMENT_SCHEMA,
    DIFFERENCES,
    LATENCY,
    LATENCY_SAMPLES,
    LATENCY_SCHEMA,
    DifferenceRow,
    LatencySample,
)
from specbench.core.errors import ConfigError
from specbench.metrics.results import RunRow, write_rows
from specbench.reports import markdown
from specbench.reports.plots import latency as plots
from specbench.reports.writing import write
from tests.helpers import made_up_rows
from tests.helpers.made_up_rows import make_row, markdown_report, table_of

# verifier -> (rule, microseconds at 1 and 64 requests of the base case)
TIMES = {
    "fused": ("token", (12.0, 40.0)),
    "masked": ("token", (180.0, 1200.0)),
    "external/vllm_v1": ("vllm_v1", (185.0, 680.0)),
    "block_fused": ("block", (15.0, 60.0)),
    "block": ("block", (300.0, 2400.0)),
}
FLOORS = {"token": (0.4, 20.0), "block": (0.8, 40.0)}
BATCHES = (1, 64)
VARIANTS = {"base": {}, "sampler=greedy": {"sampler": "greedy", "temperature": 0.0}}


def make_case(**changes: Any) -> dict[str, Any]:
    """A plausible row of latency.parquet."""
    row: dict[str, Any] = {
        "case": 0, "variant": "base", "verifier": "fused", "rule": "token", "device": "cuda", "comparable": True,
        "batch_size": 64, "vocabulary": 128256, "gamma": 4, "dtype": "bfloat16", "sampler": "temperature",
        "temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "draft_probabilities": True,
        "cutoffs_known": False, "skipped": None, "flush": "write", "empty_graph_us": 4.6, "copy_bandwidth": 4.2e12,
        "graph": True, "why_no_graph": None, "rounds": 2, "replays": 6, "median_us": 40.0, "median_us_low": 39.0,
        "median_us_high": 41.0, "q05_us": 38.0, "q25_us": 39.5, "q75_us": 40.5, "q95_us": 43.0, "eager_us": 90.0,
        "eager_q25_us": 88.0, "eager_q75_us": 93.0, "floor_bytes": 8.4e7, "floor_us": 20.0, "ratio": 2.0,
        "ratio_low": 1.95, "ratio_high": 2.05, "acceptance_rate": 0.53, "token_acceptance": 0.76, "checked": 128,
        "rounding": 0, "shaping": None, "context": None, "plain_us": None, "plain_us_low": None, "plain_us_high": None,
        "times_plain": None, "times_plain_low": None, "times_plain_high": None,
    }  # fmt: skip
    return {**row, **changes}


def run_row(job: int, verifier: str, protocol: str) -> RunRow:
    """results.parquet's row of a job without models."""
    nothing = dict.fromkeys(("pair", "target", "draft", "drafter", "workload", "prompts", "max_new_tokens", "speedup"))
    changes = {"device": "cuda", "dtype": "bfloat16", "temperature": 0.8, "batch_size": 64, **nothing}
    return make_row(exp=f"verifier_{protocol}", job=job, protocol=protocol, verifier=verifier, **changes)


def write_run(folder: Path, **changes: Any) -> Path:
    """A sweep over the verifiers of TIMES; ``changes`` are made to every case of fused."""
    made_up_rows.write_run(folder, [run_row(job, name, "latency") for job, name in enumerate(TIMES)], empirical=False)
    for job, (name, (rule, times)) in enumerate(TIMES.items()):
        rows, samples = [], []
        for variant, setting in VARIANTS.items():
            for batch, us, floor in zip(BATCHES, times, FLOORS["block" if rule == "block" else "token"], strict=True):
                case = len(rows)
                rows.append(
                    make_case(
                        case=case, variant=variant, verifier=name, rule=rule, batch_size=batch, median_us=us,
                        median_us_low=us - 1, median_us_high=us + 1, floor_us=floor, ratio=us / floor,
                        ratio_low=(us - 1) / floor, ratio_high=(us + 1) / floor,
                        **{**setting, **(changes if name == "fused" else {})},
                    )
                )  # fmt: skip
                samples += [LatencySample(case, i, us + extra) for i in range(2) for extra in (-0.1, 0.0, 0.1)]
        if name == "masked":
            rows[3]["skipped"], rows[3]["median_us"] = "the device's memory does not hold it", None
            samples = [sample for sample in samples if sample.case != 3]
        write_rows(folder / str(job) / LATENCY, rows, LATENCY_SCHEMA)
        write_rows(folder / str(job) / LATENCY_SAMPLES, samples, LatencySample)
    return folder


def test_the_report_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    report = write(verifier_latency.build(run), run)
    text = report.read_text(encoding="utf-8")
    head = table_of(report.parent / "headline.md")
    assert [line["verifier"] for line in head] == list(TIMES)
    assert head[0]["64 requests"] == "40.0 [39.0, 41.0], 2.00 floors"
    assert "- masked: 1 cases (sampler=greedy, 64): the device's memory does not hold it" in text
    assert "Of other rules: external/vllm_v1;" in text
    assert "Timed on a CPU" not in text
    assert "Penalties and bans" not in text  # no case has such a sampler
    assert "Not comparable" not in text
    every = pd.read_csv(report.parent / "cases.csv")
    assert set(every) == {*LATENCY_SCHEMA.names, "job"}
    assert every["skipped"].notna().sum() == 1
    files = {path.name for path in (report.parent / "figures").iterdir()}
    assert files == {f"{stem}.{end}" for stem in ("time_against_batch", "ratio_to_floor") for end in ("pdf", "png")}


def test_each_verifier_is_compared_with_the_fused_one_of_its_rule(tmp_path: Path) -> None:
    report = verifier_latency.build(write_run(tmp_path))
    (shown,) = (table.shown for table in report.tables if table.name == "speed")
    lines = table_of(markdown.table(shown))
    names = {"masked / fused", "external/vllm_v1 / fused", "block / block_fused"}
    assert set(lines[0]) == {"case", "requests"} | names
    assert lines[1]["masked / fused"].startswith("30.00 [")
    assert lines[1]["block / block_fused"].startswith("40.00 [")
    assert lines[3]["masked / fused"] == "-"  # that case was skipped
    speed = report.data["speed"]
    assert ((speed["times_low"] < speed["times"]) & (speed["times"] < speed["times_high"])).all()


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    text = markdown_report(verifier_latency, write_run(tmp_path, comparable=False, device="cpu", graph=False))
    assert "**Not comparable: fused, whose kernels ran through an interpreter.**" in text
    assert "**Timed on a CPU" in text
    assert "30.00 [29.92, 30.08] (not comparable)" in text


def test_a_table_of_an_older_version_is_named(tmp_path: Path) -> None:
    write_run(tmp_path)
    for job in range(len(TIMES)):
        path = tmp_path / str(job) / LATENCY
        pq.write_table(pq.read_table(path).drop_columns(["floor_us", "ratio"]), path)
    with pytest.raises(ConfigError, match=r"no floor_us, ratio in its latency\.parquet, .* another version.*again"):
        verifier_latency.build(tmp_path)


def test_a_verifier_of_several_jobs_is_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "5").mkdir()
    write_rows(tmp_path / "5" / LATENCY, [make_case()], LATENCY_SCHEMA)
    names = set(verifier_latency.read_cases(tmp_path)["verifier"])
    assert {"fused (job 0)", "fused (job 5)", "masked"} <= names


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([make_case(**row) for row in rows])


def test_the_figure_shows_times_and_floors_of_both_rules() -> None:
    rows = frame(
        {"batch_size": 1, "median_us": 12.0, "floor_us": 0.4},
        {"batch_size": 64},
        {"batch_size": 64, "verifier": "block", "rule": "block", "median_us": 70.0, "floor_us": 40.0},
        {"batch_size": 64, "variant": "gamma=8"},
    )
    (axes,) = plots.time_against_batch(rows).axes  # gamma=8 has one batch size only
    drawn = {str(line.get_label()): np.array(line.get_xydata()).tolist() for line in axes.lines}
    assert drawn["fused"] == [[1, 12.0], [64, 40.0]]
    assert drawn["byte floor, token rule"] == [[1, 0.4], [64, 20.0]]
    assert drawn["byte floor, block rule"] == [[64, 40.0]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_ratios_are_drawn_by_case() -> None:
    (axes,) = plots.ratio_to_floor(frame({"batch_size": 1, "ratio": 30.0}, {"batch_size": 64})).axes
    points = np.array(axes.lines[0].get_xydata()).tolist()
    assert points == [[30.0, 0], [2.0, 1]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["base, 1", "base, 64"]


def compared(**changes: Any) -> dict[str, Any]:
    row = {
        "verifier": "fused", "rule": "token", "twin": "MaskedVerifier", "vocabulary": 128256, "batch_size": 256,
        "gamma": 4, "dtype": "bfloat16", "logits": 11, "verifications": 2_816_000, "draws": 10_000_123,
        "acceptance_rate": 0.53, "differences": 20, "rounding": 20, "wrong": 0, "tolerance": 1e-5,
        "largest_rounding": 3.2e-7, "share": 2e-6, "share_low": 1.2e-6, "share_high": 3.1e-6, "seconds": 60.0,
    }  # fmt: skip
    return {**row, **changes}


def test_the_report_of_a_comparison(tmp_path: Path) -> None:
    made_up_rows.write_run(tmp_path, [run_row(job, "fused", "agreement") for job in range(3)], empirical=False)
    unexplained = {"verifier": "mine", "rule": "own", "rounding": None, "wrong": None, "largest_rounding": None}
    for job, changes in enumerate(({}, {"verifier": "broken", "wrong": 3, "rounding": 17}, unexplained)):
        write_rows(tmp_path / str(job) / AGREEMENT, [compared(**changes)], AGREEMENT_SCHEMA)
        write_rows(tmp_path / str(job) / DIFFERENCES, [], DifferenceRow)
    text = markdown_report(verifier_agreement, tmp_path)
    assert "fused differs from MaskedVerifier in 20 of 10,000,123 draws at a vocabulary of 128,256" in text
    assert "Each is rounding; the largest error that one of them needs is 3.2e-07." in text
    assert "3 of the differences are wrong: no rounding explains them.**" in text
    assert "**fused" not in text
    assert "The rule own has no formulas that could explain them." in text
    assert "| mine       | MaskedVerifier |" in text
