"""Which setting is called the fastest, on made-up sweeps: false names among equals, true ones, and what is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.core.errors import ArgumentError
from specbench.metrics.disturbance import Disturbance
from specbench.metrics.ranking import BATCHES, plain_changed, race, ranking
from specbench.metrics.speed import Rounds, speed_of
from specbench.reports import winner
from specbench.reports.markdown import literal
from tests.helpers.made_up_rows import frame, make_row


def sweep(
    seed: int, gains: list[float], noise: float = 0.02, drift: float = 0.01, rounds: int = 2, **changes: Any
) -> pd.DataFrame:
    """Runs of the same 12 prompts, one after the other on a machine that changes.

    Args:
        gains: the true log(speedup) of each setting; prompts differ from it by 15%, half of it in all settings alike.
        noise: standard deviation of the logarithm of one time.
        drift: the same of a run's times as a whole; plain and speculative times have half of its variance in common.
    """
    rng, rows = np.random.default_rng(seed), []
    plain = 0.3 * np.exp(rng.normal(0, 0.2, 12))
    prompts = rng.normal(0, 0.15 / np.sqrt(2), 12)
    for job, gain in enumerate(gains):
        speculative = plain * np.exp(-gain - prompts - rng.normal(0, 0.15 / np.sqrt(2), 12))
        shared = rng.normal(0, drift / np.sqrt(2))
        times = [
            seconds * np.exp(rng.normal(0, noise, (rounds, 12)) + shared + rng.normal(0, drift / np.sqrt(2)))
            for seconds in (speculative, plain)
        ]
        tokens = np.full((rounds, 12), 32)
        speed = speed_of(Rounds(tokens, times[0], tokens, times[1]))
        estimate = speed.speedup
        measured = {
            "speedup": estimate.value, "speedup_low": estimate.low, "speedup_high": estimate.high, "rounds": rounds,
            "plain_tokens_per_second": 384 / speed.plain_seconds.sum(), "round_error": speed.round_error,
            "plain_round_error": speed.plain_round_error, "cores": 2, "other_cores": 0.02, "waited": 0.002,
        }  # fmt: skip
        lists = by_batch([getattr(speed, name.removeprefix("batch_")) for name in BATCHES])
        rows.append(make_row(job=job, gamma=1 + job, **{**measured, **lists, **changes}))
    return frame(rows)


def by_batch(columns: Sequence[np.ndarray]) -> dict[str, list]:
    """The columns BATCHES as a row has them."""
    kinds = [int if name.endswith("tokens") else float for name in BATCHES]
    return {name: column.astype(kind).tolist() for name, column, kind in zip(BATCHES, columns, kinds, strict=True)}


@pytest.mark.cases(1)
@pytest.mark.parametrize(("settings", "noise", "drift"), [(2, 0.02, 0.005), (12, 0.02, 0.02), (6, 0.1, 0.1)])
def test_no_winner_is_named_among_equals(settings, noise, drift, thorough):
    """At most 5% of sweeps may. Three standard deviations above: 9.7% of 200 sweeps, 13.5% of 60."""
    sweeps, most = (200, 0.097) if thorough else (60, 0.135)
    named = [ranking(sweep(seed, [0.1] * settings, noise, drift)).fastest is not None for seed in range(sweeps)]
    assert np.mean(named) <= most


def test_equals_are_not_beaten_by_a_disturbance_in_the_run_of_one():
    """One run on a machine that was slower by a third for plain decoding alone: 1.44 beside 1.05."""
    for seed in range(20):
        rows = sweep(seed, [0.05] * 6)
        for name in ("speedup", "speedup_low", "speedup_high"):
            rows.loc[2, name] *= 1.35
        rows.loc[2, "plain_tokens_per_second"] /= 1.35
        rows.at[2, "batch_plain_seconds"] = [1.35 * seconds for seconds in rows.at[2, "batch_plain_seconds"]]
        outcome = ranking(rows)
        assert (outcome.best, outcome.fastest) == (2, None)
        assert "The machine changed between runs" in winner.machine(rows)


def test_a_winner_is_named_and_is_the_right_one():
    """1.65 times plain decoding beside 1.22 and less; prompts scatter by 15%, so that less would not show."""
    outcomes = [ranking(sweep(seed, [0.1, 0.5, 0.2, 0.0, 0.1, 0.2])) for seed in range(40)]
    assert {outcome.fastest for outcome in outcomes} <= {1, None}
    assert np.mean([outcome.fastest == 1 for outcome in outcomes]) >= 0.9


def test_the_fastest_is_among_those_that_are_not_ruled_out():
    """In 95% of sweeps; here in all but at most 6 of 60."""
    missed = 0
    for seed in range(60):
        outcome = ranking(sweep(seed, [0.1, 0.2, 0.25, 0.1]))
        missed += 2 not in {outcome.best, *outcome.rivals}
    assert missed <= 6


def test_rows_without_a_speedup_are_left_out():
    """As of a sweep over protocols. They took the first place, since no number is above NaN."""
    rows = sweep(0, [0.1, 0.6, 0.2])
    none = frame([make_row(job=3, speedup=None, plain_tokens_per_second=None, **dict.fromkeys(BATCHES))])
    mixed = ranking(pd.concat([none, rows], ignore_index=True))
    assert (mixed.best, mixed.rivals, mixed.pays) == (2, [], [1 + place for place in ranking(rows).pays])
    assert mixed.drift == ranking(rows).drift
    for nothing in (none, none.iloc[:0]):
        with pytest.raises(ArgumentError, match="none has a speedup"):
            ranking(nothing)


def test_what_prompts_have_in_common_drops_out():
    """Runs of the same batches to a few per mille: a difference of 3% shows beside prompts that scatter by 15%."""
    rows = sweep(0, [0.1, 0.1, 0.1], noise=0.001, drift=0.001, rounds=4)
    for job, factor in ((1, 1.03), (2, 0.97)):
        for name in BATCHES:
            rows.at[job, name] = rows.at[0, name]
        rows.at[job, "batch_seconds"] = [seconds / factor for seconds in rows.at[0, "batch_seconds"]]
        rows.loc[job, "speedup"] = rows.loc[0, "speedup"] * factor
    assert ranking(rows).fastest == 1
    rows.at[2, "batch_seconds"] = rows.at[2, "batch_seconds"][::-1]  # the same numbers, but no longer prompt by prompt
    assert ranking(rows).rivals == [2]


def test_what_rounds_scatter_counts():
    """The same batches in both runs: 1.30 beside 1.25 is a difference where rounds leave 0.2% open, and none at 5%."""
    for error, rivals in ((0.002, []), (0.05, [0])):
        assert ranking(frame([make_row(round_error=error), make_row(speedup=1.3, round_error=error)])).rivals == rivals


def test_faster_than_plain_decoding_is_a_claim_about_all_settings_together():
    """0 of 12 settings that gain nothing, in 88% of 25 sweeps (95% but for chance); all that gain 60%."""
    false = [bool(ranking(sweep(seed, [0.0] * 12)).pays) for seed in range(25)]
    assert np.mean(false) <= 0.12
    assert ranking(sweep(0, [0.5, 0.5])).pays == [0, 1]


def test_plain_decoding_that_changed():
    """With a test at 1%: at most 3 of 40 sweeps on a steady machine, all of 8 where it changed by 10%."""
    assert sum(plain_changed(sweep(seed, [0.1] * 6, drift=0.0)) for seed in range(40)) <= 3
    assert all(plain_changed(sweep(seed, [0.1] * 6, noise=0.005, drift=0.15)) for seed in range(8))
    assert not plain_changed(sweep(0, [0.1], drift=0.3))


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": ('{"structured_outputs": null}', '{"structured_outputs": {"regex": "a+"}}')},
        {"sampling": ('{"thinking_token_budget": 2}', '{"thinking_token_budget": 8}')},
        {"pair": ("hf", "hf[thinking=true]")},
        {"batch_plain_tokens": ([32] * 12, [30] * 12)},  # another file of prompts: the column workload may be the same
    ],
)
def test_plain_decoding_of_other_texts_is_not_the_same_work(changes):
    """Half of the runs decode other texts, at half of the speed; within either half nothing changed."""
    rows = sweep(0, [0.1] * 6, drift=0.0)
    assert not plain_changed(rows)
    for name, (one, other) in changes.items():
        rows[name] = [one, one, one, other, other, other]
    rows.loc[3:, "plain_tokens_per_second"] /= 2
    assert not plain_changed(rows)
    rows.loc[5, "plain_tokens_per_second"] /= 2
    assert plain_changed(rows)


def test_drift_is_known_from_runs_whose_seeds_alone_differ():
    rows = sweep(0, [0.1] * 4)
    assert ranking(rows.assign(seed=range(4))).drift == ranking(rows).drift
    assert ranking(rows.assign(batch_size=range(1, 5))).drift is None


def test_constrained_decoding_is_no_drift_of_the_machine():
    """Its masks take time on the host, so that plain decoding under a grammar is other work than without."""
    rows = sweep(0, [0.1] * 6, drift=0.0)
    rows.loc[3:, "plain_tokens_per_second"] /= 2
    assert ranking(rows).drift.value > 0.1
    rows["sampling"] = [f'{{"temperature": {t}}}' for t in (0.5, 1, 1)] + ['{"structured_outputs": {"regex": "a"}}'] * 3
    assert ranking(rows).drift.value < 0.01


# --- Shared rounds: the same settings, compared again and again ---


def shared(seed: int, gains: list[float], easy: float = 0, batches: int = 72) -> np.ndarray:
    """The columns BATCHES [settings, 4, batches] of settings that took turns; prompts differ as in ``sweep``.

    Args:
        easy: how much more all settings gain on the first six batches.
    """
    rng = np.random.default_rng(seed)
    plain = 0.3 * np.exp(rng.normal(0, 0.2, batches))
    prompts = rng.normal(0, 0.1, batches) + easy * (np.arange(batches) < 6)
    tokens = np.full(batches, 32)
    every = [plain * np.exp(-gain - prompts - rng.normal(0, 0.1, batches)) for gain in gains]
    return np.array([[tokens, speculative, tokens, plain] for speculative in every])


def raced(seed: int, gains: list[float], easy: float = 0) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Who is left after all looks, and after how many batches and looks each of the others ended."""
    counts = (6, 9, 14, 21, 32, 48, 72)
    outcome = race(dict(enumerate(shared(seed, gains, easy))), counts, len(gains))
    ended = {job: (counts[look - 1], look) for job, look in outcome.looks.items() if job not in outcome.active}
    return outcome.active, ended


