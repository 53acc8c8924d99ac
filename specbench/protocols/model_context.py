"""What a protocol with models gets. It alone knows of models here, since importing transformers takes seconds."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specbench.decoding import Decoder, DecodingEngine, EagerEngine, Request
from specbench.drafters import Drafter
from specbench.models import CachedModel, Pair
from specbench.protocols.protocol import RunContext

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class ModelContext(RunContext):
    """What a run with models is made of.

    Attributes:
        drafter: bound to the pair.
        names: of the target and the draft, as they were asked for.
        threads_reason: why PyTorch uses the number of CPU threads that it does.
    """

    pair: Pair
    target: CachedModel
    drafter: Drafter
    requests: Sequence[Request]
    names: tuple[str, str] = ("target", "draft")
    engine: DecodingEngine = field(default_factory=EagerEngine)
    threads_reason: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        differing = [request for request in self.requests if request.sampling != self.sampling]
        return {
            **super().columns,
            "draft_temperature": self.drafter.temperature,
            "threads_reason": self.threads_reason,
            "engine": self.engine.name,
            "prompt_chunk": self.engine.prompt_chunk,
            "prompts": count_prompts(self.requests),
            "own_sampling": count_prompts(differing),  # whose lines have sampling parameters that are not the row's
        }

    def batches(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """Requests in batches of batch_size, in their order."""
        return in_groups(requests, self.batch_size)

    def decoder(self, gamma: int | None = None) -> Decoder:
        """Decodes with the run's pair, drafter, verifier and engine.

        Args:
            gamma: tokens drafted a step; None is the run's, 0 decodes plainly.
        """
        gamma = self.gamma if gamma is None else gamma
        drafter, verifier = (self.drafter, self.verifier) if gamma > 0 else (None, None)
        pair = self.pair
        return Decoder(self.target, drafter, verifier, gamma, pair.stop_ids, self.engine, pair.tokenizer)


def count_prompts(requests: Iterable[Request]) -> int:
    """Returns the number of prompts of requests: the texts of a prompt count once, turns of a conversation singly."""
    return len({request.prompt_name for request in requests})


def in_groups(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Items in groups of ``size``, in their order; the last may be smaller."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def unit_of(request: Request) -> str:
    """The prompt or conversation of a request, of which intervals are: its texts depend on each other."""
    return str(request.labels["conversation"])


def in_prompt_groups(requests: Sequence[Request], size: int) -> list[Sequence[Request]]:
    """Requests in groups of at least ``size``, in their order; the last may be smaller.

    No group ends between the texts of a prompt or the turns of a conversation: their times depend on each other, and
    the interval of a speedup takes groups as independent.
    """
    groups: list[list[Request]] = []
    for _, texts in itertools.groupby(requests, unit_of):
        if not groups or len(groups[-1]) >= size:
            groups.append([])
        groups[-1] += texts
    return [*groups]


def first_of_units(batches: Sequence[Sequence[Request]]) -> list[int]:
    """Returns the indices of the batches that do not go on with the prompt or conversation of the batch before.

    From each of them to the next is a unit of an interval: batches that share a prompt depend on each other.

    Args:
        batches: in an order in which the texts of a prompt, and the turns of a conversation, follow one another.
    """
    ends = [(unit_of(batch[0]), unit_of(batch[-1])) for batch in batches]
    return [i for i, (first, _) in enumerate(ends) if i == 0 or first != ends[i - 1][1]]
