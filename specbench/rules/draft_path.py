"""p and q of drafted tokens, as the formulas of a rule read them: from a batch, or from tables of distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.types import Draft, LogitRows
from specbench.rules import batched


class DraftPath(ABC):
    """p and q along m drafts of up to gamma tokens.

    Attributes:
        counts: the number of tokens of each draft. Values at offsets beyond it have no meaning.
        drafted_p, drafted_q: p and q of each drafted token.
    """

    counts: Int64[Tensor, " m"]
    drafted_p: Float64[Tensor, "m gamma"]
    drafted_q: Float64[Tensor, "m gamma"]

    @cached_property
    def ratio(self) -> Float64[Tensor, "m gamma"]:
        """p / q of each drafted token. Not finite where q is 0, which is true of no token that was drawn from q."""
        return self.drafted_p / self.drafted_q

    @abstractmethod
    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """The distributions p and q after the first ``num_tokens`` tokens of each draft.

        q has no meaning after a whole draft, since nothing was drafted there.
        """


class DraftPathTables(DraftPath):
    """Drafts whose distributions are rows of tables.

    Args:
        p, q: the tables.
        p_rows, q_rows: the row of each table at every offset of every draft.
        counts: the number of tokens of each draft.
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
        self.p, self.q, self.p_rows, self.q_rows, self.tokens, self.counts = p, q, p_rows, q_rows, tokens, counts
        self.drafted_p, self.drafted_q = p[p_rows[:, :-1], tokens], q[q_rows, tokens]

    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        p = self.p[self.p_rows.gather(1, num_tokens[:, None])[:, 0]]
        gamma = self.q_rows.shape[1]
        if gamma == 0:
            return p, torch.zeros_like(p)
        return p, self.q[self.q_rows.gather(1, num_tokens.clamp(max=gamma - 1)[:, None])[:, 0]]


class DraftPathBatch(DraftPath):
    """The drafts of a batch, as verifiers receive them; p = q = 1 at offsets beyond a short draft."""

    def __init__(self, draft: Draft, target: LogitRows):
        self.draft, self.target, self.counts = draft, target, draft.num_draft_tokens
        p, q = batched.drafted_probs(draft, target)
        self.drafted_p, self.drafted_q = (batched.padded(values, draft, 1.0) for values in (p, q))

    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """See :class:`DraftPath`; q is 0 after a whole draft."""
        return batched.next_rows(self.draft, self.target, num_tokens.minimum(self.counts))
