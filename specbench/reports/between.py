"""What tables and reports say of verifiers beside each other.

Whether verifiers that promise the same tokens keep to it, and which rule yields more tokens a step.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup

from specbench.core.rounding import interval
from specbench.core.sampling_params import NUMBERS, SHAPING
from specbench.metrics.acceptance import totals_by_prompt
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.results import STEPS, read_jobs
from specbench.metrics.run_settings import distinguishing_columns, sampling_of
from specbench.metrics.speed import batch_variance, half_width, parts
from specbench.replay.trace import TRACE
from specbench.reports.cells import plain
from specbench.reports.markdown import code, escape, strong
from specbench.rules import RULES, TOKEN, replayable, rules_by_verifier

DEFAULT = "temperature"  # the sampler of conf/config.yaml


@dataclass(frozen=True)
class RunComparison:
    """Tokens a step of two runs of different rules on the same prompts.

    Attributes:
        setting: what both runs have in common, such as ``gamma 4``.
        row, other: of results.RunRow; ``row`` is of the rule that the others are compared with.
        lengths: tokens a step of ``row`` and of ``other``, on their common prompts.
        part: each common prompt's part in the scatter of the gain (metrics/speed.py).
    """

    setting: str
    row: pd.Series
    other: pd.Series
    lengths: tuple[float, float]
    part: np.ndarray

    @property
    def both_lengths(self) -> str:
        """Both lengths, such as ``2.40 against 2.91``."""
        return f"{self.lengths[1]:.2f} against {self.lengths[0]:.2f}"

    @property
    def gain(self) -> float:
        """log(other / row)."""
        return math.log(self.lengths[1] / self.lengths[0])

    def half_width(self, tail: float) -> float:
        """Of the interval of the gain; infinite for one prompt."""
        return half_width([batch_variance(self.part)], tail) if len(self.part) > 1 else math.inf


def tokens_a_step(run_dir: Path, results: pd.DataFrame, settings: Sequence[str]) -> list[Markup]:
    """A verdict for each rule beside the first one (the token rule, if it ran): where it yields more tokens a step, and
    where the difference is within chance; none if the sweep has one rule.

    Intervals are of Student's t over prompts, all comparisons together at 95% (Bonferroni).

    Args:
        run_dir: the sweep's folder, whose jobs have step logs.
        results: rows of results.RunRow.
        settings: columns that are equal in two runs that are compared, at least one; a run is called by their values.
    """
    comparisons = list(_comparisons(results, settings, read_jobs(run_dir, STEPS)))
    tail = (1 - CONFIDENCE) / 2 / max(len(comparisons), 1)
    by_rules: dict[tuple[str, str], list[RunComparison]] = {}
    for comparison in comparisons:
        by_rules.setdefault((comparison.other["rule"], comparison.row["rule"]), []).append(comparison)
    return [_verdict(pair, tail, run_dir) for pair in by_rules.values()]


def prompts_of(run_dir: Path, results: pd.DataFrame) -> int:
    """The fewest prompts that a run's intervals are over; a conversation is one.

    Args:
        run_dir: the sweep's folder.
        results: rows of results.RunRow, whose turns are counted if there is no step log.
    """
    steps = read_jobs(run_dir, STEPS)
    if steps.empty:
        return int(results["prompts"].min())
    return min(len(totals_by_prompt(rows)) for _, rows in steps.groupby("job"))


def _comparisons(results: pd.DataFrame, settings: Sequence[str], steps: pd.DataFrame) -> Iterator[RunComparison]:
    if steps.empty:
        return
    totals = {job: totals_by_prompt(rows) for job, rows in steps.groupby("job")}
    named = results[results["job"].isin(list(totals)) & (results["gamma"] > 0)]
    rules = {verifier: info.name for verifier, info in rules_by_verifier().items()}
    named = named.assign(rule=[rules.get(name, name) for name in named["verifier"]])
    for _, rows in named.groupby(list(settings), sort=False, dropna=False):
        first, *others = (row for _, row in _by_rule(rows).iterrows())
        for other in others:
            both = totals[first["job"]].join(totals[other["job"]].add_suffix("_other"), how="inner")
            if both.empty:
                continue
            (old, old_steps), (new, new_steps) = (
                (both[f"emitted{end}"].to_numpy(), both[f"steps{end}"].to_numpy()) for end in ("", "_other")
            )
            lengths = float(old.sum() / old_steps.sum()), float(new.sum() / new_steps.sum())
            setting = ", ".join(f"{name} {plain(first[name])}" for name in settings)
            yield RunComparison(setting, first, other, lengths, parts(new, new_steps, old, old_steps))


def _by_rule(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a rule; the token rule first, if it is there."""
    one = rows.drop_duplicates("rule")
    return one.sort_values("rule", key=lambda names: names != TOKEN.name, kind="stable")


