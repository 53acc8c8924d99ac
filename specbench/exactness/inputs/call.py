"""One call of ``verify``: its arguments, what was drawn for them, and their probabilities in float64."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.exactness.inputs.distribution import Stratum
from specbench.exactness.reference import TabledCall
from specbench.rules.draft_path import DraftPathTables
from specbench.rules.verifier import DraftSampler, capabilities


def fresh_seed() -> int:
    """A seed for the calls of one certificate that no earlier one had, so that no code can be made for its inputs."""
    return secrets.randbelow(10**12)


@dataclass(frozen=True)
class Takes:
    """What a verifier takes; D is drawn without what it does not take, and a certificate says so.

    Attributes:
        padded: drafts whose rows are padded.
        ragged: requests of one call that draft different numbers of tokens.
        empty: requests that draft nothing.
        masks: bans as ``target.allowed``; without, banned tokens have logit -inf in all calls.
        draft_tokens: the verifier's own sampler of draft tokens, if it has one.
    """

    padded: bool = True
    ragged: bool = True
    empty: bool = True
    masks: bool = False
    draft_tokens: DraftSampler | None = None

    @staticmethod
    def of(verifier: object) -> Takes:
        """By the attributes that a verifier has."""
        own = capabilities(verifier)
        return Takes(own.takes_padded, own.limits.ragged, own.limits.empty, own.takes_masks, own.draft_tokens)

    @property
    def left_out(self) -> list[str]:
        """What D is drawn without."""
        kinds = {
            "padded drafts: `takes_padded` is not set": self.padded,
            "requests of one call that draft different numbers of tokens: `limits.ragged` is False": self.ragged,
            "requests that draft nothing: `limits.empty` is False": self.empty,
            "drafts but its own: it has `draft_tokens`": self.draft_tokens is None,
        }
        return [kind for kind, taken in kinds.items() if not taken]


EVERYTHING = Takes()


@dataclass(frozen=True)
class Call(TabledCall):
    """One call of D.

    Attributes:
        seed, number: of the certificate's inputs, and of the call among them: ``draw_call`` makes it again from these.
        stratum: that it was drawn from.
        options: what was drawn for the call, and for each request, by the name of the choice.
        p, q: the target's rows and the draft's in float64; q is None for one-hot drafts.
    """

    seed: int
    number: int
    stratum: Stratum
    options: dict[str, Any]
    p: Float64[Tensor, "n V"]
    q: Float64[Tensor, "m V"] | None

    def alone(self, request: int, count: int | None = None) -> Call:
        """One request without its company, its rows dense and without padding.

        Args:
            count: draft tokens that are kept; None for all.
        """
        chosen = torch.tensor([request], device=self.counts.device)
        one = self.only(chosen)
        draft, streams = one.draft, one.streams
        kept = len(draft.token_ids) if count is None else count
        drafted, scored = (torch.arange(length, device=chosen.device) for length in (kept, kept + 1))
        first = int(self.counts[:request].sum())
        rows = None if draft.rows is None else draft.rows.select(drafted)
        of_request = {name: value if isinstance(value, str) else value[request : request + 1]
                      for name, value in self.options.items()}  # fmt: skip
        return replace(
            self,
            draft=Draft(draft.token_ids[:kept], rows, torch.full_like(chosen, kept), kept),
            target=one.target.select(scored),
            streams=Streams(streams.seeds, streams.positions, kept + 1),
            options=of_request,
            p=self.p[first + request + scored],
            q=None if self.q is None else self.q[first + drafted],
        )

    @cached_property
    def tokens(self) -> Int64[Tensor, "B gamma"]:
        """The draft tokens of each request, 0 behind a short draft."""
        ids, own = self.draft.token_ids, self.draft.drafted
        if self.draft.padded:
            return torch.where(own, ids.view(own.shape), 0)
        return torch.zeros_like(own, dtype=torch.int64).masked_scatter_(own, ids)

    @cached_property
    def path(self) -> DraftPathTables:
        """p and q along the drafts, q of one-hot drafts too; both are 1 at places behind a short draft."""
        counts, own = self.counts, self.draft.drafted
        first, places = counts.cumsum(0) - counts, torch.arange(own.shape[1] + 1, device=counts.device)
        p_rows = (first + torch.arange(len(first), device=counts.device))[:, None] + places.minimum(counts[:, None])
        q_rows, q = torch.where(own, first[:, None] + places[:-1], 0), self.q
        if q is None:
            q = torch.nn.functional.one_hot(self.tokens[own], self.vocabulary).double()
        q = q if len(q) else self.p[:1]  # nothing was drafted: no value of it is looked at
        path = DraftPathTables(self.p, q, p_rows, q_rows, self.tokens, counts)
        path.drafted_p, path.drafted_q = (torch.where(own, probs, 1.0) for probs in (path.drafted_p, path.drafted_q))
        return path
