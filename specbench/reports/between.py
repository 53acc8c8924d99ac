"""What tables and reports say of verifiers beside each other.

Whether verifiers that promise the same tokens keep to it, and which rule yields more tokens a step.
"""

import json
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
from specbench.metrics.acceptance import PromptTotals, totals_by_prompt
from specbench.metrics.columns import columns_of, typed
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.results import STEPS, read_jobs
from specbench.metrics.run_row import RunRow
from specbench.metrics.run_settings import distinguishing_columns, sampling_of
from specbench.metrics.speed import batch_variance, half_width, parts
from specbench.replay.trace import TRACE
from specbench.reports.cells import plain
from specbench.reports.markdown import code
from specbench.reports.templates import words
from specbench.rules import RULES, TOKEN, rules_by_verifier

DEFAULT = "temperature"  # the sampler of conf/config.yaml


@dataclass(frozen=True, kw_only=True)
class RuledRun(RunRow):
    """A run, and the rule that its verifier follows; the verifier's name if that is not known."""

    rule: str


Run, Totals = columns_of(RuledRun), columns_of(PromptTotals)


@dataclass(frozen=True)
class RunComparison:
    """Tokens a step of two runs of different rules on the same prompts.

    Attributes:
        setting: what both runs have in common, such as ``gamma 4``.
        run, other: the runs; ``run`` is of the rule that the others are compared with.
        lengths: tokens a step of ``run`` and of ``other``, on their common prompts.
        part: each common prompt's part in the scatter of the gain (metrics/speed.py).
    """

    setting: str
    run: RuledRun
    other: RuledRun
    lengths: tuple[float, float]
    part: np.ndarray

    @property
    def gain(self) -> float:
        """log(other / run)."""
        return math.log(self.lengths[1] / self.lengths[0])

    def half_width(self, tail: float) -> float:
        """Of the interval of the gain; infinite for one prompt."""
        return half_width([batch_variance(self.part)], tail) if len(self.part) > 1 else math.inf

    def ratio(self, tail: float) -> str:
        """How many times as many tokens a step ``other`` has, with its interval."""
        half = self.half_width(tail)
        return interval(math.exp(self.gain), math.exp(self.gain - half), math.exp(self.gain + half))


def tokens_a_step(run_dir: Path, results: pd.DataFrame, settings: Sequence[str]) -> list[Markup]:
    """A verdict for each rule beside the first one (the token rule, if it ran): where it yields more tokens a step, and
    where the difference is within chance; none if the sweep has one rule.

    Intervals are of Student's t over prompts, all comparisons together at 95% (Bonferroni).

    Args:
        run_dir: the sweep's folder, whose jobs have step logs.
        settings: columns that are equal in two runs that are compared, at least one; a run is called by their values.
    """
    comparisons = list(_comparisons(results, settings, read_jobs(run_dir, STEPS)))
    tail = (1 - CONFIDENCE) / 2 / max(len(comparisons), 1)
    by_rules: dict[tuple[str, str], list[RunComparison]] = {}
    for comparison in comparisons:
        by_rules.setdefault((comparison.other.rule, comparison.run.rule), []).append(comparison)
    return [_verdict(pair, tail, run_dir) for pair in by_rules.values()]


def prompts_of(run_dir: Path, results: pd.DataFrame) -> int:
    """The fewest prompts that a run's intervals are over; a conversation is one.

    Args:
        results: rows of results.RunRow, whose turns are counted if there is no step log.
    """
    steps = read_jobs(run_dir, STEPS)
    if steps.empty:
        return int(results[Run.prompts].min())
    return min(len(totals_by_prompt(rows)) for _, rows in steps.groupby(Run.job))


