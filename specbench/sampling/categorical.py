"""Drawing a token from weights with one uniform."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Streams
from specbench.core.types import PADDING, LogitRows
from specbench.kernels import cpu_rows
from specbench.sampling import where


def inverse_cdf(weights: Float64[Tensor, "n V"], u: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Returns the first index whose cumulative weight exceeds u times the total; weights need not be normalised.

    An index of weight 0 is never returned, because the cumulative sum does not grow there. Weights whose sum is not
    finite give PADDING.
    """
    if cpu_rows.takes_weights(weights):
        return cpu_rows.inverse_cdf(weights, u)
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, u[:, None] * total, right=True)
    # u * total can round up to total; the first index that reaches the total is then the last of positive weight.
    last = torch.searchsorted(cumulative, total, right=False)
    return torch.where(total.isfinite(), torch.minimum(index, last), PADDING)[:, 0]


def sample(rows: LogitRows, u: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Returns one token a row: the argmax of a greedy row for any u, PADDING for a row with NaN or +inf logits."""
    return draw(rows, u)[0]


def draw(rows: LogitRows, u: Float64[Tensor, " n"]) -> tuple[Int64[Tensor, " n"], LogitRows]:
    """Returns the tokens of :func:`sample`, and the rows with the log_normalizer that sampling computes."""
    if where.by_kernels(rows.logits):
        from specbench.kernels import launch_rows

        tokens, normalizer = launch_rows.sample(rows, u.contiguous())  # u may be a column of a block's uniforms
    elif cpu_rows.takes(rows):
        tokens, normalizer = cpu_rows.draw(rows, u)
    else:
        plain = rows.with_mask_applied()
        tokens, normalizer = inverse_cdf(plain.probs(), u), plain.normalizer
    return tokens, LogitRows(rows.logits, rows.temperature, rows.cutoff, normalizer, rows.allowed)


def normalized(rows: LogitRows) -> LogitRows:
    """Returns the rows with their log_normalizer if it costs one operation, as in a compiled step on a CPU."""
    if rows.log_normalizer is not None or not cpu_rows.takes(rows):
        return rows
    return LogitRows(rows.logits, rows.temperature, rows.cutoff, cpu_rows.normalizer(rows))


def streams_of(seeds: Int64[Tensor, " B"], positions: Int64[Tensor, " B"], width: int) -> Streams:
    """Returns the random streams of a step; on a GPU, and in a compiled step, one operation computes all numbers."""
    if cpu_rows.drawing.on and seeds.is_cpu:
        return Streams(seeds, positions, width, cpu_rows.uniforms(seeds, positions, width))
    if not where.by_kernels(seeds):
        return Streams(seeds, positions, width)
    from specbench.kernels import launch_rows

    return Streams(seeds, positions, width, launch_rows.uniforms(seeds, positions, width))


def reaching(streams: Streams, width: int) -> Streams:
    """Returns ``streams.reaching(width)``, its numbers by the operation of :func:`streams_of`."""
    return streams if width <= streams.width else streams_of(streams.seeds, streams.positions, width)
