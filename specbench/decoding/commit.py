"""The end of a step: the emitted tokens behind the texts, and the requests whose logits were not finite."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from specbench.core.fusion import fusible
from specbench.core.types import PADDING, LogitRows
from specbench.decoding.step_result import BAD_DRAFT, BAD_TARGET, FINITE, RANKS_DIFFER
from specbench.kernels import cpu_rows
from specbench.sampling.batch import FAILED, FULL, RUNNING, STOPPED


@fusible
def commit(
    texts: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    emitted: Int64[Tensor, "B width"],
    accepted: Int64[Tensor, " B"],
    counts: Int64[Tensor, " B"],
    draft_logits: Shaped[Tensor, "n V"] | None,
    target_logits: Shaped[Tensor, "m V"] | None,
    differ: Bool[Tensor, " B"] | None,
) -> tuple[Tensor, ...]:
    """Returns the texts with the emitted tokens, their lengths, the number of new tokens, Batch.finished, and ``bad``.

    Args:
        texts: of Batch: tokens, lengths, limits, finished and stop_ids.
        draft_logits, target_logits: rows that may hold NaN or +inf, the same number of each request; None: all finite.
        differ: whether ranks differ; None if there is one.
    """
    bad = torch.full_like(counts, FINITE)
    for kind, logits, more in ((BAD_DRAFT, draft_logits, 0), (BAD_TARGET, target_logits, 1)):
        if logits is not None:
            bad = torch.where(_not_finite(logits, counts + more), kind, bad)
    if differ is not None:
        bad = torch.where(differ & (bad == FINITE), RANKS_DIFFER, bad)
    write = cpu_rows.commit if cpu_rows.drawing.on else _written
    return (*write(*texts, emitted, accepted, bad), bad)


def logits_in_doubt(rows: LogitRows | None) -> Shaped[Tensor, "n V"] | None:
    """Returns the logits of rows, or None if there are no rows, or if normalisers on a CPU rule out NaN and +inf."""
    if rows is None or len(rows) == 0:
        return None
    normalizer = rows.log_normalizer
    if normalizer is None or not normalizer.is_cpu:
        return rows.logits
    finite = cpu_rows.below_infinity(normalizer) if cpu_rows.drawing.on else bool((normalizer < torch.inf).all())
    return None if finite else rows.logits


def _not_finite(logits: Shaped[Tensor, "n V"], used: Int64[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Returns whether NaN or +inf is among the first ``used`` rows of each request.

    Rows from which nothing was sampled count too, and so do the logits of tokens that a mask bans. A row of -inf alone
    is no error: a grammar may have come to its end.
    """
    finite = (_largest(logits) < torch.inf).view(len(used), -1)
    return (~finite & (torch.arange(finite.shape[1], device=used.device) < used[:, None])).any(dim=1)


def _largest(rows: Shaped[Tensor, "N V"]) -> Shaped[Tensor, " N"]:
    """Returns the largest number of each row, or NaN; by pieces, since PyTorch leaves a GPU idle with few outputs."""
    return rows.unflatten(1, (math.gcd(rows.shape[1], 256), -1)).amax(dim=2).amax(dim=1)


def _written(
    texts: Int64[Tensor, "B capacity"],
    lengths: Int64[Tensor, " B"],
    limits: Int64[Tensor, " B"],
    finished: Int64[Tensor, " B"],
    stop_ids: Int64[Tensor, "B stops"],
    emitted: Int64[Tensor, "B width"],
    accepted: Int64[Tensor, " B"],
    bad: Int64[Tensor, " B"],
) -> tuple[Int64[Tensor, "B capacity"], Int64[Tensor, " B"], Int64[Tensor, " B"], Int64[Tensor, " B"]]:
    """Returns the texts with the emitted tokens up to the first stop token.

    Returns:
        The texts, their lengths, the number of tokens that each received, and Batch.finished.
    """
    running = finished == RUNNING
    places = torch.arange(emitted.shape[1], device=emitted.device)
    block = (places <= accepted[:, None]) & running[:, None]
    stops = block & (emitted[:, :, None] == stop_ids[:, None]).any(dim=2)
    written = block & (stops.cumsum(dim=1) - stops.long() == 0)  # up to the first stop token
    num_emitted = written.sum(dim=1)
    longer = lengths + num_emitted
    ended = torch.where(longer >= limits, FULL, RUNNING)
    ended = torch.where(stops.any(dim=1), STOPPED, ended)
    nothing = written & (emitted == PADDING)  # behind a stop token nothing need be left to draw
    ended = torch.where(nothing.any(dim=1) | (bad != FINITE), FAILED, ended)
    columns = lengths[:, None] + places
    tokens = torch.where(written & ~nothing, emitted, texts.gather(1, columns))
    return texts.scatter(1, columns, tokens), longer, num_emitted, torch.where(running, ended, finished)
