"""Empirical against target: many first tokens by speculative decoding beside the target's exact probabilities.

A whole step is taken each time (all gamma tokens are drafted and verified), and only its first token is counted. This
shows a wrong first token; the joint distribution of a whole block is the exactness laboratory's business.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specbench.core.checks import check_count
from specbench.core.machine.progress import say, track
from specbench.core.machine.provenance import request_seed
from specbench.decoding import Decoder, Request, logits_along, rows_along
from specbench.metrics.empirical import CHECK, distance_check
from specbench.metrics.results import EmpiricalRow
from specbench.protocols.model_context import ModelContext


@dataclass(frozen=True)
class CheckSettings:
    """prefixes: how many prompts; draws: first tokens a prompt (0 skips the check); batch_size: drawn side by side."""

    prefixes: int
    draws: int
    batch_size: int

    def __post_init__(self) -> None:
        for name, least in (("prefixes", 1), ("draws", 0), ("batch_size", 1)):
            check_count(f"protocol.check.{name}", getattr(self, name), least)


def check_first_tokens(context: ModelContext, settings: CheckSettings) -> tuple[dict[str, Any], list[EmpiricalRow]]:
    """RunRow's check columns, and empirical.parquet's rows: tokens that were drawn or have 0.1% of the mass."""
    if settings.draws == 0:
        return {"check_prefixes": 0, "check_draws": 0, **dict.fromkeys(CHECK)}, []
    prompts = [request for request in context.requests if request.sample == 0]
    requests = [uncertain_prefix(context, request) for request in prompts[: settings.prefixes]]
    counts, probs, decoder = [], [], context.decoder()  # one, whose engine is prepared once
    decoder.reserve(context.requests, settings.batch_size)  # as for decoding, so that compiled steps have one shape
    for request in track(requests, "empirical against target"):
        counts.append(draw_first_tokens(context, decoder, request, settings))
        logits = logits_along(context.target, [request.prompt], [[0]])[0]  # of the token after the prompt
        probs.append(rows_along(logits, request.sampling, request.prompt, []).probs()[0].cpu().numpy())
    distances = distance_check(np.stack(counts), np.stack(probs), context.seed)
    if distances["check_p_value"] is None:
        say(
            f"The first tokens are not checked: no token has 1/{settings.draws} of the mass or more. Raise "
            "protocol.check.draws."
        )
    measured = {"check_prefixes": len(requests), "check_draws": settings.draws, **distances}
    decode = context.pair.tokenizer.decode
    rows = [
        EmpiricalRow(
            prefix=request.name,
            token_id=int(token),
            token=str(decode([int(token)])),
            prob=float(p[token]),
            count=int(n[token]),
            draws=settings.draws,
        )
        for request, n, p in zip(requests, counts, probs, strict=True)
        for token in np.flatnonzero((n > 0) | (p >= 1e-3))
    ]
    return measured, rows


def uncertain_prefix(context: ModelContext, request: Request) -> Request:
    """The request with its prompt cut where, in its second half, the target is least certain of the next token.

    Where one token has nearly all the mass, as at the end of many prompts, any rule would pass.
    """
    half = len(request.prompt) // 2
    # Any id may stand behind the prompt: what is asked for is the distribution that it would be drawn from.
    following = [*request.prompt[half + 1 :], 0]
    probs = logits_along(context.target, [request.prompt[: half + 1]], [following])[0].double().softmax(-1)
    entropy = torch.special.entr(probs).sum(-1)
    return dataclasses.replace(request, prompt=request.prompt[: half + int(entropy.argmax()) + 1])


def draw_first_tokens(context: ModelContext, decoder: Decoder, request: Request, settings: CheckSettings) -> np.ndarray:
    """Counts [V] of the first token of one speculative step after the request's prompt."""
    counts = np.zeros(context.pair.vocab_size, dtype=np.int64)
    for start in range(0, settings.draws, settings.batch_size):
        numbers = range(start, min(start + settings.batch_size, settings.draws))
        labels = [f"check/{context.gamma}/{request.name}/{i}" for i in numbers]
        copies = [
            dataclasses.replace(
                request, seed=request_seed(context.seed, label), max_new_tokens=context.gamma + 1, gamma=None
            )
            for label in labels
        ]
        completions = decoder.start(copies)
        decoder.step()
        decoder.flush()
        np.add.at(counts, [completion.token_ids[0] for completion in completions], 1)
    return counts
