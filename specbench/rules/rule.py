"""What a rule is: its card, and what it does in a step, as formulas of p and q along a draft.

The formulas give each request its own numbers, whatever stands beside it and however wide the batch is.

A rule compares a uniform with a threshold for each drafted token, accepts so many tokens as its comparisons say, and
draws one more: from the target after a whole draft, else from a residual. Its law over steps, what it emits for given
uniforms, plain code that follows it and the explanation of a difference by rounding all follow from these formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows
from specbench.rules.along import Along
from specbench.rules.cards import Card
from specbench.rules.reference import ReferenceVerifier
from specbench.verifiers import Verifier

# What the comparisons of u_i with the thresholds say: accepted is all before the first i that fails (each token answers
# for itself), or all up to the last i that succeeds (prefixes are accepted as wholes).
FIRST_REFUSAL, LAST_SUCCESS = "first refusal", "last success"
Decides = Literal["first refusal", "last success"]
ErrorsOf = Callable[[Draft, LogitRows, Streams, Tensor], Tensor]


def positive_part(p: Float64[Tensor, "m V"], q: Float64[Tensor, "m V"]) -> Float64[Tensor, "m V"]:
    """max(p - q, 0), the residual of the token and the block rule."""
    return (p - q).clamp(min=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule(Card):
    """A rule; see :class:`specbench.rules.cards.Card` for what it is called and what it promises.

    A rule of which no formulas are known has a card alone, and is None in all that follows.

    Attributes:
        thresholds: of the drafts: [m, gamma], token i passes if u_i, the uniform ACCEPT at offset i, is below it.
        decides: what the comparisons say together.
        prefix_weights: of the drafts: [m, gamma + 1], what p is multiplied by in the residual after 0, 1, ... accepted
            tokens; None for 1, and the residual then depends on the row alone.
        residual: of the weighted p and q: [m, V], what the token after the accepted ones is drawn from by
            ``inverse_cdf`` with the uniform EMIT at offset 0, unless all were accepted; not normalised. If it is 0
            everywhere, which comes of rounding, the token is drawn from p, as it is after a whole draft.
        decision_errors: of draft, target, streams and numbers of accepted tokens: [B], the least relative error of p
            and q from which so many would have been accepted. None: the least relative error of the thresholds.
        reference: plain code that follows the rule, in float64. None: it is made of the formulas.

    Raises:
        ArgumentError: a reference without thresholds.
    """

    thresholds: Callable[[Along], Tensor] | None = None
    decides: Decides = FIRST_REFUSAL
    prefix_weights: Callable[[Along], Tensor] | None = None
    residual: Callable[[Tensor, Tensor], Tensor] = positive_part
    decision_errors: ErrorsOf | None = None
    reference: Verifier | None = None

    def __post_init__(self) -> None:
        if self.thresholds is None and self.reference is not None:
            raise ArgumentError(
                f"rule={self.name}: a reference without thresholds, so that no difference from it could be explained. "
                "Give the rule its thresholds."
            )
        if self.thresholds is not None and self.reference is None:
            object.__setattr__(self, "reference", ReferenceVerifier(self))

    @classmethod
    def of(cls, card: Card, **formulas: Any) -> Rule:
        """A card's rule."""
        return cls(**vars(card), **formulas)

    @property
    def has_law(self) -> bool:
        """Whether its formulas are known."""
        return self.thresholds is not None

    @property
    def lossless(self) -> bool:
        """Whether it promises to be."""
        return self.guarantee == "lossless"

    def limits(self, along: Along) -> Float64[Tensor, "m gamma"]:
        """The thresholds, 0 behind each draft.

        Raises:
            ArgumentError: a rule whose formulas are not known.
        """
        if self.thresholds is None:
            raise ArgumentError(f"rule={self.name}: its formulas are not known here. Give it thresholds.")
        thresholds = self.thresholds(along)
        places = torch.arange(thresholds.shape[1], device=thresholds.device)
        return torch.where(places < along.counts[:, None], thresholds, 0.0)

    def num_accepted(
        self, thresholds: Float64[Tensor, "m gamma"], u: Float64[Tensor, "m gamma"]
    ) -> Int64[Tensor, " m"]:
        """How many tokens are accepted with some uniforms."""
        passed = (u < thresholds).long()
        if self.decides == FIRST_REFUSAL or passed.shape[1] == 0:
            return passed.cumprod(dim=1).sum(dim=1)
        return (passed * torch.arange(1, passed.shape[1] + 1, device=u.device)).amax(dim=1)

    def num_decided(
        self, num_accepted: Int64[Tensor, " B"], num_draft_tokens: Int64[Tensor, " B"]
    ) -> Int64[Tensor, " B"]:
        """How many drafted tokens of each request a uniform decided on."""
        if self.decides == LAST_SUCCESS:
            return num_draft_tokens  # it looks at all of them
        return torch.minimum(num_accepted + 1, num_draft_tokens)

    def deciding_offset(self, one: int, other: int) -> int:
        """The comparison that went both ways if two outcomes accept different numbers of tokens."""
        return max(one, other) - 1 if self.decides == LAST_SUCCESS else min(one, other)

    def weights_after(self, along: Along, num_accepted: Int64[Tensor, " m"]) -> Float64[Tensor, "m V"]:
        """What the token after the accepted ones is drawn from, not normalised."""
        p, q = along.rows_after(num_accepted)
        scaled = p
        if self.prefix_weights is not None:
            scaled = self.prefix_weights(along).gather(1, num_accepted[:, None]) * p
        left = self.residual(scaled, q)
        bonus = (num_accepted == along.counts)[:, None]
        return torch.where(bonus | ~(left.sum(dim=1, keepdim=True) > 0), p, left)
