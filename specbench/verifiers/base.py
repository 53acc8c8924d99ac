"""What a verifier is, and what it may offer beyond that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules.cards import Card

# How a sampler that is itself under test draws: true rows and uniforms -> tokens, and the rows it says they are from.
DraftSampler = Callable[[LogitRows, Float64[Tensor, " n"]], tuple[Int64[Tensor, " n"], LogitRows]]


@runtime_checkable
class Verifier(Protocol):
    """A pure function of the draft, the target's distributions and the random streams.

    It may have the attributes of :class:`Offers` as well, and is read through :func:`offers`, which knows what holds
    for one that does not.
    """

    @property
    def rule(self) -> str | Card:
        """The sampling rule that it follows, by the name of one that specbench knows, or a Rule (rules/rule.py).

        Verifiers of one rule emit the same tokens from the same streams, which the agreement tests hold them to; a
        verifier with randomness of its own has a rule of its own, any other name. ``rules.known.of`` reads it.
        """
        ...

    @property
    def lossless(self) -> bool:
        """Whether the emitted tokens are declared to be distributed exactly as the target's own.

        The exactness tests hold a verifier to its word.
        """
        ...

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """Accepts a prefix of each request's draft, or of one path if it is a tree, and emits one token after it.

        Args:
            draft: n drafted tokens of B requests.
            target: n + B rows, for each request the one after its text and then one after each drafted token.
            streams: the step's uniforms; a verifier uses ACCEPT at offset i for drafted token i and EMIT at offset 0.

        Raises:
            ArgumentError: arguments that do not fit together, or values that no rule can handle; see
                :func:`specbench.core.arguments.check`.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """What a verifier cannot do; ``verify`` raises ArgumentError for a batch that needs it.

    Attributes:
        device: the only kind of device it runs on; None for any.
        ragged: requests may draft different numbers of tokens.
        empty: a request may draft no token.
        batch_invariant: a request's tokens do not depend on the batch or its place there.
        capturable: a call can be captured in a CUDA graph once it was made with the same tensors.
    """

    device: str | None = None
    ragged: bool = True
    empty: bool = True
    batch_invariant: bool = True
    capturable: bool = True


@dataclass(frozen=True)
class Offers:
    """What a verifier may have beside ``rule``, ``lossless`` and ``verify``, and what holds if it does not have it.

    Attributes:
        limits: what it cannot do.
        interpreted: whether its kernels run through an interpreter, for want of a GPU, so that its times say nothing;
            None if it has no kernels.
        takes_padded: whether it takes drafts whose rows are padded (``Draft.padded``).
        takes_trees: whether it takes drafts that are trees (``Draft.parents``), beside chains.
        takes_masks: whether it applies ``LogitRows.allowed`` of the target. If not, banned tokens have logit -inf.
        synthetic: whether it accepts at rates that are given, whatever the target thinks: texts are then nobody's.
        least_gamma: the gamma without which it cannot do what it was asked for.
        draft_tokens: draws the drafts in place of the fixtures, for a sampler that is itself under test.
    """

    limits: Limits = Limits()
    interpreted: bool | None = None
    takes_padded: bool = False
    takes_trees: bool = False
    takes_masks: bool = False
    synthetic: bool = False
    least_gamma: int = 0
    draft_tokens: DraftSampler | None = None


def offers(verifier: object) -> Offers:
    """What a verifier offers, by the attributes that it has."""
    names = [each.name for each in dataclasses.fields(Offers)]
    return Offers(**{name: getattr(verifier, name) for name in names if hasattr(verifier, name)})
