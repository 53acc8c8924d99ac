"""The hidden states of a few tokens, and what the RMSNorm in front of a model's first product needs, in one launch."""

import triton
import triton.language as tl

from specbench.kernels import dependent


@triton.jit(do_not_specialize=["rows", "vocabulary"])
def embedding_kernel(
    token_ids, table, norm, hidden, weighted, squares, rows, vocabulary,
    SIZE: tl.constexpr, LANES: tl.constexpr, NORM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """hidden [rows, SIZE]: rows of table [vocabulary, SIZE].

    If NORM: weighted is hidden times norm [SIZE], and squares float32 [1, rows] are the sums of the squares of hidden.
    EARLY: see dependent.py. Grid: rows.
    """
    row, d = tl.program_id(0), tl.arange(0, LANES)
    scales = tl.load(norm + d, mask=d < SIZE, other=0.0).to(tl.float32)
    dependent.wait(EARLY)
    token = tl.load(token_ids + row)
    known = (token >= 0) & (token < vocabulary)
    held = tl.load(table + token * SIZE + d, mask=known & (d < SIZE), other=0.0)
    wide = tl.where(known, held.to(tl.float32), float("nan"))  # a token that is none is seen in the logits
    wide = tl.where(d < SIZE, wide, 0.0)
    tl.store(hidden + row * SIZE + d, wide.to(hidden.dtype.element_ty), mask=d < SIZE)
    if NORM:
        tl.store(weighted + row * SIZE + d, (wide * scales).to(hidden.dtype.element_ty), mask=d < SIZE)
        tl.store(squares + row, tl.sum(wide * wide, axis=0))