@pytest.mark.cases(1)
@pytest.mark.parametrize("settings", [2, 8])
def test_a_fastest_setting_is_seldom_ended_however_often_one_looks(settings):
    """The first is as fast as all others: 5% of races may end it. Of these 100, 3% and 1% do; with the whole level for
    each comparison, or each look, 11% and more."""
    assert np.mean([0 not in raced(seed, [0.5] * settings)[0] for seed in range(100)]) <= 0.06


def test_a_winner_of_shared_rounds_is_the_right_one_and_others_end_early():
    races = [raced(seed, [0.1, 0.5, 0.3, 0.0]) for seed in range(40)]
    assert all(1 in active for active, _ in races)
    assert np.mean([active == [1] for active, _ in races]) >= 0.9
    assert np.mean([ended[3][0] for _, ended in races]) < 24, "65% slower: within a third of the batches"


def rows_of(seed: int, gains: list[float], easy: float = 0) -> pd.DataFrame:
    """Rows as a race leaves them."""
    _, ended = raced(seed, gains, easy)
    rows = []
    for job, columns in enumerate(shared(seed, gains, easy)):
        count, looks = ended.get(job, (72, 7))
        prefix = columns[:, :count]
        value = (prefix[0].sum() / prefix[1].sum()) / (prefix[2].sum() / prefix[3].sum())
        rows.append(
            make_row(
                job=job, gamma=1 + job, speedup=value, speedup_low=0.95 * value, speedup_high=1.05 * value, rounds=1,
                round_error=None, plain_round_error=None, plain_tokens=32 * count, rounds_of=0, looks=looks, cores=2,
                other_cores=0.02, plain_tokens_per_second=prefix[2].sum() / prefix[3].sum(), **by_batch(prefix),
            )
        )  # fmt: skip
    return frame(rows)


