"""p and q along drafts, as a rule reads them, wherever they come from: a batch, or the tables of a fixture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.types import Draft, LogitRows
from specbench.verifiers import batched


class Along(ABC):
    """m drafts of up to gamma tokens.

    Attributes:
        counts: tokens of each draft. What stands at places behind them means nothing.
        drafted_p, drafted_q: p and q of each drafted token.
    """

    counts: Int64[Tensor, " m"]
    drafted_p: Float64[Tensor, "m gamma"]
    drafted_q: Float64[Tensor, "m gamma"]

    @cached_property
    def ratio(self) -> Float64[Tensor, "m gamma"]:
        """p / q of each drafted token. Not finite where q is 0, which holds of no token that was drawn from q."""
        return self.drafted_p / self.drafted_q

    @abstractmethod
    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """The distributions p and q after so many tokens of each draft.

        q means nothing after a whole draft, since nothing was drafted there.
        """


class AlongTables(Along):
    """Drafts that run through tables of distributions.

    Args:
        p, q: the tables.
        p_rows, q_rows: the row of each at every place of every draft.
        tokens: drafted.
    """

    def __init__(
        self,
        p: Float64[Tensor, "rows V"],
        q: Float64[Tensor, "draft_rows V"],
        p_rows: Int64[Tensor, "m width"],
        q_rows: Int64[Tensor, "m gamma"],
        tokens: Int64[Tensor, "m gamma"],
        counts: Int64[Tensor, " m"],
    ):
        self.p, self.q, self.p_rows, self.q_rows, self.counts = p, q, p_rows, q_rows, counts
        self.drafted_p, self.drafted_q = p[p_rows[:, :-1], tokens], q[q_rows, tokens]

    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """See :class:`Along`."""
        p = self.p[self.p_rows.gather(1, num_tokens[:, None])[:, 0]]
        gamma = self.q_rows.shape[1]
        if gamma == 0:
            return p, torch.zeros_like(p)
        return p, self.q[self.q_rows.gather(1, num_tokens.clamp(max=gamma - 1)[:, None])[:, 0]]


class AlongBatch(Along):
    """The drafts of a batch, as verifiers get them; places behind a short draft have p = q = 1."""

    def __init__(self, draft: Draft, target: LogitRows):
        self.draft, self.target, self.counts = draft, target, draft.num_draft_tokens
        p, q = batched.drafted_probs(draft, target)
        self.drafted_p, self.drafted_q = (batched.padded(each, draft, 1.0) for each in (p, q))

    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """See :class:`Along`; q is 0 after a whole draft."""
        return batched.next_rows(self.draft, self.target, num_tokens.minimum(self.counts))
