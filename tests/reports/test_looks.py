"""How series look: told apart in every figure, in colour and in grey, and the same from figure to figure."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from specbench.reports.plots import comparisons, decode, latency, replay
from specbench.reports.plots.looks import DASHED, MARKERS, in_order, looks, named_looks
from specbench.reports.plots.style import Page, drawn_for, panels, style, width, with_legend
from tests.analysis.test_latency_analysis import make_case
from tests.helpers.made_up_rows import estimates, frame, make_row

NAMED = named_looks()
VERIFIERS = ["masked", "naive", "block", "fused", "block_fused", "tree"]  # first, since some figures take only a few
VERIFIERS += [name for name in NAMED if name not in (*VERIFIERS, "token", "argmax")]
VERIFIERS += ["mine", "my/other", "flawed/argmax_bonus"]
POINTS = [*VERIFIERS[:12], "mine"]  # one for each marker, for figures without lines
PAPER = Page(width=3.3, font="STIXGeneral", mathtext="stix", filled=True)


def decoded(names: list[str] = VERIFIERS) -> pd.DataFrame:
    """Two gammas of every verifier."""
    return frame([make_row(verifier=name, gamma=gamma) for name in names for gamma in (2, 4)])


def grid(**columns: list[Any]) -> pd.DataFrame:
    """Every combination."""
    return pd.DataFrame(list(itertools.product(*columns.values())), columns=list(columns))


def lengths(rules: list[str]) -> pd.DataFrame:
    rows = grid(rule=rules, temperature=[0.0, 1.0], gamma=[1, 2, 4])
    return rows.assign(acceptance_length=2.0, acceptance_length_low=1.9, acceptance_length_high=2.1)


def speedups(names: list[str]) -> pd.DataFrame:
    return grid(batch=[1, 8], verifier=names, gamma=[1, 2, 4]).assign(speedup=1.2, speedup_low=1.1, speedup_high=1.3)


RULES = ["token", "block", "argmax", "mine", "yours"]
FIGURES = {
    "speedup": lambda: decode.speedup_against_gamma(decoded(), 3),
    "acceptance length": lambda: decode.acceptance_length_against_gamma(decoded()),
    "several of one verifier": lambda: decode.speedup_against_gamma(
        pd.concat(decoded(["masked", "mine"]).assign(series=lambda x, i=i: x["verifier"] + f", batch_size {i}")
                  for i in range(6))
    ),
    "temperatures": lambda: decode.acceptance_against_temperature(decoded().assign(temperature=[0.0, 1.0] * 15)),
    "positions": lambda: decode.position_rates(*estimates([0.9, 0.5], [0.9, 0.6])),
    "histograms": lambda: decode.acceptance_histograms(decoded(VERIFIERS[:6])),
    "time against batch": lambda: latency.time_against_batch(
        pd.DataFrame([make_case(verifier=name, batch_size=size, rule="block" if "block" in name else "token")
                      for name in VERIFIERS for size in (1, 64)])
    ),
    "ratio to floor": lambda: latency.ratio_to_floor(
        pd.DataFrame([make_case(verifier=name) for name in POINTS])
    ),
    "engines": lambda: comparisons.speed_against_gamma(
        pd.concat(decoded(["fused"]).assign(engine=name) for name in ("eager", "static", "graph", "compiled")),
        grid(name=["generate", "generate, compiled"], batch=[1], gamma=[0]).assign(tokens_per_second=99.0),
    ),
    "drafters": lambda: comparisons.speedup_by_category(
        grid(temperature=[0.0, 1.0], category=["repeat", "new"], series=["model", "prompt_lookup", "suffix_lookup"])
        .assign(speedup=1.2, speedup_low=1.1, speedup_high=1.3)
    ),
    "lengths": lambda: replay.replayed_lengths(lengths(RULES)),
    "replay and decoding": lambda: replay.against_decoding(lengths(RULES), lengths(RULES)),
    "policies": lambda: replay.policy_frontier(
        grid(rule=["token", "block"], policy=["fixed", "entropy", "top_p"], drafted_per_step=[1.0, 2.0]).assign(
            acceptance_length=2.0
        )
    ),
    "predicted": lambda: replay.predicted_speedups(speedups(["masked", "block", "mine"]), speedups(["masked", "mine"])),
}  # fmt: skip


def dash(line: Line2D) -> str:
    """The pattern as drawn."""
    offset_and_dashes = line._unscaled_dash_pattern  # ty: ignore[unresolved-attribute]
    return str(offset_and_dashes) if line.get_linestyle() not in ("None", "none") else "no line"


def series_of(figure: Figure) -> dict[str, set[tuple[str, str, str]]]:
    """Colour, marker and dashes of every label."""
    series: dict[str, set[tuple[str, str, str]]] = {}
    for axes in figure.axes:
        for line in axes.lines:
            if not str(line.get_label()).startswith("_"):
                look = (to_hex(line.get_color()), str(line.get_marker()), dash(line))
                series.setdefault(str(line.get_label()), set()).add(look)
        for bars in axes.containers:
            bar = bars[0] if bars else None
            if bar is not None and not str(bars.get_label()).startswith("_"):
                series.setdefault(str(bars.get_label()), set()).add(
                    (to_hex(bar.get_facecolor()), "bar", bar.get_hatch())
                )
    return series


@pytest.mark.parametrize("name", FIGURES)
def test_no_two_series_of_a_figure_look_alike(name: str) -> None:
    series = series_of(FIGURES[name]())
    assert all(len(looked) == 1 for looked in series.values())  # in all panels the same
    drawn = [look for looked in series.values() for look in looked]
    assert len(set(drawn)) == len(drawn), series
    in_grey = [look[1:] for look in drawn]
    assert len(set(in_grey)) == len(in_grey), series


def test_a_verifier_looks_the_same_in_every_figure() -> None:
    alone, speed = series_of(decode.speedup_against_gamma(decoded(["block"]))), series_of(FIGURES["speedup"]())
    times = series_of(FIGURES["time against batch"]())
    assert alone["block"] == speed["block"] == times["block"]
    assert speed["external/vllm_v1"] == times["external/vllm_v1"]
    assert series_of(FIGURES["lengths"]())["block rule, replayed"] == times["block"]  # the rule as its verifier


def test_looks_depend_on_names_and_not_on_their_order() -> None:
    names = [*VERIFIERS, *(f"mine/{i}" for i in range(20))]
    assert looks(names) == looks(reversed(names))
    assert looks(["mine"])["mine"] == looks(["masked", "mine"])["mine"]
    assert looks(["masked, gamma 2", "block"])["masked, gamma 2"] == NAMED["masked"]


def test_settings_of_one_verifier_differ_in_more_than_the_marker() -> None:
    names = [f"{verifier}, temperature {t}" for verifier in ("masked", "block") for t in (0.7, 1.0, 1.3)]
    series_looks = looks(names)
    for verifier in ("masked", "block"):
        verifier_looks = [look for name, look in series_looks.items() if name.startswith(verifier)]
        assert {look.colour for look in verifier_looks} == {NAMED[verifier].colour}
        assert len({look.dashes for look in verifier_looks}) == len({look.marker for look in verifier_looks}) == 3
    assert looks(["flawed/a", "flawed/b"])["flawed/b"].dashes == DASHED  # whatever else is there


def test_dozens_of_series_are_still_told_apart() -> None:
    names = [f"mine/{i}" for i in range(4 * len(MARKERS))]
    for series_looks in (looks(names), in_order(names)):
        assert len({(look.marker, look.dashes) for look in series_looks.values()}) == len(names)


@pytest.mark.parametrize("inches", [3.3, 7.0])
def test_a_figure_is_drawn_at_its_page_s_width_and_in_its_font(inches: float) -> None:
    page = Page(width=inches, font="STIXGeneral", mathtext="stix", filled=True)
    with drawn_for(page), style():
        figure = latency.time_against_batch(
            pd.DataFrame([make_case(verifier=name, batch_size=size) for name in VERIFIERS for size in (1, 64)])
        )
        figure.draw_without_rendering()
        assert figure.get_figwidth() == inches
        assert figure.legends[0].get_window_extent().width <= inches * figure.dpi
        texts = [*figure.legends[0].get_texts(), figure.axes[0].title, *figure.axes[0].get_xticklabels()]
        assert {text.get_fontname() for text in texts} == {"STIXGeneral"}
    assert width(1.0) == 6  # and the page is put away again
    assert mpl.rcParams["font.family"] != ["STIXGeneral"]


def test_panels_that_would_be_too_narrow_stand_below_each_other() -> None:
    with drawn_for(PAPER), style():
        figure, every = panels(3, 3, (1 / 3, 1.5))
    columns = {round(float(axes.get_position().x0), 3) for axes in every}
    assert (len(columns), figure.get_figwidth()) == (2, 3.3)
    with style():
        _, every = panels(3, 3, (1 / 3, 1.5))
    assert len({round(float(axes.get_position().x0), 3) for axes in every}) == 3


def test_a_legend_of_many_rows_makes_its_figure_taller() -> None:
    heights = []
    for names in (VERIFIERS[:1], VERIFIERS):
        with drawn_for(PAPER):
            heights.append(decode.speedup_against_gamma(decoded(names)).get_figheight())
    assert heights[0] < heights[1]
    assert np.isclose(heights[0], 2.9)


def test_long_names_of_series_are_broken_and_none_is_a_formula() -> None:
    """Settings that differ in many keys have long names, which stood over each other and beyond the figure."""
    rows = decoded(VERIFIERS[:2])
    settings = ", workload file:a$b_{$写.jsonl, own_sampling 6, group 2, max_new_tokens 16, protocol.max_rounds 2"
    rows["series"] = rows["verifier"] + settings
    for draw in (decode.time_split, decode.speedup_against_gamma):
        with warnings.catch_warnings(), drawn_for(PAPER), style():
            warnings.simplefilter("error")  # of a layout without room
            figure = draw(rows)
            figure.draw_without_rendering()
            whole = figure.bbox
            labels = [text for legend in figure.legends for text in legend.get_texts()]
            titles = [text for axes in figure.axes for text in axes.findobj(Text) if "own_sampling" in text.get_text()]
            for text in (*labels, *titles):
                assert text.get_window_extent().x1 <= whole.x1, text
        assert len(labels if draw is decode.speedup_against_gamma else titles) >= 2
        places = [title.get_window_extent() for title in titles]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(places, 2))
        shown = "".join("".join(text.get_text().split()) for text in (*labels, *titles))
        assert r"file:a\$b_{\$\u5199.jsonl,own_sampling6" in shown


def test_names_of_prompts_categories_and_samplers_are_no_formulas() -> None:
    """A prompt of a judged file with such a name ended the judge in an error, when all texts had been compared. Names
    in other scripts were rows of equal boxes."""
    name = "$5 or {$10 写作"
    results = frame([make_row()]).assign(series=name)
    speeds = {"temperature": 1.0, "category": name, "speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3}
    with warnings.catch_warnings(), style():
        warnings.simplefilter("error")  # of characters that the font lacks
        for figure in (
            comparisons.bias([("1", 0.1, 0.2)], [(name, 0.1, 0.2)], 0.99, name),
            comparisons.engines([(name, 0.1, 0.2)], 0.99),
            comparisons.acceptance_by_sampler(results, [name]),
            comparisons.speedup_by_category(pd.DataFrame([{**speeds, "series": name}])),
        ):
            figure.draw_without_rendering()


def test_labels_of_axes_stand_beside_their_panels_and_not_beside_the_legend() -> None:
    with drawn_for(PAPER), style():
        figure = FIGURES["time against batch"]()
        figure.draw_without_rendering()
        (axes,) = figure.axes
        assert not axes.yaxis.label.get_window_extent().overlaps(figure.legends[0].get_window_extent())
        assert axes.get_ylabel()


@pytest.mark.filterwarnings("error")
@style()
def test_panels_keep_their_height_beside_a_long_legend():
    """Of a sweep with 32 settings the legend left no room for axes, as matplotlib warned."""
    heights = []
    for count in (8, 32):
        figure, (axes,) = panels(1, 1, (0.6, 2.0))
        for i in range(count):
            axes.plot([1, 2], label=f"temperature 0.{i}, top_p 0.9, batch_size {i}, seed {i}")
        with_legend(figure).draw_without_rendering()
        heights.append(axes.get_window_extent().height)
    assert heights[1] > 0.9 * heights[0]