def _comparisons(results: pd.DataFrame, settings: Sequence[str], steps: pd.DataFrame) -> Iterator[RunComparison]:
    if steps.empty:
        return
    totals = {job: totals_by_prompt(rows) for job, rows in steps.groupby(Run.job)}
    drafting = results[results[Run.job].isin(list(totals)) & (results[Run.gamma] > 0)]
    rules = {verifier: info.name for verifier, info in rules_by_verifier().items()}
    drafting = drafting.assign(rule=[rules.get(name, name) for name in drafting[Run.verifier]])
    for values, rows in drafting.groupby(list(settings), sort=False, dropna=False):
        setting = ", ".join(f"{name} {plain(value)}" for name, value in zip(settings, values, strict=True))
        one_a_rule = typed(rows.drop_duplicates(Run.rule), RuledRun)
        first, *others = sorted(one_a_rule, key=lambda run: run.rule != TOKEN.name)
        for other in others:
            common = totals[first.job].index.intersection(totals[other.job].index)
            if common.empty:
                continue
            (old, old_steps), (new, new_steps) = (
                (total.loc[common, Totals.emitted].to_numpy(), total.loc[common, Totals.steps].to_numpy())
                for total in (totals[first.job], totals[other.job])
            )
            lengths = float(old.sum() / old_steps.sum()), float(new.sum() / new_steps.sum())
            yield RunComparison(setting, first, other, lengths, parts(new, new_steps, old, old_steps))


def _verdict(comparisons: Sequence[RunComparison], tail: float, run_dir: Path) -> Markup:
    other, first = comparisons[0].other.verifier, comparisons[0].run.verifier
    more, fewer, equal, unknown = ([] for _ in range(4))
    for comparison in comparisons:
        gain, half = comparison.gain, comparison.half_width(tail)
        kind = equal if gain == 0 else unknown if abs(gain) <= half else more if gain > 0 else fewer
        kind.append(comparison)
    replay = _replay_command(unknown, run_dir) if unknown else None
    return words("between.tokens_a_step", other, first, more, fewer, equal, unknown, tail, replay)


def _replay_command(unknown: Sequence[RunComparison], run_dir: Path) -> Markup | None:
    """What replays a trace, whose texts both rules then share; None if there is none, so that more prompts must do."""
    first, other = unknown[0].run, unknown[0].other
    path = run_dir / str(first.job) / TRACE
    own = [run for run in (first, other) if run.rule not in RULES or not RULES[run.rule].of_this_tree]
    known = all(run.rule in RULES and RULES[run.rule].token_cost is not None for run in (first, other))
    if not path.is_file() or not known or len(own) > 1:
        return None
    sampling = sampling_of(first)
    alike = [comparison.run for comparison in unknown if sampling_of(comparison.run) == sampling]
    gammas = ",".join(dict.fromkeys(plain(run.gamma) for run in alike))
    numbers = {name: plain(getattr(first, name)) for name in NUMBERS if first.sampler != DEFAULT or name in sampling}
    shaped = {name: sampling[name] for name in SHAPING if isinstance(sampling.get(name), int | float)}  # as traces say
    sampler = numbers | shaped
    command = [
        *("python", "-m", "specbench", "protocol=replay", f"protocol.trace={path}", f"protocol.planned=[{gammas}]"),
        *([] if first.sampler == DEFAULT else [f"sampler={first.sampler}"]),
        *(f"sampler.{name}={value}" for name, value in sampler.items()),
        *(word for run in own for word in _verifier_words(run)),
    ]
    return code(shlex.join(command))


def _verifier_words(run: RunRow) -> list[str]:
    """Returns the words of a command line that name the verifier of a run by its class and its arguments."""
    settings = json.loads(run.config or "{}")["verifier"]
    target = settings.pop("_target_")
    return [f"verifier._target_={target}", *(f"+verifier.{name}={value}" for name, value in settings.items())]


def agreement(results: pd.DataFrame, axis: str) -> list[Markup]:
    """For each rule, whether its verifiers accepted the same tokens; nothing for a rule of which fewer than two ran."""
    settings = [axis, *distinguishing_columns(results, axis, Run.verifier)]
    families = (results[results[Run.verifier].isin(list(info.verifiers))] for info in RULES.values())
    return [text for family in families if (text := _agreement(family, axis, settings))]


def _agreement(family: pd.DataFrame, axis: str, settings: Sequence[str]) -> Markup:
    groups = family.groupby(list(settings), sort=False, dropna=False)
    compared = [rows for _, rows in groups if rows[Run.verifier].nunique() > 1]
    if not compared:
        return Markup("")
    differing = [
        plain(rows[axis].iloc[0]) for rows in compared if rows[Run.acceptance_histogram].map(tuple).nunique() > 1
    ]
    return words(
        "between.agreement", family[Run.verifier].unique(), len(compared), axis, list(dict.fromkeys(differing))
    )
