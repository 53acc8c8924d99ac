"""A call of ``verify``, and what a rule emits for it: what code is held against.

Nothing here is shared with a verifier: p and q are looked up in tables, and the formulas are those of rules/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.exactness.fixtures.table import first_above
from specbench.rules import agreement
from specbench.rules.draft_path import DraftPathTables
from specbench.rules.rule import Rule, rule_of
from specbench.rules.verifier import Verifier, capabilities

_CELLS = 2**23  # probabilities held side by side
_EXPLAINED = 512  # requests that are explained at once


def held_against(verifier: Verifier) -> Rule | None:
    """The rule whose formulas say what each step of a verifier emits.

    None if its rule has no formulas here, or if it draws the drafts by itself, from distributions of its own.
    """
    rule = rule_of(verifier)
    return rule if rule.has_law and capabilities(verifier).draft_tokens is None else None


@dataclass(frozen=True)
class VerifyCall:
    """One call of ``verify``.

    Attributes:
        name: what messages call it: a fixture, or a call of the input distribution D.
        draft, target, streams: the verifier's arguments.
    """

    name: str
    draft: Draft
    target: LogitRows
    streams: Streams

    @property
    def counts(self) -> Int64[Tensor, " B"]:
        """Draft tokens of each request."""
        return self.draft.num_draft_tokens

    @property
    def vocabulary(self) -> int:
        """Tokens."""
        return self.target.logits.shape[1]

    def only(self, requests: Int64[Tensor, " m"]) -> VerifyCall:
        """The call with some of its requests alone."""
        return VerifyCall(self.name, *agreement.only(requests, self.draft, self.target, self.streams))

    def well_formed(self, result: Verification) -> Bool[Tensor, " B"]:
        """Which requests have a result of the form that every rule gives."""
        return agreement.well_formed(self.draft, self.target, result)

    def beyond_rounding(self, rule: Rule, result: Verification, requests: Int64[Tensor, " m"]) -> Int64[Tensor, " k"]:
        """Returns those of some requests whose result is not the rule's, beyond rounding.

        If rounding explains less than half of some hundreds, the code follows another rule, and all others count too.

        Args:
            result: of all requests.
        """
        if not len(requests):
            return requests
        parts, cells = [], self.vocabulary * (self.draft.max_draft_tokens + 1)
        split = requests.split(max(1, min(_EXPLAINED, _CELLS // 2 // cells)))
        for i, part in enumerate(split):
            one = self.only(part)
            excess = agreement.excess(rule, one.draft, one.target, one.streams, result.select(part))
            unlike = part[excess > agreement.TOLERANCE]
            parts.append(unlike)
            if len(part) == _EXPLAINED and 2 * len(unlike) > len(part):
                return torch.cat([*parts, *split[i + 1 :]])
        return torch.cat(parts)


class TabledCall(VerifyCall, ABC):
    """A call whose probabilities along the drafts are known in float64, and with them what a rule emits."""

    @property
    @abstractmethod
    def path(self) -> DraftPathTables:
        """p and q along the drafts."""

    def expected(self, rule: Rule) -> Verification:
        """The outcome of a rule, by its formulas, which are known, and these probabilities. No verifier's code.

        The accepted draft tokens of each request, then the emitted one, then PADDING. Waits for no device.
        """
        path, tokens = self.path, self.path.tokens
        num_accepted = rule.num_accepted(rule.limits(path), self.streams.uniform(Stream.ACCEPT)[:, : tokens.shape[1]])
        emitted = first_above(rule.weights_after(path, num_accepted), self.streams.uniform(Stream.EMIT)[:, 0])
        stand = torch.arange(tokens.shape[1], device=tokens.device) < num_accepted[:, None]
        ids = torch.nn.functional.pad(torch.where(stand, tokens, PADDING), (0, 1), value=PADDING)
        return Verification(ids.scatter(1, num_accepted[:, None], emitted[:, None]), num_accepted)
