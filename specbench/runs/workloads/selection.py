"""Which rows of a workload are used: filters by column, pooled categories, the first of each, and a shuffle."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.machine.files import shown
from specbench.runs.workloads.prompts import Prompt
from specbench.runs.workloads.sources import WorkloadRow

KEY = "workload.where"


class Where:
    """Filters such as ``category=math``: a row is kept if it has one of the values given for each column named.

    Args:
        filters: "column=value"; values are compared as text.

    Raises:
        ConfigError: a filter without "=".
    """

    def __init__(self, filters: Sequence[str]):
        self.filters = list(filters)
        self.wanted: dict[str, set[str]] = {}
        self.seen: dict[str, set[str]] = {}
        for text in filters:
            column, equals, value = str(text).partition("=")
            if not equals or not column:
                remedy = "Give a list such as ['category=math','category=coding']: rows with one of these values."
                raise ConfigError(KEY, self.filters, f"{shown(text)} is no column=value", remedy)
            self.wanted.setdefault(column, set()).add(value)

    def kept(self, rows: Iterable[WorkloadRow]) -> Iterator[WorkloadRow]:
        """The rows that every column's filter keeps."""
        for row in rows:
            if not self.wanted or (isinstance(row.value, Mapping) and self._keeps(row.value)):
                yield row

    def _keeps(self, row: Mapping[str, Any]) -> bool:
        for column in self.wanted:
            self.seen.setdefault(column, set()).add(str(row[column]) if column in row else "")
        return all(column in row and str(row[column]) in values for column, values in self.wanted.items())

    def nothing(self) -> ConfigError:
        """The error to raise if no row was kept: it says what values there are."""
        columns = [
            f"{column} is {', '.join(sorted(shown(value) for value in values - {''})[:12]) or 'in no row'}"
            for column, values in self.seen.items()
        ]
        return ConfigError(KEY, self.filters, f"no row is kept ({'; '.join(columns)})", "Choose among these values.")


def pooled(prompts: Iterable[Prompt], pool: Mapping[str, str]) -> Iterator[Prompt]:
    """Prompts with the category that theirs becomes, if the pool names it."""
    return (dataclasses.replace(prompt, category=pool.get(prompt.category, prompt.category)) for prompt in prompts)


def first_of_each(prompts: Iterable[Prompt], count: int) -> Iterator[Prompt]:
    """The first ``count`` prompts of each category, in their order."""
    seen: Counter[str] = Counter()
    for prompt in prompts:
        seen[prompt.category] += 1
        if seen[prompt.category] <= count:
            yield prompt


def shuffled(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Prompts in another order, in which every beginning holds the categories in their shares of the whole.

    The i-th of n prompts of a category stands at (i + 1/2) / n of the way, so that the first N of the list differ from
    each category's share by less than one prompt.
    """
    generator = random.Random(seed)
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    strata = list(by_category.values())
    generator.shuffle(strata)  # which of two categories of one size comes first
    for stratum in strata:
        generator.shuffle(stratum)
    placed = [((i + 0.5) / len(stratum), prompt) for stratum in strata for i, prompt in enumerate(stratum)]
    return [prompt for _, prompt in sorted(placed, key=lambda pair: pair[0])]
