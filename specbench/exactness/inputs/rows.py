"""Rows of logits as D draws them, and their probabilities in float64."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Shaped
from safetensors.torch import load_file
from torch import Tensor

from specbench.core.types import Draft, LogitRows

LIKELY = 48  # tokens that stand out of a usual row
MOST_LIKELY = 256  # tokens among which top-p looks for its nucleus; top-k and min-p keep no more
RECORDED = Path(__file__).parent / "recorded.safetensors"


def probabilities(
    rows: LogitRows, temperature: np.ndarray, cut: bool
) -> tuple[Float64[Tensor, "n V"], Float64[Tensor, " n"]]:
    """The probabilities that rows of logits mean, and their normalisers; see :class:`specbench.core.types.LogitRows`.

    Shares no code with verifiers.

    Args:
        temperature: of the rows, on the host, so that no GPU is waited for.
        cut: whether a row may have a cutoff.
    """
    probs = rows.logits.double()
    if probs is rows.logits:
        probs = probs.clone()
    removed = probs < rows.cutoff.double()[:, None] if cut else None
    largest = probs.amax(dim=1)
    greedy, first = np.flatnonzero(temperature == 0), None
    if len(greedy):
        greedy = torch.as_tensor(greedy, device=probs.device)
        ids = torch.arange(probs.shape[1], device=probs.device)
        first = torch.where(probs[greedy] == largest[greedy, None], ids, probs.shape[1]).amin(dim=1)
    probs.sub_(largest[:, None])
    if ((temperature != 1) & (temperature != 0)).any():
        divisor = torch.where(rows.temperature > 0, rows.temperature, 1.0).double()
        probs.div_(divisor[:, None])
        largest = largest / divisor
    probs.exp_()
    if removed is not None:
        probs.masked_fill_(removed, 0.0)
    totals = probs.sum(dim=1)
    probs.div_(totals[:, None])
    if first is not None:
        probs[greedy] = 0.0
        probs[greedy, first] = 1.0
    return probs, largest + totals.log()


def logits(
    kinds: list[str], vocabulary: int, generator: torch.Generator, host: torch.Generator, device: torch.device
) -> tuple[Float[Tensor, "n V"], Float[Tensor, "n V"]]:
    """Fresh rows, one for each kind of the choice "rows".

    Args:
        generator, host: on the device and on the CPU.

    Returns:
        the logits, and standard normal noise for as many rows of a draft: the same normals, some ids further on.
    """
    flat, peaked = (torch.tensor([kind == name for kind in kinds]) for name in ("flat", "peaked"))
    spread = torch.empty(len(kinds)).uniform_(1.0, 3.0, generator=host)
    scales = [torch.where(flat, 0.1, spread), torch.where(flat, 0.0, 8.0), torch.where(peaked, 30.0, 0.0)]
    spread, tallest, peak = torch.stack(scales).to(device)[:, :, None].unbind()
    noise = torch.randn(len(kinds), vocabulary, generator=generator, device=device)
    rows = noise * spread
    count = min(LIKELY, max(1, vocabulary // 8))
    ids = torch.randint(vocabulary, (len(kinds), count), generator=generator, device=device)
    height = torch.rand(len(kinds), count, generator=generator, device=device)
    rows.scatter_add_(1, ids, tallest * height)
    rows.scatter_add_(1, ids[:, :1], peak)
    further = 1 + int(torch.randint(max(1, vocabulary - 1), (), generator=host))
    return rows, noise.roll(further, dims=1)


def recorded(count: int, host: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of target and draft that the embedded pair gave at the same position, tokens renumbered at random.

    Returns:
        logits of target and draft, float32 [count, 4096].
    """
    table = _recordings()
    positions, vocabulary = table["target"].shape
    chosen = torch.randint(positions, (count,), generator=host)
    odd, add = torch.randint(vocabulary // 2, (2, count, 1), generator=host)  # a bijection: 4,096 is a power of two
    ids = (torch.arange(vocabulary) * (2 * odd + 1) + add) % vocabulary
    target, draft = (table[name][chosen].float().gather(1, ids).to(device) for name in ("target", "draft"))
    return target, draft


@functools.cache
def _recordings() -> dict[str, Tensor]:
    return load_file(RECORDED)


def cutoffs(
    rows: Shaped[Tensor, "n V"],
    temperature: Float64[Tensor, " n"],
    top_k: Int64[Tensor, " n"],
    top_p: Float64[Tensor, " n"],
    min_p: Float64[Tensor, " n"],
) -> Float64[Tensor, " n"]:
    """The lowest logit that top-k (0: none), top-p (1: none) and min-p (0: none) keep, as ``sampling.logit_rows``.

    Top-p looks among the 256 most likely tokens alone, which needs no sort of a large vocabulary.
    """
    most = min(rows.shape[1], MOST_LIKELY)
    top = rows.topk(most, dim=1).values.double()
    scaled = top / temperature[:, None]
    kth = top.gather(1, (torch.where(top_k > 0, top_k, most).clamp(max=most) - 1)[:, None])
    kept = (top >= kth) | (top_k == 0)[:, None]  # ties with the k-th stay
    log_total = torch.logsumexp(torch.where(kept, scaled, -math.inf), dim=1)
    nucleus_of_all = ((top_k == 0) & (top_p < 1)).nonzero()[:, 0]
    log_total[nucleus_of_all] = torch.logsumexp(
        rows[nucleus_of_all].double() / temperature[nucleus_of_all, None], dim=1
    )
    probs = torch.where(kept, (scaled - log_total[:, None]).exp(), 0.0)
    before = probs.cumsum(dim=1) - probs
    keep = kept & ((before < top_p[:, None]) | (top_p[:, None] >= 1))
    keep &= scaled >= scaled[:, :1] + min_p.log()[:, None]
    keep[:, 0] = True
    return torch.where(keep, top, math.inf).amin(dim=1)


def with_padding(draft: Draft, target: LogitRows) -> tuple[Draft, LogitRows]:
    """Every request with as many rows; those that do not count hold other rows of the call."""
    counts, first, device = draft.num_draft_tokens, draft.first_row, draft.token_ids.device
    places = torch.arange(draft.max_draft_tokens + 1, device=device)
    source = torch.where(draft.drafted, first[:, None] + places[:-1], 0).flatten()
    scored = (first + torch.arange(len(counts), device=device))[:, None] + places
    target_source = torch.where(places <= counts[:, None], scored, 0)
    tokens, rows = draft.token_ids, draft.rows
    if not len(tokens):  # nothing was drafted: what the padding holds is not looked at
        tokens, rows = torch.zeros_like(source), None if rows is None else target
    rows = None if rows is None else rows.select(source)
    padded = dataclasses.replace(draft, token_ids=tokens[source], rows=rows, padded=True)
    return padded, target.select(target_source.flatten())


def laid_out(rows: LogitRows, layout: str, rng: np.random.Generator) -> LogitRows:
    """The same rows, in memory as the choice "layout" of D says."""
    logits = rows.logits
    n, vocabulary = logits.shape
    if layout == "contiguous" or n == 0:
        return rows
    if layout == "wider":
        buffer = logits.new_full((n, vocabulary + int(rng.integers(1, 129))), 1e4)
        view = buffer[:, :vocabulary]
    elif layout == "offset":
        start = 2 * int(rng.integers(0, 16)) + 1
        view = logits.new_full((n * vocabulary + start,), 1e4)[start:].view(n, vocabulary)
    else:
        view = logits.new_full((2 * n, vocabulary), 1e4)[::2]
    view.copy_(logits)
    return dataclasses.replace(rows, logits=view)