def _verdict(comparisons: Sequence[RunComparison], tail: float, run_dir: Path) -> Markup:
    other, row = comparisons[0].other["verifier"], comparisons[0].row["verifier"]
    sentences = []
    for word, sign in (("more", 1), ("fewer", -1)):
        if shown := [comparison for comparison in comparisons if sign * comparison.gain > comparison.half_width(tail)]:
            listing = ", ".join(
                f"at {comparison.setting} ({comparison.both_lengths}, {_ratio(comparison, tail)} times)"
                for comparison in shown
            )
            sentences.append(f"{strong(f'{other} yields {word} tokens a step than {row}')} {escape(listing)}.")
    if equal := [comparison.setting for comparison in comparisons if comparison.gain == 0]:
        sentences.append(escape(f"{other} and {row} yield equally many tokens a step at {', '.join(equal)}."))
    if unknown := [comparison for comparison in comparisons if 0 < abs(comparison.gain) <= comparison.half_width(tail)]:
        listing = ", ".join(f"at {comparison.setting} ({comparison.both_lengths})" for comparison in unknown)
        differ = strong(f"{other} and {row} differ by less than chance in tokens a step")
        sentences.append(f"{differ} {escape(listing)}{_remedy(unknown, run_dir)}.")
    sentences.append(f"Compared prompt by prompt, all comparisons together at {CONFIDENCE:.0%}.")
    return Markup(" ".join(sentences))


def _ratio(comparison: RunComparison, tail: float) -> str:
    half = comparison.half_width(tail)
    return interval(math.exp(comparison.gain), math.exp(comparison.gain - half), math.exp(comparison.gain + half))


def _remedy(unknown: Sequence[RunComparison], run_dir: Path) -> str:
    """How to find out: by a replay of a trace, whose texts both rules then share; by more prompts if there is none."""
    first = unknown[0]
    path = run_dir / str(first.row["job"]) / TRACE
    if not path.is_file() or not {first.row["rule"], first.other["rule"]} <= {info.name for info in replayable()}:
        return "; more prompts would tell (`workload.limit`)"
    sampling = sampling_of(first.row)
    alike = [comparison for comparison in unknown if sampling_of(comparison.row) == sampling]
    gammas = ",".join(dict.fromkeys(plain(comparison.row["gamma"]) for comparison in alike))
    numbers = {name: plain(first.row[name]) for name in NUMBERS if first.row["sampler"] != DEFAULT or name in sampling}
    shaped = {name: sampling[name] for name in SHAPING if isinstance(sampling.get(name), int | float)}  # as traces say
    sampler = numbers | shaped
    command = [
        *("python", "-m", "specbench", "protocol=replay", f"protocol.trace={path}", f"protocol.planned=[{gammas}]"),
        *([] if first.row["sampler"] == DEFAULT else [f"sampler={first.row['sampler']}"]),
        *(f"sampler.{name}={value}" for name, value in sampler.items()),
    ]
    return f"; {code(shlex.join(command))} compares them on the same texts"


def agreement(results: pd.DataFrame, axis: str) -> list[Markup]:
    """For each rule, whether its verifiers accepted the same tokens; nothing for a rule of which fewer than two ran."""
    settings = [axis, *distinguishing_columns(results, axis, "verifier")]
    families = (results[results["verifier"].isin(list(info.verifiers))] for info in RULES.values())
    return [text for family in families if (text := _agreement(family, axis, settings))]


def _agreement(family: pd.DataFrame, axis: str, settings: Sequence[str]) -> Markup:
    compared, differing = 0, []
    for _, rows in family.groupby(list(settings), sort=False, dropna=False):
        if rows["verifier"].nunique() > 1:
            compared += 1
            if len({tuple(histogram) for histogram in rows["acceptance_histogram"]}) > 1:
                differing.append(plain(rows[axis].iloc[0]))
    promise = f"{' and '.join(dict.fromkeys(family['verifier']))} promise the same tokens from the same streams"
    if not compared:
        return Markup("")
    if not differing:
        return escape(f"{promise}, and their acceptance histograms are identical in all {compared} settings.")
    where = f"{axis} {', '.join(dict.fromkeys(differing))}"
    return strong(f"{promise}, but their acceptance histograms differ at {where}: rounding at a threshold, or a bug.")