def test_rows_of_shared_rounds_say_what_the_race_said():
    for seed in range(20):
        active, ended = raced(seed, [0.1, 0.5, 0.45, 0.0])
        outcome = ranking(rows_of(seed, [0.1, 0.5, 0.45, 0.0]))
        assert {outcome.best, *outcome.rivals} == set(active)
        assert outcome.drift is None
        assert not outcome.disturbed
        assert ended


def test_a_setting_that_ended_on_easy_texts_is_not_the_best():
    rows = rows_of(0, [0.1, 0.5, 0.3, -0.2], easy=1.0)
    assert rows["speedup"].idxmax() != 1, "others ended after the easy ones"
    assert ranking(rows).best == 1


def test_shared_rounds_say_how_they_were_compared():
    text = sentence(rows_of(0, [0.1, 0.5, 0.2, 0.0]))
    assert text.startswith("Fastest: gamma 2, ")
    assert "Settings took turns with plain decoding, group by group, and were compared 7 times" in text
    assert "No two runs" not in text


def test_a_tie_is_named():
    rows = rows_of(0, [0.5, 0.0])
    again = rows.iloc[[0]].assign(job=2, gamma=7)
    rows = pd.concat([rows, again], ignore_index=True)
    assert ranking(rows).tied == [2]
    assert "; as fast, within 5%: gamma 7." in sentence(rows)


