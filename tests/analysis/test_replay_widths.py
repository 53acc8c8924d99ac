"""The replay sweep's median of widths counts each setting once; one prompt has no widths."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis.replay_sweep import width_ratios
from specbench.replay.agreement import agreement
from specbench.replay.renewal import replay
from specbench.replay.summary import replay_rows
from specbench.reports.plots.looks import looks
from specbench.reports.plots.replay import draw_lengths
from specbench.reports.plots.style import style
from specbench.reports.templates import words
from tests.helpers.markov_pair import markov_pair, trace_of_tokens


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
