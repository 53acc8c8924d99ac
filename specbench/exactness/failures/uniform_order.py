"""A rule whose uniforms are read elsewhere: of a shifted offset, of another stream, or of a test that has used them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.rules.draft_path import DraftPathBatch
from specbench.rules.rule import Rule
from specbench.sampling import inverse_cdf

Offsets = Callable[[Int64[Tensor, " gamma"]], Int64[Tensor, " gamma"]]
EmitReader = Callable[[Streams, Int64[Tensor, " B"], Int64[Tensor, " B"]], Float64[Tensor, " B"]]


def _at(stream: Stream, offset: int) -> EmitReader:
    return lambda streams, accepted, counts: streams.uniform(stream)[:, min(offset, streams.width - 1)]


def _behind_accepted(stream: Stream) -> EmitReader:
    return lambda streams, accepted, counts: streams.uniform(stream).gather(1, accepted[:, None])[:, 0]


def _of_refusal(streams: Streams, accepted: Int64[Tensor, " B"], counts: Int64[Tensor, " B"]) -> Float64[Tensor, " B"]:
    own, refusing = streams.uniform(Stream.EMIT)[:, 0], _behind_accepted(Stream.ACCEPT)(streams, accepted, counts)
    return torch.where(accepted < counts, refusing, own)


# Where code reads the uniforms of its tests of drafted tokens i, and of its draw; first the rule's own places.
_TESTS: dict[str, tuple[Stream, Offsets]] = {
    "ACCEPT at offset i": (Stream.ACCEPT, lambda i: i),
    "ACCEPT at offset i + 1": (Stream.ACCEPT, lambda i: i + 1),
    "ACCEPT at offset i - 1 (of the first, the last offset)": (Stream.ACCEPT, lambda i: i - 1),
    "ACCEPT at offset i - 1 (of the first, offset 0)": (Stream.ACCEPT, lambda i: (i - 1).clamp(min=0)),
    "ACCEPT at offset 0": (Stream.ACCEPT, torch.zeros_like),
    "EMIT at offset i": (Stream.EMIT, lambda i: i),
    "DRAFT at offset i": (Stream.DRAFT, lambda i: i),
}
_DRAWS: dict[str, EmitReader] = {
    "EMIT at offset 0": _at(Stream.EMIT, 0),
    "EMIT at offset 1": _at(Stream.EMIT, 1),
    "EMIT at offset num_accepted": _behind_accepted(Stream.EMIT),
    "ACCEPT at offset 0": _at(Stream.ACCEPT, 0),
    "ACCEPT at offset num_accepted, which also refused the drafted token": _behind_accepted(Stream.ACCEPT),
    "ACCEPT at offset num_accepted if that refused a drafted token, and with EMIT at offset 0 if not": _of_refusal,
    "DRAFT at offset num_accepted": _behind_accepted(Stream.DRAFT),
}


@dataclass(frozen=True)
class OtherUniforms:
    """The verifier of a rule's formulas that reads other uniforms.

    Args:
        rule: one whose formulas are known.
        tests, draws: keys of the places above, of the accept tests and of the recovered or bonus token.
    """

    rule: Rule
    tests: str
    draws: str
    lossless: bool = False

    @property
    def described(self) -> str:
        """What is read elsewhere, in a sentence."""
        own_test, own_draw = next(iter(_TESTS)), next(iter(_DRAWS))
        parts = [f"drafted token i is tested with {self.tests}"] if self.tests != own_test else []
        parts += [f"the recovered or bonus token is drawn with {self.draws}"] if self.draws != own_draw else []
        return f"Uniforms are read elsewhere than by the {self.rule.title}: {', and '.join(parts)}."

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        path, (stream, offsets) = DraftPathBatch(draft, target), _TESTS[self.tests]
        places = torch.arange(draft.max_draft_tokens, device=streams.seeds.device)
        u = streams.uniform(stream)[:, offsets(places)]
        num_accepted = self.rule.num_accepted(self.rule.limits(path), u)
        weights = self.rule.weights_after(path, num_accepted)
        emit = _DRAWS[self.draws](streams, num_accepted, draft.num_draft_tokens)
        return batched.assemble(draft, num_accepted, inverse_cdf(weights, emit))


@functools.cache
def other_orders(rule: Rule) -> tuple[OtherUniforms, ...]:
    """A rule with every choice of places but its own, first those that differ in one place."""
    own, *others = (OtherUniforms(rule, tests, draws) for tests, draws in product(_TESTS, _DRAWS))
    return tuple(sorted(others, key=lambda order: (order.tests != own.tests) + (order.draws != own.draws)))
