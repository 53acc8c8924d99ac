"""A rule's law: what it does with given drafts, as probabilities. No Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.rules.along import Along, AlongTables
from specbench.rules.rule import FIRST_REFUSAL, Rule


@dataclass(frozen=True)
class StepLaw:
    """What a rule does with each of P drafts of g tokens, as probabilities.

    Attributes:
        accept: [P, g], the chance that the i-th uniform is below its threshold; thresholds of the rule's accept tests.
        length: [P, g + 1], probability that exactly 0..g tokens are accepted.
        emit: [P, g + 1, V], distribution of the token after them.
    """

    accept: Float64[Tensor, "P g"]
    length: Float64[Tensor, "P lengths"]
    emit: Float64[Tensor, "P lengths V"]


def step_law(rule: Rule, along: Along) -> StepLaw:
    """The law of a rule over drafts of one length.

    Raises:
        ArgumentError: a rule whose formulas are not known.
    """
    accept = rule.limits(along)
    one = torch.ones_like(along.counts, dtype=torch.float64)[:, None]
    if rule.decides == FIRST_REFUSAL:
        length = torch.cat([one, accept.cumprod(dim=1)], 1) * torch.cat([1 - accept, one], 1)
    else:
        none_later = torch.cat([(1 - accept).flip(1).cumprod(1).flip(1), one], 1)
        length = torch.cat([one, accept], 1) * none_later  # no tokens at all can always be accepted
    emit = torch.stack(
        [rule.weights_after(along, torch.full_like(along.counts, i)) for i in range(accept.shape[1] + 1)], 1
    )
    return StepLaw(accept, length, emit / emit.sum(-1, keepdim=True))


def emitted(rule: Rule, p: Float64[Tensor, "m V"], q: Float64[Tensor, "m V"]) -> Float64[Tensor, "m V"]:
    """What a rule emits first if one token is drafted from q where the target is p; p itself if it is lossless.

    Raises:
        ArgumentError: a rule whose formulas are not known.
    """
    rows, vocabulary = p.shape
    row = torch.arange(rows, device=p.device).repeat_interleave(vocabulary)[:, None]
    tokens = torch.arange(vocabulary, device=p.device).repeat(rows)[:, None]
    law = step_law(rule, AlongTables(p, q, torch.cat([row, row], 1), row, tokens, torch.ones_like(row[:, 0])))
    # What is never drafted has no ratio p / q, and no weight.
    weight = q.flatten()[:, None] * law.length.nan_to_num(0.0)
    replaced = (weight[:, :1] * law.emit[:, 0]).view(rows, vocabulary, vocabulary).sum(dim=1)
    return weight[:, 1].view(rows, vocabulary) + replaced


@dataclass(frozen=True)
class NodeLaw:
    """What a rule does with k candidates for one position, as probabilities; P times.

    Attributes:
        accept: [P, k], probability that the candidates before each were refused and it is accepted.
        emit: [P, V], probability that all were refused and each token is drawn in their place.
    """

    accept: Float64[Tensor, "P k"]
    emit: Float64[Tensor, "P V"]


def node_law(
    rule: Rule, p: Float64[Tensor, "P V"], q: Float64[Tensor, "P k V"], tokens: Int64[Tensor, "P k"]
) -> NodeLaw:
    """The law of a rule for the children of one token of a tree, from what it does with drafts of one token.

    A refused child leaves the rule's residual, normalised, to the next one, and the last to the draw.

    Args:
        q: what each child was drawn from, given those before it.
        tokens: the children, in the order in which they were drawn.

    Raises:
        ArgumentError: a rule of chains alone.
    """
    if not rule.on_trees:
        raise ArgumentError(f"rule={rule.name}: it is of chains alone, since its card says nothing on trees.")
    row, one = torch.arange(len(p), device=p.device)[:, None], torch.ones_like(tokens[:, 0])
    left, refused, accept = p, torch.ones_like(p[:, 0]), []
    for j in range(tokens.shape[1]):
        along = AlongTables(left, q[:, j], torch.cat([row, row], 1), row, tokens[:, j : j + 1], one)
        passes = rule.limits(along)[:, 0]
        accept.append(refused * passes)
        refused = refused * (1 - passes)
        rest = rule.residual(left, q[:, j])
        mass = rest.sum(dim=1, keepdim=True)
        left = torch.where(mass > 0, rest / mass, left)
    return NodeLaw(torch.stack(accept, 1), refused[:, None] * left)
