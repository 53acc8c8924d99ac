"""The two reports over made-up tables: every number shown is one of theirs, and a miss is called one."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from specbench.analysis import metrics, predicted_speedup, replay_sweep
from specbench.analysis.replay_sweep import width_ratios
from specbench.metrics.definitions import all_metrics
from specbench.metrics.results import STEPS, StepRow, write_rows
from specbench.replay.agreement import agreement
from specbench.replay.cost.forecast import MeasuredRow
from specbench.replay.renewal import replay
from specbench.replay.summary import replay_rows
from specbench.reports.cells import few_units
from specbench.reports.plots.looks import looks
from specbench.reports.plots.replay import draw_lengths
from specbench.reports.plots.style import style
from specbench.reports.templates import words
from tests.helpers.made_up_rows import make_row, markdown_report, write_run
from tests.helpers.markov_pair import markov_pair, trace_of_tokens


def recommended(both: pd.DataFrame) -> str:
    """What the page says of the gammas that were recommended."""
    recommendations = predicted_speedup.recommendations(both)
    return "\n".join(words("predicted_speedup.recommendation", *recommendation) for recommendation in recommendations)


def everywhere(both: pd.DataFrame) -> str:
    """What the page says of all points."""
    return words("predicted_speedup.everywhere", both, 0.1, predicted_speedup.surprising(both))


def comparison(**changes: float) -> pd.DataFrame:
    """Predicted and measured tables of one job, gammas 1 and 4; gamma 4 is best. Changes go into measured gamma 4."""
    common = {"batch": 1, "verifier": "masked", "job": 0}
    terms: dict[str, float] = {
        "speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3, "tokens_per_second": 100.0,
        "plain_tokens_per_second": 80.0, "tokens_per_step": 2.0, "step_seconds": 0.02, "plain_step_seconds": 0.01,
        "start_seconds": 0.02,
    }  # fmt: skip
    predicted = pd.DataFrame([{**common, **terms, "gamma": gamma} for gamma in (1, 4)])
    predicted["speedup"] += [-0.01, 0.0]
    timed = {"batches": 2, "batch_seconds": 0.6, "seconds_draft": 0.2, "seconds_target": 0.3, "seconds_verify": 0.1}
    measured = pd.DataFrame([{**common, **terms, **timed, "gamma": gamma} for gamma in (1, 4)])
    measured["speedup"] = [1.19, 1.25]
    for name, value in changes.items():
        measured.loc[1, name] = value
    return predicted_speedup.compared(predicted, measured)


def test_a_close_prediction_is_no_miss():
    both = comparison()
    text = recommended(both)
    assert "recommended is gamma 4, predicted 1.20 [1.10, 1.30], measured 1.25 [1.10, 1.30], error -4.0%" in text
    assert "best measured is gamma 4, 1.25 [1.10, 1.30], regret 0.00." in text
    assert "miss" not in text
    assert predicted_speedup.rendered(both)["error"].tolist() == ["+0.0%", "-4.0%"]
    assert predicted_speedup.rendered(both)["best"].tolist() == ["", "predicted, measured"]
    assert "2 lie within 10%" in everywhere(both)


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
    text = recommended(comparison(**changes))
    assert "**a miss**" in text
    assert fault in text


def test_the_regret_is_that_of_the_recommended_gamma():
    """Gamma 4 is recommended, and gamma 1 turns out better: close at the latter, 20% too high at the former."""
    both = comparison(speedup=1.0)
    assert both[["gamma", "recommended", "best"]].to_numpy().tolist() == [[1, False, True], [4, True, False]]
    assert both["regret"].tolist() == pytest.approx([0, 0.19])
    text = recommended(both)
    assert "recommended is gamma 4, predicted 1.20 [1.10, 1.30], measured 1.00" in text
    assert "error +20.0% (**a miss**" in text
    assert "best measured is gamma 1, 1.19 [1.10, 1.30], regret 0.19." in text
    text = words("predicted_speedup.headline", both, 0.1)
    assert "recommends it is within 10% of the measured speedup in 0 of 1 settings" in text
    assert "loses 16.0% of the best" in text
    assert "only hindsight knows, it is within 10% in 1 of 1" in text


def test_settings_have_their_own_best():
    """The same table as two jobs; the second's speedups are all higher."""
    both = comparison(speedup=1.0)
    names = [n for n in both if f"{n}_predicted" in both]
    own = [name for name in both if name in {field.name for field in fields(MeasuredRow)} | {"job", "verifier"}]
    measured = pd.concat([both[own].assign(job=job, speedup=both["speedup"] + job) for job in (0, 1)])
    predicted = both[["verifier", "batch", "gamma"]].join(
        both[[f"{n}_predicted" for n in names]].set_axis(names, axis=1)
    )
    again = predicted_speedup.compared(pd.concat([predicted.assign(job=job) for job in (0, 1)]), measured)
    assert again.sort_values(["job", "gamma"])["regret"].tolist() == pytest.approx([0, 0.19, 0, 0.19])
    assert again["best"].sum() == again["recommended"].sum() == 2


@pytest.mark.parametrize(
    ("inside", "called"),
    [([2] * 20, False), ([2] * 10 + [1] * 10, False), ([2] * 8 + [1] * 12, True), ([0], False), ([2, 0, 2, 0], False),
     ([0, 0], True)],
)  # fmt: skip
def test_intervals_that_hold_too_little_are_called_that(inside, called):
    """Of two settings a job. A job is one accident; that two jobs miss altogether has a chance of 0.05^2."""
    both = pd.concat([comparison().assign(job=job) for job in range(len(inside))], ignore_index=True)
    both["inside"] = [place < count for count in inside for place in (0, 1)]
    text, of = everywhere(both), len(both)
    assert f"{sum(inside)} of the {of} measured speedups ({sum(inside) / of:.0%}) lie in the predicted interval" in text
    assert ("**They are no 95% intervals**" in text) == called


