"""The uniforms of a step in one launch, in place of core/rng.py's two hundred operations. Twin: rng.Streams."""

import triton
import triton.language as tl

from specbench.kernels import tiles as on_tiles


@triton.jit(do_not_specialize=["size", "width"])
def uniforms_kernel(seeds, positions, out, size, width, STREAMS: tl.constexpr, LANES: tl.constexpr):
    """seeds, positions int64 [B]; out float64 [STREAMS, B, width]; size is B * width. Grid: cdiv(size, LANES)."""
    at = tl.program_id(0) * LANES + tl.arange(0, LANES)
    held = at < size
    request, offset = at // width, at % width
    seed = tl.load(seeds + request, mask=held, other=0)
    position = tl.load(positions + request, mask=held, other=0)
    for stream in tl.static_range(STREAMS):
        tl.store(out + stream * size + at, on_tiles.uniform(seed, position, offset, stream), mask=held)
