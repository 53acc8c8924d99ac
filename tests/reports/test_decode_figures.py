"""Figures from made-up rows: what is drawn is the rows' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from specbench.metrics import theory
from specbench.reports.plots import decode as plots
from specbench.reports.plots.exactness import empirical_against_target
from tests.helpers.made_up_rows import EMPIRICAL_ROWS, estimates, frame, gamma_rows, make_row


def lines_of(figure: Figure) -> dict[str, np.ndarray]:
    """x and y of each labelled line."""
    return {str(line.get_label()): np.array(line.get_xydata()) for line in figure.axes[0].lines}


def heights(axes: Axes) -> list[float]:
    """Of all bars."""
    return [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]


def segments(axes: Axes) -> list[np.ndarray]:
    """x and y of both ends of each interval, or other unlabelled line."""
    return [line for lines in axes.collections if isinstance(lines, LineCollection) for line in lines.get_segments()]


def test_speedup_figure_shows_rows_intervals_and_the_best() -> None:
    rows = frame(gamma_rows())
    figure = plots.speedup_against_gamma(rows, int(rows["speedup"].argmax()))
    naive, masked = lines_of(figure)["naive"], lines_of(figure)["masked"]
    assert naive[:, 1].tolist() == [1.1, 1.3, 0.8]
    assert masked[:, 1].tolist() == [1.15, 1.6, 0.9]
    assert any(np.allclose(line[:, 1], [1.589, 1.613]) for line in segments(figure.axes[0]))
    named, line = figure.axes[0].texts
    assert named.get_text() == r"fastest: $\gamma$ = 3: 1.60$\times$"
    assert named.arrow_patch is not None
    assert {line.get_marker() for line in figure.axes[0].lines} >= {"o", "s"}
    shapes = figure.axes[0].collections
    assert not any(isinstance(shape, PathCollection) for shape in shapes)  # nor a circle beside those
    assert line.get_text() == "without guessing"
    assert len(plots.speedup_against_gamma(rows).axes[0].texts) == 1  # no winner, no arrow


def test_an_interval_without_end_does_not_flatten_the_figure() -> None:
    rows = frame(gamma_rows())
    rows.loc[0, "speedup_high"] = 160.0
    assert plots.speedup_against_gamma(rows).axes[0].get_ylim() == pytest.approx((0, 3 * 1.6))


def test_the_best_of_one_batch_is_named_at_its_point() -> None:
    rows = frame(gamma_rows()).assign(speedup_low=None, speedup_high=None)
    figure = plots.speedup_against_gamma(rows, int(rows["speedup"].argmax()))
    name, _ = figure.axes[0].texts
    assert name.xy[1] == 1.6
    figure.draw_without_rendering()


def test_verifiers_of_equal_acceptance_are_both_visible() -> None:
    lines = lines_of(plots.acceptance_length_against_gamma(frame(gamma_rows())))
    assert (lines["naive"][:, 1] == lines["masked"][:, 1]).all()
    assert (lines["masked"][:, 0] - lines["naive"][:, 0]).min() > 0.1


def test_acceptance_length_is_shown_with_theory_and_ceiling() -> None:
    lines = lines_of(plots.acceptance_length_against_gamma(frame(gamma_rows())))
    expected = [theory.expected_tokens(0.8, gamma) for gamma in (1, 3, 12)]
    assert lines["independent acceptance at the overlap"].tolist() == [
        list(p) for p in zip((1, 3, 12), expected, strict=True)
    ]
    assert lines[r"ceiling $\gamma + 1$"].tolist() == [[1, 2], [3, 4], [12, 13]]


def test_what_is_predicted_of_chains_is_not_drawn_for_trees() -> None:
    tree = make_row(gamma=4, drafter="tree", drafted_per_step=14.0, drafted_per_step_high=14.0)
    lines = lines_of(plots.acceptance_length_against_gamma(frame([tree])))
    assert set(lines) == {"masked", r"ceiling $\gamma + 1$"}


def test_predictions_of_different_overlaps_are_told_apart() -> None:
    rows = [make_row(job=i, gamma=gamma, verifier=name, overlap=overlap)
            for i, (name, overlap, gamma) in enumerate((name, overlap, gamma) for name, overlap in
                (("naive", 0.8), ("masked", 0.8), ("block", 0.6)) for gamma in (1, 4))]  # fmt: skip
    figure = plots.acceptance_length_against_gamma(frame(rows))
    label = "independent acceptance at the overlap of"
    drawn = {str(line.get_label()): line for line in figure.axes[0].lines if label in str(line.get_label())}
    assert set(drawn) == {f"{label} naive and masked", f"{label} block"}
    measured = {str(line.get_label()): line.get_color() for line in figure.axes[0].lines}
    assert drawn[f"{label} block"].get_color() == measured["block"]
    assert len({line.get_marker() for line in drawn.values()}) == 2  # in grey too


def test_time_split_stacks_to_the_time_of_a_token() -> None:
    (axes,) = plots.time_split(frame([make_row(gamma=2)])).axes
    assert heights(axes) == pytest.approx([1.0, 2.0, 0.6, 0.1, 0.3])
    assert [bar.get_y() for bar in axes.patches if isinstance(bar, Rectangle)] == pytest.approx([0, 1.0, 3.0, 3.6, 3.7])
    (plain,) = segments(axes)
    assert plain[:, 1].tolist() == [5.0, 5.0]


def test_position_rates_are_both_visible_where_they_are_equal() -> None:
    figure = plots.position_rates(*estimates([0.9, 0.5, None], [0.9, 0.6, None]))
    assert figure is not None
    lines = list(lines_of(figure).values())
    assert [line[:2, 1].tolist() for line in lines] == [[0.9, 0.6], [0.9, 0.5]]
    assert lines[1][0, 0] - lines[0][0, 0] > 0.05
    bars = [bar for bar in segments(figure.axes[0]) if len(bar)]
    places = [float(place) for line in lines for place in line[:2, 0]]
    at = zip(places, (0.9, 0.6, 0.9, 0.5), strict=True)
    ends = [[(place, rate - 0.05), (place, rate + 0.05)] for place, rate in at]
    assert np.allclose(bars, ends)


def test_histograms_are_shares_of_steps() -> None:
    figure = plots.acceptance_histograms(frame(gamma_rows()))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [rf"$\gamma$ = {gamma}" for gamma in (1, 3, 12)]
    assert heights(figure.axes[1]) == pytest.approx(2 * [0.8, *3 * [20 / 300]])


def test_a_forbidden_token_shows_among_all_others() -> None:
    rows = pd.DataFrame(EMPIRICAL_ROWS[:4]).assign(count=[28, 18, 13, 5])
    axes = empirical_against_target(rows, top=3).axes[0]
    outside = next(line for line in axes.lines if "outside" in str(line.get_label()))
    assert np.array(outside.get_xydata()).tolist() == [[5 / 64, 3]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["' a'", r"'\n'", "' $y$'", "all others"]


def test_shares_and_band_of_the_empirical_check() -> None:
    axes = empirical_against_target(pd.DataFrame(EMPIRICAL_ROWS)).axes[1]
    inside = next(line for line in axes.lines if "inside" in str(line.get_label()))
    assert np.array(inside.get_xdata()).tolist() == [33 / 64, 18 / 64, 13 / 64, 0, 0]
    bars, bands = axes.containers
    assert [bar.get_width() for bar in bars] == pytest.approx([0.5, 0.3, 0.2, 0, 0])
    low, high = theory.binomial_band(0.3, 64)
    assert (bands[1].get_x(), bands[1].get_width()) == pytest.approx((float(low), float(high - low)))
    assert axes.get_title(loc="left") == r"prefix '$x_1$ is \u4e2d\n'"
    dollars = [text for text in axes.findobj(Text) if "$" in text.get_text()]
    assert len(dollars) >= 2  # a token and the prefix
    assert not any(text.get_parse_math() for text in dollars)  # which are no formulas


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.acceptance_histogram([3, 0, 7], f"a $ title_ {60 * 'long'}"),
        lambda: plots.acceptance_histogram([0], "gamma 0, nothing counted"),
        lambda: plots.position_rates(*estimates([0.9, 0.5, None], [0.9, 0.6, None])),
        lambda: empirical_against_target(pd.DataFrame([{**EMPIRICAL_ROWS[0], "prob": 1 + 1e-12}])),
    ],
)
def test_figures_of_one_run_are_drawn_and_leave_no_setting_behind(draw: Any, tmp_path: Path) -> None:
    with mpl.rc_context({"font.size": 13}):
        before = dict(mpl.rcParams)
        draw().savefig(tmp_path / "figure.png")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "figure.png").stat().st_size > 1000
