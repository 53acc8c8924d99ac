"""What the bets of exactness/texts/eprocess.py need of a decoded text: one teacher-forced pass of both models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
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
    log_q = None
    if draft is not None:
        ids = torch.tensor(completion.token_ids, device=target.device)
        log_q = _rows(_scored(draft, completion), completion, draft_sampling).prob(ids).log().tolist()
    sampling, bonus = completion.request.sampling, after_whole_blocks(completion)
    return evidence_of(p, completion.token_ids, sampling, log_q, bonus, tolerance)


def evidence_of(
    p: LogitRows,
    token_ids: Sequence[int],
    sampling: SamplingParams,
    log_q: Sequence[float] | None,
    bonus: Sequence[bool],
    tolerance: float | None,
) -> list[TokenEvidence]:
    """What the bets need of tokens whose distributions are known.

    Args:
        p: the target's distribution at each token.
        sampling: of the text.
        log_q: the draft's log-probability of each token; None where drafts have no probabilities.
        bonus: whether each token came after a block that was accepted whole.
        tolerance: see :func:`evidence`.
    """
    emitted, device, logits = len(token_ids), p.logits.device, p.logits
    ids = torch.tensor(list(token_ids), device=device)
    params = RowParams.of([sampling] * emitted, device)
    edge = support_edge(logits, params, tolerance_of(logits, tolerance))
    outside = (logits.gather(1, ids[:, None])[:, 0].double() < edge.lowest).tolist()
    doubtful = edge.doubtful.tolist()
    probs = p.probs()
    log_p = p.prob(ids).log().tolist()
    log_tempered = torch.stack([probs.pow(a).sum(dim=-1).log() for a in TEMPERED], 1).tolist()
    top = (p.argmax == ids).tolist()
    return [
        TokenEvidence(
            log_p[i],
            None if log_q is None else log_q[i],
            top[i],
            tuple(log_tempered[i]),
            bonus[i],
            doubtful[i],
            outside[i],
        )
        for i in range(emitted)
    ]


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
