"""What the bets of exactness/texts/eprocess.py need of a decoded text: one teacher-forced pass of both models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float64, Shaped
from torch import Tensor

from specbench.core.types import LogitRows
from specbench.decoding import Completion, logits_along, rows_along
from specbench.exactness.texts.eprocess import TEMPERED, TokenEvidence
from specbench.exactness.texts.support import support_edge, tolerance_of
from specbench.models import CachedModel
from specbench.sampling import RowParams, SamplingParams


def evidence(
    target: CachedModel,
    draft: CachedModel | None,
    completion: Completion,
    tolerance: float | None,
    draft_sampling: SamplingParams | None = None,
) -> list[TokenEvidence]:
    """What the bets need of every emitted token.

    Args:
        draft: None where drafts have no probabilities.
        tolerance: by how much a logit may differ from the logit that the verifier saw; None takes it from the dtype.
        draft_sampling: of the draft; None is the request's.
    """
    p = _rows(_scored(target, completion), completion)
    q = None if draft is None else _rows(_scored(draft, completion), completion, draft_sampling)
    sampling, bonus = completion.request.sampling, after_whole_blocks(completion)
    return evidence_of(p, q, completion.token_ids, sampling, bonus, tolerance)


def evidence_of(
    p: LogitRows,
    q: LogitRows | None,
    token_ids: Sequence[int],
    sampling: SamplingParams,
    bonus: Sequence[bool],
    tolerance: float | None,
) -> list[TokenEvidence]:
    """What the bets need of tokens whose distributions are known.

    Both distributions are conditioned on the tokens that are in the support whatever the rounding.

    Args:
        p, q: the distributions of target and draft at each token; q is None where drafts have no probabilities.
        sampling: of the text.
        bonus: whether each token came after a block that was accepted whole.
        tolerance: see :func:`evidence`.
    """
    emitted, device, logits = len(token_ids), p.logits.device, p.logits
    ids = torch.tensor(list(token_ids), device=device)
    params = RowParams.of([sampling] * emitted, device)
    edge = support_edge(logits, params, tolerance_of(logits, tolerance))
    logit = logits.gather(1, ids[:, None])[:, 0].double()
    doubtful = ((logit < edge.surely) & (logit >= edge.lowest)).tolist()
    probs, log_p = p.probs(), p.prob(ids).log()
    log_q = None if q is None else q.prob(ids).log()
    if params.truncates:
        sure = logits.double() >= edge.surely[:, None]
        probs, mass = _conditioned(probs, sure)
        log_p = torch.where(mass > 0, log_p - mass.log(), log_p)  # without any, each token is at the edge or outside
        if q is not None and log_q is not None:
            _, drafted = _conditioned(q.probs(), sure)
            log_q = torch.where(drafted > 0, log_q - drafted.log(), log_p)  # no bet towards a draft without any
    log_tempered = torch.stack([probs.pow(a).sum(dim=-1).log() for a in TEMPERED], 1).tolist()
    top = (p.argmax == ids).tolist()
    of_target, of_draft = log_p.tolist(), None if log_q is None else log_q.tolist()
    return [
        TokenEvidence(
            of_target[i],
            None if of_draft is None else of_draft[i],
            top[i],
            tuple(log_tempered[i]),
            bonus[i],
            doubtful[i],
        )
        for i in range(emitted)
    ]


def _conditioned(
    probs: Float64[Tensor, "n V"], inside: Bool[Tensor, "n V"]
) -> tuple[Float64[Tensor, "n V"], Float64[Tensor, " n"]]:
    """Distributions given that the token is inside, and how likely that is."""
    within = torch.where(inside, probs, 0)
    mass = within.sum(dim=-1)
    return within / mass[:, None], mass


def rounding(target: CachedModel, completion: Completion, width: int, tolerance: float | None) -> tuple[float, float]:
    """The largest difference of a logit between scoring the whole text and scoring it in blocks of ``width`` tokens, as
    decoding does; in logit units, and as a multiple of the row's tolerance."""
    whole, blocks = _scored(target, completion), _scored(target, completion, width)
    apart = (whole.double() - blocks.double()).nan_to_num(nan=0.0).abs().amax(dim=-1)  # -inf in both is same
    return float(apart.max()), float((apart / tolerance_of(whole, tolerance)).max())


def after_whole_blocks(completion: Completion) -> list[bool]:
    """Whether each token came after a block that was accepted whole."""
    flags: list[bool] = []
    for step in completion.steps:
        whole = step.num_accepted == step.num_draft_tokens and step.num_emitted == step.num_accepted + 1
        flags += [False] * (step.num_emitted - 1) + [whole]
    return flags[: len(completion.token_ids)]


def _scored(model: CachedModel, completion: Completion, width: int | None = None) -> Shaped[Tensor, "n V"]:
    return logits_along(model, [completion.request.prompt], [completion.token_ids], width)[0]


def _rows(logits: Shaped[Tensor, "n V"], completion: Completion, sampling: SamplingParams | None = None) -> LogitRows:
    request = completion.request
    return rows_along(logits, sampling or request.sampling, request.prompt, completion.token_ids)