# --- What is said ---


def sentence(rows: pd.DataFrame) -> str:
    return literal(winner.fastest(rows, [f"gamma {gamma}" for gamma in rows["gamma"]]))


def test_the_fastest_is_named_in_words():
    rows = sweep(0, [0.1, 0.6, 0.1])
    low, high = rows.loc[1, ["speedup_low", "speedup_high"]]
    text = winner.fastest(rows, ["gamma 1", "gamma 2", "gamma 3"])
    speedup = f"{rows.loc[1, 'speedup']:.2f} [{low:.2f}, {high:.2f}]"
    assert text.startswith(f"Fastest: **gamma 2**, {speedup} times plain decoding")
    assert "faster than every other setting, all comparisons together at 95%" in sentence(rows)
    assert "No two runs" not in sentence(rows)
    rows["batch_size"] = [1, 2, 4]
    assert "No two runs have plain decoding in common" in sentence(rows)


def test_a_winner_that_is_not_lossless_is_said_to_be_so():
    rows = sweep(0, [0.1, 0.6, 0.1])
    checked = {"temperature": 1.0, "check_tv": 0.1, "check_tv_noise_q99": 0.2, "check_p_value": 0.4}
    sound = rows.assign(lossless=[False, True, True], **checked)
    assert "lossless" not in sentence(sound)
    assert "Its verifier is not lossless" in sentence(sound.assign(lossless=[True, False, True]))
    beyond = sound.assign(check_tv=[0.1, 0.3, 0.1], check_p_value=0.001)
    assert "(p = 0.001): is its verifier lossless, as it declares?" in sentence(beyond)
    assert "lossless" not in sentence(sound.assign(check_tv=[0.3, 0.1, 0.1]))


def test_settings_of_several_engines_are_told_not_to_be_compared_by_speedup():
    """On a CPU engine=auto compiles one drafter and not another, and 1.6 times 135 is less than 1.2 times 1,300."""
    rows = sweep(0, [0.1, 0.6, 0.1])
    assert "own engine" not in sentence(rows.assign(engine="eager"))
    rows["engine"], rows["plain_tokens_per_second"] = ["compiled", "eager", "compiled"], [1290.0, 135.4, 1310.0]
    assert "own engine (compiled 1,300, eager 135 tokens/s): compare tokens/s across engines." in sentence(rows)


