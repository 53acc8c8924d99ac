"""Drawing a token from each row in one read, which also leaves the row's normaliser. Twin: sampling/categorical.py.

The emitting half of verification with nothing drafted: every row is a bonus row. So drafting costs one read of the row,
and the verifier gets log_normalizer for nothing.
"""

import triton
import triton.language as tl

from specbench.kernels import tiles as on_tiles
from specbench.kernels.emit import draw, leave_masses
from specbench.kernels.tiles import NO_INDEX


@triton.jit(do_not_specialize=["tiles", "chunk"])
def sample_kernel(
    p, block, ws, uniforms, token_ids, log_normalizers, vocabulary, tiles, chunk,
    TILE: tl.constexpr, TILES: tl.constexpr, GAMMA: tl.constexpr,
):  # fmt: skip
    """p: Rows [n], their log_normalizer not read; uniforms, log_normalizers float64 [n]; token_ids int64 [n].

    A greedy row's normaliser is left 0. A row with NaN or +inf logits, or with -inf alone, gets token -1 and normaliser
    NaN. Grid: n * cdiv(tiles, chunk).
    """
    chunks = tl.cdiv(tiles, chunk)
    request, begin = tl.program_id(0) // chunks, (tl.program_id(0) % chunks) * chunk
    none = tl.zeros((), tl.int64)
    leave_masses(
        p, p, block, ws, request, none, none, 0, none, begin, tl.minimum(begin + chunk, tiles), vocabulary,
        False, False, TILE, TILES, GAMMA, 1,
    )  # fmt: skip
    tl.debug_barrier()  # every thread's masses, before one thread counts this program
    if tl.atomic_add(ws.emitted + request, 1, sem="acq_rel") == chunks - 1:
        token, total, reference = draw(
            p, p, block, ws, tl.load(uniforms + request), request, none, none, 0, none, tiles, vocabulary,
            False, False, TILE, TILES, GAMMA, 1,
        )  # fmt: skip
        valid = (token >= 0) & (token != NO_INDEX)
        temperature = tl.load(p.temperature + request).to(tl.float64)
        normalizer = tl.full((), 0.0, tl.float64)
        if temperature > 0:
            normalizer = on_tiles.log_normalizer(total, reference, temperature)
        tl.store(token_ids + request, tl.where(valid, token, -1).to(tl.int64))
        tl.store(log_normalizers + request, tl.where(valid, normalizer, float("nan")))
        tl.store(ws.emitted + request, 0)
