"""What reports say of the check of drawn tokens: the tokens that a verifier drew beside the target's probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.metrics.results import EMPIRICAL, read_jobs
from specbench.reports import Picture, cells
from specbench.reports.cells import number, plain
from specbench.reports.plots import decode as plots

ROUNDING = 1e-12  # of a sum of probabilities
EMPIRICAL_CHECK = """\
First tokens drawn through the verifier, at several prefixes. Wide bars are the target's probabilities, narrow bands
hold 95% of samples of as many draws, points are the shares drawn: round inside the band, diamonds outside it. Up to 1
in 20 lies outside by chance, one far outside is a bias. "All others" drawn where the target leaves none are
forbidden."""


def exactness(results: pd.DataFrame) -> str:
    """What the check of drawn tokens against the target's probabilities found."""
    checked = results[results["check_tv"].notna()]
    if checked.empty:
        return "No run was checked against the target's probabilities (protocol.check.draws=0)."
    greedy = checked["temperature"] == 0
    return " ".join(filter(None, [_sampled_check(checked[~greedy]), _greedy_check(checked[greedy])]))


def _greedy_check(checked: pd.DataFrame) -> str:
    """What the check was where nothing is sampled; empty if all runs sampled."""
    if checked.empty:
        return ""
    prefixes, draws = (cells.values(checked, name) for name in ("check_prefixes", "check_draws"))
    text = (
        "At temperature 0 nothing is sampled, and no distribution can be compared: the first token of a step, taken "
        f"{draws} times after each of {prefixes} prefixes, has to be the target's likeliest. "
    )
    wrong = checked[checked["check_tv"] > ROUNDING]
    if wrong.empty:
        return f"{text}It was, in {len(checked)} of {len(checked)} runs."
    told = [f"{number(row['check_tv'], '.1%')} with {row['series']}" for _, row in wrong.iterrows()]
    return f"{text}Others came in {len(wrong)} of {len(checked)} runs: {', '.join(told)}."


def _sampled_check(checked: pd.DataFrame) -> str:
    if checked.empty:
        return ""
    beyond = checked[checked["check_tv"] > checked["check_tv_noise_q99"] + ROUNDING]  # with top_k=1 both are 0
    text = (
        f"Check of drawn tokens against the target's probabilities: {len(beyond)} of {len(checked)} runs lie beyond "
        f"the 99% quantile of sampling noise, where chance alone puts {len(checked) / 100:.2g}; the lowest p-value is "
        f"{checked['check_p_value'].min():.3f}."
    )
    for name, rows in beyond.groupby("series", sort=False):
        word = "declared lossless" if rows["lossless"].all() else "not declared lossless"
        text += f" Beyond it: {name} ({word}), in {len(rows)} of its runs."
    return text


def drawn_tokens(run_dir: Path, results: pd.DataFrame, axis: str) -> Iterator[Picture]:
    """The figure of the run of :func:`telling`; none if no run sampled, or none drew tokens."""
    drawn = read_jobs(run_dir, EMPIRICAL)
    chosen = None if drawn.empty else telling(results[results["job"].isin(drawn["job"])])
    if chosen is not None:
        row, why = chosen
        figure = plots.empirical_against_target(drawn[drawn["job"] == row["job"]])
        which = f"{axis.capitalize()} {plain(row[axis])} with {row['series']}, p {number(row['check_p_value'], '.3f')}"
        reading = f"{which}: {why}. {EMPIRICAL_CHECK}"
        yield Picture("empirical_against_target", figure, "Are tokens drawn as the target has them?", reading)


def telling(results: pd.DataFrame) -> tuple[pd.Series, str] | None:
    """The run whose drawn tokens would show a bias best, and why it is that one; None if none sampled its tokens."""
    sampled = results[(results["temperature"] > 0) & results["check_tv"].notna()]
    if sampled.empty:
        return None
    beyond = sampled[sampled["check_tv"] > sampled["check_tv_noise_q99"]]
    rows = sampled if beyond.empty else beyond
    row = rows.sort_values(["temperature", "check_p_value"], ascending=[False, True], kind="stable").iloc[0]
    if len(sampled) == 1:
        return row, "the one run that sampled"
    among = "all" if beyond.empty else "the runs beyond the 99% quantile of sampling noise"
    return row, f"of {among}, at the highest temperature, the run of the lowest p-value"