def test_settings_of_one_trace_are_no_independent_evidence():
    """Four jobs of four settings, which miss together in 5% of jobs; as 16 independent points 19% of pages would."""
    rng, jobs = np.random.default_rng(0), np.repeat(np.arange(4), 4)
    missed = rng.random((1000, 4)) < 0.05
    called = [predicted_speedup.surprising(pd.DataFrame({"job": jobs, "inside": ~misses[jobs]})) for misses in missed]
    assert np.mean(called) <= 0.01


def test_few_units_are_named():
    assert few_units("prompts", 32) == few_units("cases", 40) == ""
    assert "prompts number 12, with which a nominal 95% holds about 91%." in few_units("prompts", 12)
    assert "cases number 1, which gives no" in few_units("cases", 1)


def test_joint_tests_in_words():
    points = pd.DataFrame({"difference_p": [0.2, 0.01], "same_text_p": [0.5, 1e-5]})
    text = words("replay_sweep.agrees", replay_sweep.joint_tests(points), replay_sweep.LEVEL)
    assert "independent texts: they agree, joint p-value 0.02 over 2 settings" in text
    assert "they **differ**, joint p-value 2e-05 over 2 settings" in text


def test_time_is_added_up():
    timings = pd.DataFrame({"job": 0, "what": ["sampling", "scoring", "replay", "decode", "decode"]})
    timings = timings.assign(gamma=[None, None, None, 1, 2], seconds=[2.0, 1.0, 0.5, 20.0, 15.0])
    text = words("replay_sweep.saved", timings, 3)
    assert "replaying 3 settings 0.50 s, against 35.0 s of decoding 2 of them: a share of 0.100" in text


def test_the_page_of_definitions(tmp_path):
    """Two runs that pooled and per-request rates rank oppositely; the page says so, and shows each run's numbers.

    A third has the log of the first: a line for each pair of definitions and runs told of it again and again.
    """
    run = write_run(
        tmp_path / "run",
        [make_row(gamma=2, job=i, verifier=name) for i, name in enumerate(("masked", "naive", "block"))],
    )
    logs = ([("a", 2, 2, 3)] * 6 + [("b", 2, 0, 1)] * 2, [("a", 2, 1, 2)] * 6 + [("b", 2, 2, 3)])
    for job, lines in enumerate((*logs, logs[0])):
        rows = [StepRow(p, i, d, a, e, d) for i, (p, d, a, e) in enumerate(lines)]
        write_rows(run / str(job) / STEPS, rows, StepRow)
    text = markdown_report(metrics, run)
    assert "0.7500" in text  # 12 / 16
    assert "0.5714" in text  # 8 / 14
    assert "- **mean acceptance length**: vllm-project/vllm, vllm/v1/spec_decode/metrics.py" in text
    ranked = text.partition("## Where definitions rank runs differently\n")[2].partition("\n## ")[0]
    (line,) = [line for line in ranked.splitlines() if line.startswith("- ")]
    higher, lower = line.removesuffix(": verifier masked and verifier block against verifier naive").split(
        ", and lower"
    )
    assert "**acceptance rate, mean of requests**" in higher
    assert "**acceptance rate**" in lower
    assert "**block efficiency**" not in ranked  # which has the formula of one that is named
    one, two = (all_metrics(pd.read_parquet(run / job / STEPS), 2) for job in "01")
    ((_, _, against),) = metrics._opposed([("a", one), ("b", two), ("c", one)])
    assert against == "a against b; c against b"


# --- Intervals of the replay sweep ---


def test_the_block_rules_gamma_1_is_not_counted_again():
    rules = ["token", "token", "block", "block"]
    points = pd.DataFrame({"rule": rules, "gamma": [1, 4, 1, 4], "width_ratio": [1.0, 1.3, 9.0, 1.5]})

    def widths(points):
        return words("replay_sweep.widths", width_ratios(points))

    assert "is 1.30 times" in widths(points)
    assert "1.00 to 1.50" in widths(points)
    assert "is 5.25 times" in widths(points[points["rule"] == "block"])  # alone, it is no copy
    assert widths(points.assign(width_ratio=float("nan"))) == "One prompt gives no intervals to compare."


def test_one_prompt_has_lengths_and_neither_intervals_nor_tests():
    """It had intervals of width 0, and p-values of NaN after warnings of numpy."""
    columns = {"gamma": 2, "prompt": "a", "tokens": 9, "steps": [4, 5], "expected_steps": 4.5}
    result = agreement(pd.DataFrame(columns), (np.array([9.0, 9.0]), np.array([4.5, 4.5])))
    assert (result.decoded.value, result.same_text.value) == (2.0, 2.0)
    assert math.isnan(result.decoded.low)
    assert (result.difference_p, result.same_text_p) == (None, None)
    assert math.isnan(result.width_ratio)


def test_lengths_of_one_prompt_are_drawn_and_have_no_ends():
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, [[1, 2, 3, 1]])
    rows = replay_rows(trace, replay(trace, "token", [1, 2]))
    assert {row[f"acceptance_length_{end}"] for row in rows for end in ("low", "high")} == {None}
    with style():
        axes = Figure().subplots()
        draw_lengths(axes, pd.DataFrame(rows), looks(["token"]))
    assert axes.lines[0].get_ydata().tolist() == [row["acceptance_length"] for row in rows]
