"""What a table or a report says of the fastest setting, and of a machine on which that cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup

from specbench.core.rounding import speedup
from specbench.metrics.disturbance import OTHERS, WAITED, Disturbance, is_disturbed
from specbench.metrics.ranking import TIE, Ranking, plain_changed, ranking, seen
from specbench.reports.markdown import escape, strong

ONE_BATCH = (
    "It was timed in one batch and has no interval: a smaller batch_size or protocol.group or more prompts give it one."
)
SHARED = (
    "Settings took turns with plain decoding, group by group, and were compared {}: one-sided Student's t over "
    "groups that both decoded, with Bonferroni over settings and alpha spending over looks."
)
ALONE = "No two runs have plain decoding in common: had the machine changed between them, it would not show."


def fastest(rows: pd.DataFrame, names: Sequence[str]) -> Markup:
    """Names the fastest setting if the data show that it is, and else says why it is not named.

    Args:
        rows: of results.RunRow, one a setting.
        names: of the settings.
    """
    outcome = ranking(rows)
    row = rows.iloc[outcome.best]
    low, high = row["speedup_low"], row["speedup_high"]
    measured = (
        f"{speedup(row['speedup'], low, high)} times plain decoding, {row['tokens_per_second']:.1f} against "
        f"{row['plain_tokens_per_second']:.1f} tokens/s"
    )
    sentences = _named(outcome, names, measured)
    looks = rows.get("looks", pd.Series())
    if len(names) > 1 and looks.notna().any():
        count = "once" if looks.max() == 1 else f"{looks.max():.0f} times"
        sentences = [sentence for sentence in sentences if sentence != ALONE] + [SHARED.format(count)]
    if pd.isna(low) or low == high:  # the latter in rows of earlier versions
        sentences.append(ONE_BATCH)
    elif high < 1:
        sentences.append("That is slower than plain decoding.")
    elif low <= 1:
        sentences.append("The interval holds 1.")
    if not outcome.pays:
        sentences.append("Nothing here is shown to be faster than plain decoding.")
    return Markup(" ".join(sentences))


def _named(outcome: Ranking, names: Sequence[str], measured: str) -> list[str]:
    name = strong(names[outcome.best])
    if len(names) == 1:
        return [f"Speedup of {name}: {measured}."]
    if outcome.fastest is not None:
        shown = "It is shown to be faster than every other setting, all comparisons together at 95%."
        return [f"Fastest: {name}, {measured}.", shown, *([ALONE] if outcome.drift is None else [])]
    highest = f"The highest speedup is that of {name}: {measured}; "
    unknown = strong("which is the fastest cannot be told")
    if outcome.disturbed:
        return [f"{highest}{unknown}, since the machine was disturbed."]
    rivals = [escape(names[place]) for place in outcome.rivals]
    if len(outcome.tied) == len(rivals):
        alike = " and ".join(filter(None, ["; ".join(rivals[:-1]), rivals[-1]]))
        return [f"{highest}{strong(f'as fast, within {TIE:.0%}')}: {alike}."]
    listed = " or ".join(filter(None, ["; ".join(rivals[:-1]), rivals[-1]]))
    if len(rivals) == len(names) - 1 > 3:
        listed = f"any of the {len(rivals)} others"
    return [f"{highest}{unknown}: {listed} may be as fast."]


def machine(rows: pd.DataFrame) -> str:
    """What is wrong with the machine on which rows were timed; empty where nothing is known to be."""
    sentences = []
    if text := disturbed(seen(rows)):
        sentences.append(f"{text[0].upper()}{text[1:]}: repeat it on a quiet machine.")
    if plain_changed(rows):
        speeds = rows["plain_tokens_per_second"]
        sentences.append(
            f"The machine changed between runs: plain decoding, the same work in each, went at {speeds.min():.1f} to "
            f"{speeds.max():.1f} tokens/s, further apart than rounds within a run. Speedups are over the plain "
            "decoding beside them; tokens/s of different runs do not compare."
        )
    return " ".join(sentences)


def disturbed(every: Sequence[Disturbance]) -> str:
    """What other processes took while runs were timed, if it was much: half a sentence, empty where it was not."""
    hit = [row for row in every if is_disturbed(row)]
    if not hit:
        return ""
    cores, others, waited = (max(getattr(row, name) or 0 for row in hit) for name in ("cores", "other_cores", "waited"))
    most, words = "up to " if len(hit) > 1 else "", []
    if cores and others > OTHERS * cores:
        words.append(f"other processes used {most}{others:.1f} of {cores} cores")
    if waited > WAITED:
        words.append(f"what was timed waited for a core {most}{waited:.0%} of the time")
    return " and ".join(words) + (f", in {len(hit)} of {len(every)} runs" if len(every) > 1 else "")