def test_rivals_are_named_and_nobody_else():
    rows = sweep(0, [0.1, 0.6, 0.6, 0.1])
    text = sentence(rows)
    best, rival = (2, 3) if rows.loc[1, "speedup"] > rows.loc[2, "speedup"] else (3, 2)
    assert text.startswith(f"The highest speedup is that of gamma {best}: ")
    assert f"; which is the fastest cannot be told: gamma {rival} may be as fast." in text
    assert "gamma 1" not in text
    assert ": any of the 11 others may be as fast." in sentence(sweep(0, [0.1] * 12, drift=0.1))


def test_a_disturbed_machine_names_no_winner():
    rows = sweep(0, [0.1, 0.6, 0.1])
    rows.loc[2, "other_cores"] = 0.9
    text = sentence(rows)
    assert text.startswith("The highest speedup is that of gamma 2: ")
    assert "; which is the fastest cannot be told, since the machine was disturbed." in text
    assert "may be as fast" not in text
    assert winner.machine(rows) == "Other processes used 0.9 of 2 cores, in 1 of 3 runs: repeat it on a quiet machine."
    rows.loc[1, ["other_cores", "waited"]] = 1.25, 0.33
    waited = "what was timed waited for a core up to 33% of the time, in 2 of"
    assert winner.machine(rows).startswith(f"Other processes used up to 1.2 of 2 cores and {waited}")


def test_a_single_run():
    assert winner.disturbed([Disturbance(2, 0.9, 0.01)]) == "other processes used 0.9 of 2 cores"
    assert winner.disturbed([Disturbance(64, 5.0, 0.1)]) == "what was timed waited for a core 10% of the time"
    assert winner.disturbed([Disturbance(2, 0.1, 0.01), Disturbance()]) == ""
    assert sentence(sweep(0, [0.6])).startswith("Speedup of gamma 1: 1.")
    assert winner.machine(sweep(0, [0.6])) == ""


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"speedup": 0.8, "speedup_low": 0.7, "speedup_high": 0.9}, "/s. That is slower than plain decoding. Nothing"),
        ({"speedup": 1.1, "speedup_low": 0.9, "speedup_high": 1.3, "round_error": 0.1}, "interval holds 1. Nothing"),
        ({"speedup": 1.1, "speedup_low": 1.01, "speedup_high": 1.2}, "200.0 tokens/s."),
    ],
)
def test_no_gain_is_not_called_one(changes, end):
    text = sentence(frame([make_row(**changes)]))
    assert text.endswith(f"{end} here is shown to be faster than plain decoding." if "Nothing" in end else end)


@pytest.mark.parametrize("ends", [None, 2.0], ids=["empty", "of width 0, as earlier versions wrote"])
def test_one_batch_says_nothing_of_other_settings(ends):
    """Nor do rows of earlier versions, which have no times by batch."""
    one = {name: [value] for name, value in zip(BATCHES, (62, 0.2, 62, 0.3), strict=True)}
    one |= {"speedup_low": ends, "speedup_high": ends}
    rows = frame([make_row(gamma=g, speedup=1.0 * g, **one) for g in (1, 2)])
    rows = rows.astype({"speedup_low": float, "speedup_high": float})  # as parquet gives them
    text = sentence(rows)
    assert text.startswith("The highest speedup is that of gamma 2: 2.00 times")
    assert "; which is the fastest cannot be told: gamma 1 may be as fast." in text
    assert "It was timed in one batch and has no interval" in text
    assert "Nothing here is shown to be faster" in text
    old = dict.fromkeys((*BATCHES, "rounds", "round_error", "plain_round_error", "cores", "other_cores", "waited"))
    rows = frame([make_row(gamma=g, speedup=1.0 + g, **old) for g in (1, 2)])
    assert ranking(rows).rivals == [0]
    assert winner.machine(rows) == ""
