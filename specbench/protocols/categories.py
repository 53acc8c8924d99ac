"""Acceptance and speedup of each category of a workload: the rows of ``categories.parquet``.

A category's speedup is the speedup of the batches that hold no other category; if one of its batches does, what it
gained there is not known, and the speedup is None. ``batch_size=1`` or ``protocol.group=category`` keeps categories
apart.
"""

import numpy as np
import pandas as pd

from specbench.metrics.acceptance import acceptance_columns, totals_by_prompt
from specbench.metrics.intervals import columns
from specbench.metrics.results import CategoryRow
from specbench.metrics.speed import Rounds, speed_of
from specbench.protocols.rounds import TimedRounds


def by_category(steps: pd.DataFrame, timed: TimedRounds) -> list[CategoryRow]:
    """A row a category, in the workload's order; none if the workload has no categories.

    Args:
        steps: the step log, with a column ``category``.
        timed: the rounds that it is of.
    """
    categories = [list(dict.fromkeys(c.request.category for c in batch.completions)) for _, batch in timed.first]
    names = list(dict.fromkeys(name for batch in categories for name in batch))
    if names in ([], [""]):
        return []
    return [_row(name, steps[steps["category"] == name], _times_of(name, categories, timed.times)) for name in names]


def _times_of(name: str, categories: list[list[str]], times: Rounds) -> Rounds | None:
    """The times of the batches of one category; None if one of them holds another as well."""
    places = [place for place, batch in enumerate(categories) if name in batch]
    if any(len(categories[place]) > 1 for place in places):
        return None
    return Rounds(*(column[:, places] for column in vars(times).values()))


def _row(name: str, steps: pd.DataFrame, times: Rounds | None) -> CategoryRow:
    totals = totals_by_prompt(steps)
    speed = None if times is None else speed_of(times)
    return CategoryRow(
        category=name,
        prompts=len(totals),
        texts=steps["prompt"].nunique(),
        **acceptance_columns(totals),
        tokens_per_second=None if speed is None else _rate(speed.tokens, speed.seconds),
        plain_tokens_per_second=None if speed is None else _rate(speed.plain_tokens, speed.plain_seconds),
        **columns("speedup", None if speed is None else speed.speedup),
    )


def _rate(tokens: np.ndarray, seconds: np.ndarray) -> float:
    return float(tokens.sum() / seconds.sum())
