"""The law of a rule: the probabilities of its outcomes for given drafts, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.rules.draft_path import DraftPath, DraftPathTables
from specbench.rules.rule import FIRST_REFUSAL, Rule


@dataclass(frozen=True)
class StepLaw:
    """The probabilities of a rule's outcomes for each of P drafts of g tokens.

    Attributes:
        accept: [P, g], the thresholds: the probability that uniform i is below threshold i.
        length: [P, g + 1], the probability that exactly 0..g tokens are accepted.
        emit: [P, g + 1, V], the distribution of the token after them.
    """

    accept: Float64[Tensor, "P g"]
    length: Float64[Tensor, "P lengths"]
    emit: Float64[Tensor, "P lengths V"]


def step_law(rule: Rule, path: DraftPath) -> StepLaw:
    """Returns the law of a rule for drafts of one length.

    Raises:
        ArgumentError: a rule whose formulas are not known.
    """
    accept = rule.chances(path)
    one = torch.ones_like(path.counts, dtype=torch.float64)[:, None]
    if rule.decides == FIRST_REFUSAL:
        length = torch.cat([one, accept.cumprod(dim=1)], 1) * torch.cat([1 - accept, one], 1)
    else:
        none_later = torch.cat([(1 - accept).flip(1).cumprod(1).flip(1), one], 1)
        length = torch.cat([one, accept], 1) * none_later  # no tokens at all can always be accepted
    emit = torch.stack(
        [rule.weights_after(path, torch.full_like(path.counts, i)) for i in range(accept.shape[1] + 1)], 1
    )
    return StepLaw(accept, length, emit / emit.sum(-1, keepdim=True))


def emitted(rule: Rule, p: Float64[Tensor, "m V"], q: Float64[Tensor, "m V"]) -> Float64[Tensor, "m V"]:
    """Returns the distribution of the first emitted token if one token is drafted from q; p itself if it is lossless.

    Raises:
        ArgumentError: a rule whose formulas are not known.
    """
    rows, vocabulary = p.shape
    row = torch.arange(rows, device=p.device).repeat_interleave(vocabulary)[:, None]
    tokens = torch.arange(vocabulary, device=p.device).repeat(rows)[:, None]
    law = step_law(rule, DraftPathTables(p, q, torch.cat([row, row], 1), row, tokens, torch.ones_like(row[:, 0])))
    # A token with q = 0 has no ratio p / q, and no weight.
    weight = q.flatten()[:, None] * law.length.nan_to_num(0.0)
    replaced = (weight[:, :1] * law.emit[:, 0]).view(rows, vocabulary, vocabulary).sum(dim=1)
    return weight[:, 1].view(rows, vocabulary) + replaced
