"""The two reports over made-up tables: every number shown is one of theirs, and a miss is called one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis import metrics, predicted_speedup, replay_sweep
from specbench.errors import ConfigError
from specbench.results import STEP_SCHEMA, STEPS, write_rows
from tests.test_analysis import make_row, write_run


def comparison(**changes: float) -> pd.DataFrame:
    """Predicted and measured tables of one job, gammas 1 and 4; gamma 4 is best. Changes go into measured gamma 4."""
    common = {"batch": 1, "verifier": "masked", "job": 0}
    terms = {
        "speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3, "tokens_per_second": 100.0,
        "plain_tokens_per_second": 80.0, "tokens_per_step": 2.0, "step_seconds": 0.02, "plain_step_seconds": 0.01,
        "start_seconds": 0.02,
    }  # fmt: skip
    predicted = pd.DataFrame([{**common, **terms, "gamma": gamma} for gamma in (1, 4)])
    measured = pd.DataFrame([{**common, **terms, "gamma": gamma, "batch_seconds": 0.6} for gamma in (1, 4)])
    measured["speedup"] = [1.19, 1.25]
    for name, value in changes.items():
        measured.loc[1, name] = value
    return predicted_speedup.compared(predicted, measured)


def test_a_close_prediction_is_no_miss():
    both = comparison()
    text = predicted_speedup.best_points(both)
    assert "best measured at gamma 4, 1.25; predicted 1.20, -4.0%" in text
    assert "miss" not in text
    assert predicted_speedup.rendered(both)["error"].tolist() == ["+0.8%", "-4.0%"]
    assert "2 lie within 10%" in predicted_speedup.everywhere(both)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"speedup": 2.0, "step_seconds": 0.012}, "the speculative step's time, 0.60 times"),
        ({"speedup": 1.5, "tokens_per_step": 2.5}, "acceptance (tokens a step), 1.25 times"),
        ({"speedup": 1.5, "plain_step_seconds": 0.0125}, "the plain step's time, 1.25 times"),
        # The prompts are a thirtieth of the time: four times as slow, they move less than a step 1.25 times as slow.
        ({"speedup": 1.5, "start_seconds": 0.08, "batch_seconds": 2.4, "step_seconds": 0.025}, "speculative step's"),
    ],
    ids=["step", "acceptance", "plain", "prompts do not matter"],
)
def test_a_miss_has_an_address(changes, fault):
    text = predicted_speedup.best_points(comparison(**changes))
    assert "**a miss**" in text
    assert fault in text


def test_a_crossover_is_a_range_or_not_known():
    each = {"batch": 4, "measured": True, "tokens_measured": 36}
    runs = [(0, "masked", 9, 8, 11), (1, "masked", 12, 10, 13), (2, "block", None, None, None)]
    names = ["job", "verifier", "crossover", "crossover_low", "crossover_high"]
    rows = pd.DataFrame([{**each, **dict(zip(names, run, strict=True)), "gamma": g} for run in runs for g in (1, 4)])
    text = predicted_speedup.crossover(rows)
    assert "masked: 8 to 13; block: not known." in text
    assert "Measured up to 36 tokens a call, a batch of 4" in text
    rows.loc[rows["job"] == 1, names[2:]] = None
    assert "masked: 8 to 11, not known by 1 of 2 runs" in predicted_speedup.crossover(rows)


def test_joint_tests_in_words():
    points = pd.DataFrame({"difference_p": [0.2, 0.01], "same_text_p": [0.5, 1e-5]})
    text = replay_sweep.agrees(points)
    assert "independent texts: they agree, joint p-value 0.02 over 2 settings" in text
    assert "they **differ**, joint p-value 2e-05 over 2 settings" in text


def test_time_is_added_up():
    timings = pd.DataFrame(
        [
            {"job": 0, "what": "sampling", "gamma": np.nan, "seconds": 2.0},
            {"job": 0, "what": "scoring", "gamma": np.nan, "seconds": 1.0},
            {"job": 0, "what": "replay", "gamma": np.nan, "seconds": 0.5},
            {"job": 0, "what": "decode", "gamma": 1.0, "seconds": 20.0},
            {"job": 0, "what": "decode", "gamma": 2.0, "seconds": 15.0},
        ]
    )
    text = replay_sweep.saved(timings, pd.DataFrame({"gamma": [1, 2, 3]}))
    assert "replaying 3 settings 0.50 s, against 35.0 s of decoding 2 of them: a share of 0.100" in text


def test_a_folder_of_another_experiment_is_named(tmp_path):
    run = write_run(tmp_path / "run", [make_row()])
    for report in (replay_sweep.report, predicted_speedup.report):
        with pytest.raises(ConfigError, match=r"no (points|predicted)\.parquet in its jobs"):
            report(run)


def test_the_page_of_definitions(tmp_path):
    """Two runs that pooled and per-request rates rank oppositely; the page says so, and shows each run's numbers."""
    run = write_run(tmp_path / "run", [make_row(gamma=2, job=0), make_row(gamma=2, job=1, verifier="naive")])
    logs = ([("a", 2, 2, 3)] * 6 + [("b", 2, 0, 1)] * 2, [("a", 2, 1, 2)] * 6 + [("b", 2, 2, 3)])
    for job, lines in enumerate(logs):
        rows = [
            {"prompt": p, "step": i, "num_draft_tokens": d, "num_accepted": a, "num_emitted": e}
            for i, (p, d, a, e) in enumerate(lines)
        ]
        write_rows(run / str(job) / STEPS, rows, STEP_SCHEMA)
    text = metrics.page(run)
    assert "0.7500" in text  # 12 / 16
    assert "0.5714" in text  # 8 / 14
    assert "- *mean acceptance length*: vllm-project/vllm, vllm/v1/spec_decode/metrics.py" in text
    assert "verifier masked against verifier naive: the second is higher by *acceptance rate, mean of requests*" in text
    empty = write_run(tmp_path / "empty", [make_row()])
    with pytest.raises(ConfigError, match=r"no steps\.parquet"):
        metrics.page(empty)
