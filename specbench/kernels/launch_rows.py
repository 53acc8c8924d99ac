"""Launches of the kernels that work row by row: cutoffs with normalisers, and samples."""

from __future__ import annotations

import functools

import torch
import triton
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream
from specbench.core.types import LogitRows
from specbench.kernels.cutoff import CANDIDATES, cutoff_kernel, survey_kernel
from specbench.kernels.emit import GROUP
from specbench.kernels.launch import (
    EMIT_CHUNK,
    GAMMA_LANES,
    WARPS,
    check_array,
    check_layout,
    check_logits,
    chunk_of,
    row_tiles,
    rows_of,
    run,
)
from specbench.kernels.layout import Block
from specbench.kernels.masks import MOST_TILES
from specbench.kernels.sample import sample_kernel
from specbench.kernels.uniforms import uniforms_kernel
from specbench.kernels.workspace import Workspace, current_stream

UNIFORM_LANES = 32
DROPPED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # of float32, which the dtype does not have


def find_cutoffs(
    logits: Shaped[Tensor, "n V"],
    temperature: Float64[Tensor, " n"],
    top_k: Int64[Tensor, " n"],
    top_p: Float64[Tensor, " n"],
    min_p: Float64[Tensor, " n"],
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Cutoff and log_normalizer of each row in two launches, as :func:`specbench.sampling.logit_rows` defines them.

    Args:
        logits: bf16, fp16 or fp32, last dimension contiguous, rows at any stride.

    Returns:
        -inf and the full row's normaliser where a row truncates nothing; a normaliser of NaN for NaN or +inf logits.
        A top_k below 1 or beyond the vocabulary truncates nothing.

    Raises:
        ArgumentError: names the argument whose shape, dtype, device or stride does not fit.
    """
    check_logits("logits", logits)
    n, vocabulary = logits.shape
    check_array("top_k", top_k, torch.int64, (n,), logits)
    for name, parameter in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_array(name, parameter, torch.float64, (n,), logits)
    tile, tiles, lanes = row_tiles(vocabulary)
    device = logits.device
    maxima = torch.empty((n, lanes * tile // GROUP.value), dtype=torch.float32, device=device)
    references, totals = (torch.empty((n, lanes), dtype=torch.float32, device=device) for _ in range(2))
    chosen = torch.empty((n, CANDIDATES.value), dtype=torch.int32, device=device)
    cutoffs, normalizers = (torch.empty(n, dtype=torch.float64, device=device) for _ in range(2))
    if n > 0:
        run(
            survey_kernel, n * tiles,
            logits, logits.stride(0), temperature, maxima, references, totals, vocabulary, tiles,
            TILE=tile, TILES=lanes, num_warps=WARPS,
        )  # fmt: skip
        run(
            cutoff_kernel, n,
            logits, logits.stride(0), temperature, top_k, top_p, min_p, maxima, references, totals, chosen, cutoffs,
            normalizers, vocabulary, tiles, SHIFT=DROPPED_BITS[logits.dtype], TILE=tile, TILES=lanes, num_warps=8,
        )  # fmt: skip
    return cutoffs, normalizers


@functools.cache
def _workspace(device: torch.device, stream: int) -> Workspace:
    return Workspace()


def sample(
    rows: LogitRows, u: Float64[Tensor, " n"], workspace: Workspace | None = None
) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"]]:
    """One token a row by inverse CDF, and the rows' log_normalizer; one launch, one read of the rows.

    Args:
        workspace: scratch memory; None takes the memory kept for the device's current stream.

    Returns:
        Tokens (-1 for a row with NaN or +inf logits) and normalisers (0 for a greedy row, NaN for a bad one).

    Raises:
        ArgumentError: names the argument whose shape, dtype, device or stride does not fit.
    """
    arguments.check_rows("rows", rows, rows.logits.device)
    check_layout("rows", rows)
    check_array("u", u, torch.float64, (len(rows),), rows.logits)
    n, vocabulary = rows.logits.shape
    tile, tiles, lanes = row_tiles(vocabulary)
    device = rows.logits.device
    tokens = torch.empty(n, dtype=torch.int64, device=device)
    normalizers = torch.empty(n, dtype=torch.float64, device=device)
    if n > 0:
        chunk = chunk_of(tiles, n, min(EMIT_CHUNK, MOST_TILES.value))
        if workspace is None:
            workspace = _workspace(device, current_stream(device))
        unused = tokens  # nothing is drafted, so that no draft is read
        run(
            sample_kernel, n * triton.cdiv(tiles, chunk),
            rows_of(rows, skips=chunk > 1),
            Block(unused, unused, unused, unused),
            workspace.scratch(n, GAMMA_LANES, lanes, lanes * tile // GROUP.value, device),
            u, tokens, normalizers, vocabulary, tiles, chunk,
            TILE=tile, TILES=lanes, GAMMA=GAMMA_LANES, num_warps=WARPS,
        )  # fmt: skip
    return tokens, normalizers


def uniforms(
    seeds: Int64[Tensor, " B"], positions: Int64[Tensor, " B"], width: int
) -> Float64[Tensor, "streams B width"]:
    """The numbers of :class:`specbench.core.rng.Streams`, bit for bit, in one launch."""
    out = torch.empty((len(Stream), len(seeds), width), dtype=torch.float64, device=seeds.device)
    size = len(seeds) * width
    if size > 0:
        seeds, positions = seeds.contiguous(), positions.contiguous()
        run(
            uniforms_kernel, triton.cdiv(size, UNIFORM_LANES),
            seeds, positions, out, size, width, STREAMS=len(Stream), LANES=UNIFORM_LANES, num_warps=1,
        )  # fmt: skip
    return out
