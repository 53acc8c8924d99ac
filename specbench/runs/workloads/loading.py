"""From a path to the prompts of a run, and the sentence that says how the file was read."""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from specbench.core.machine.files import Origin, shown
from specbench.runs.config import AUTO, EMBEDDED, WORKLOAD_FILES, WorkloadConfig
from specbench.runs.workloads.columns import KNOWN, Columns
from specbench.runs.workloads.prompts import Prompt, prompt_of
from specbench.runs.workloads.requests import FIELDS, unwrapped
from specbench.runs.workloads.selection import Where, first_of_each, pooled, shuffled
from specbench.runs.workloads.sources import WorkloadRow, rows

KEY = "workload.path"
FORMAT = (
    'Each line must be a JSON object with a non-empty string "prompt", or "turns" or "messages"; workload.columns '
    "names other columns, and the guide on workloads says what else a line may hold."
)
_MOST_NAMED = 16  # categories that are listed


@dataclass(frozen=True)
class Workload:
    """The prompts of a run, where they were read, and which categories were to be pooled."""

    path: str
    prompts: list[Prompt]
    pool: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """What was read, in one line: how many prompts, from which columns, and what else they hold."""
        columns = dict.fromkeys(name for prompt in self.prompts for name in prompt.columns)
        parts = [f"{len(self.prompts)} prompts of {self.path}", f"columns: {', '.join(columns)}"]
        categories = Counter(prompt.category for prompt in self.prompts if prompt.category)
        if categories:
            named = [f"{name} {count}" for name, count in categories.items()]
            more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
            parts.append(f"categories: {', '.join([*named[:_MOST_NAMED], *more])}")
        if self.pool and not categories.keys() & {*self.pool.values()}:
            parts.append("workload.pool names none of their categories")
        turns = sum(bool(prompt.further) for prompt in self.prompts)
        sampled = sum(bool(prompt.sampling) or prompt.seed is not None for prompt in self.prompts)
        parts += [f"{turns} with further turns"] if turns else []
        parts += [f"{sampled} with sampling parameters of their own"] if sampled else []
        return "; ".join(parts)


def load_prompts(path: str, limit: int = 0) -> list[Prompt]:
    """The first ``limit`` prompts of a file or folder (0: all); ``embedded:NAME`` is a file of this package.

    Raises:
        ConfigError: see :func:`load_workload`.
    """
    return load_workload(WorkloadConfig(path=path, limit=limit)).prompts


def load_workload(settings: WorkloadConfig) -> Workload:
    """The prompts that a configuration asks for.

    Raises:
        ConfigError: a missing, unreadable or empty file; a malformed line (which); filters that keep nothing.
    """
    path = settings.path
    embedded = path.startswith(EMBEDDED)
    place = Path(__file__).parent / path.removeprefix(EMBEDDED) if embedded else Path(os.path.expanduser(path))
    source = Origin(KEY, path, WORKLOAD_FILES)
    entries = Origin(KEY, path, FORMAT)
    where = Where(settings.where)
    requests = where.kept(_requests(rows(place, source, entries, settings.split), settings))
    pool = {str(category): str(name) for category, name in (settings.pool or {}).items()}
    prompts = pooled(_prompts(requests, settings), pool)
    if settings.shuffle is not None:
        prompts = iter(shuffled(list(prompts), settings.shuffle))
    if settings.per_category:
        prompts = first_of_each(prompts, settings.per_category)
    kept = list(islice(prompts, settings.limit or None))
    if not kept:
        raise where.nothing() if where.seen else entries.wrong("no prompts in the file")
    return Workload(path, kept, pool)


def _requests(rows: Iterator[WorkloadRow], settings: WorkloadConfig) -> Iterator[WorkloadRow]:
    names = {getattr(settings.columns, role) for role in KNOWN}
    read = names.union(*KNOWN.values(), FIELDS if settings.parameters else ())
    for row in rows:
        yield dataclasses.replace(row, value=unwrapped(row, read))


def _prompts(rows: Iterator[WorkloadRow], settings: WorkloadConfig) -> Iterator[Prompt]:
    first, names = None, set()
    for row in rows:
        if not isinstance(row.value, dict):
            raise row.unusable("not a JSON object")
        first = first or Columns.of(settings.columns, row.value)
        columns = first.of_line(settings.columns, row.value)
        for name in (settings.columns.id, settings.columns.category):
            if name not in (AUTO, None, *row.value):
                problem = f"{row.place} has no {shown(name)}; it has {shown(', '.join(row.value))}"
                raise row.origin.wrong(problem, "Name another column by workload.columns, or null for none.")
        prompt = prompt_of(row, columns, settings.parameters)
        if used := [name for name in prompt.turn_names if name in names]:
            remedy = "Names must be unique; workload.columns.id names another column, or null to number the rows."
            raise row.wrong(f"{columns.id} {used[0]!r} was used before", remedy)
        names.update(prompt.turn_names)
        yield prompt
