"""Draws, verifies and commits on a CPU in C++ (cpu_rows.cpp), one operation in place of thirty.

Only a compiled step uses them, inside ``drawing()``, so that an eager step needs no compiler and never differs. Each
names its plain twin; sums may differ by rounding.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream, Streams
from specbench.core.switch import Switch
from specbench.core.types import Draft, LogitRows, Verification

drawing = Switch()  # inside, samplers draw by the library; cpu_product.load() first
_NO_DRAW = torch.zeros(0, dtype=torch.float64)
_NO_PARENTS = torch.zeros(0, dtype=torch.int64)
_PROBLEMS = (
    "",
    "draft: a token outside of the vocabulary, or more tokens than max_draft_tokens",
    "draft: a path of more tokens than depth",
)
_NO_ROWS = (torch.zeros((0, 1)), _NO_DRAW, _NO_DRAW, _NO_DRAW)


def takes(rows: LogitRows) -> bool:
    """Returns whether the library draws from these rows: float32 on a CPU, without a mask, inside ``drawing()``."""
    logits = rows.logits
    plain = drawing.on and logits.is_cpu and logits.dtype == torch.float32 and rows.allowed is None
    return plain and logits.stride(1) == 1 and rows.temperature.dtype == rows.cutoff.dtype == torch.float64


def takes_weights(weights: Float64[Tensor, "n V"]) -> bool:
    """Returns whether :func:`inverse_cdf` takes these weights, inside ``drawing()``."""
    return drawing.on and weights.is_cpu and weights.dtype == torch.float64 and weights.stride(1) == 1


def draw(rows: LogitRows, u: Float64[Tensor, " n"]) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Returns the tokens and the normaliser of each row; see :func:`specbench.sampling.draw`."""
    return torch.ops.specbench_cpu.draw(rows.logits, rows.temperature, rows.cutoff, u)


def normalizer(rows: LogitRows) -> Float64[Tensor, " n"]:
    """Returns ``LogitRows.normalizer`` of each row."""
    return torch.ops.specbench_cpu.draw(rows.logits, rows.temperature, rows.cutoff, _NO_DRAW)[1]


def inverse_cdf(weights: Float64[Tensor, "n V"], u: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Returns an index for each row of weights; see :func:`specbench.sampling.inverse_cdf`."""
    return torch.ops.specbench_cpu.inverse_cdf(weights, u)


def uniforms(
    seeds: Int64[Tensor, " B"], positions: Int64[Tensor, " B"], width: int
) -> Float64[Tensor, "streams B width"]:
    """Returns the numbers of :class:`specbench.core.rng.Streams`, to the last bit."""
    return torch.ops.specbench_cpu.uniforms(seeds, positions, len(Stream), width)


def free_tokens(*tensors: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Returns ``Batch.free_tokens``, from limits, lengths, gammas and finished."""
    return torch.ops.specbench_cpu.free_tokens(*tensors)


def below_infinity(normalizers: Float64[Tensor, " n"]) -> bool:
    """Returns whether all numbers are below infinity; NaN is not."""
    return torch.ops.specbench_cpu.below_infinity(normalizers.contiguous())


def takes_rule(draft: Draft, target: LogitRows, trees: bool = False) -> bool:
    """Returns whether the library verifies this: rows with known normalisers, and one padded draft or more.

    Args:
        trees: whether the rule is one of trees too.
    """
    rows = (target,) if draft.rows is None else (target, draft.rows)
    known = all(takes(its) and its.log_normalizer is not None for its in rows)
    padded = draft.padded and draft.max_draft_tokens > 0 and len(draft.num_draft_tokens) > 0
    return known and padded and (trees or draft.parents is None)


def token_rule(draft: Draft, target: LogitRows, streams: Streams) -> Verification:
    """Returns what the token rule emits; see rules/token/masked.py and tree.py.

    Raises:
        ArgumentError: token ids, numbers of tokens or a path that do not fit the draft.
    """
    tree = (_NO_PARENTS if draft.parents is None else draft.parents, draft.longest)
    tokens, accepted, path, problem = torch.ops.specbench_cpu.token_rule(*tree, *_verified(draft, target, streams))
    _check(problem)
    return Verification(tokens, accepted, None if draft.parents is None else path)


def block_rule(draft: Draft, target: LogitRows, streams: Streams) -> Verification:
    """Returns what the block rule emits for chains; see rules/block/masked.py.

    Raises:
        ArgumentError: token ids or numbers of tokens that do not fit the draft.
    """
    tokens, accepted, problem = torch.ops.specbench_cpu.block_rule(*_verified(draft, target, streams))
    _check(problem)
    return Verification(tokens, accepted)


def _check(problem: int) -> None:
    if problem:
        raise ArgumentError(_PROBLEMS[problem])


def _verified(draft: Draft, target: LogitRows, streams: Streams) -> tuple[Tensor | None, ...]:
    q = _NO_ROWS if draft.rows is None else _parts(draft.rows)
    uniforms = (streams.uniform(Stream.ACCEPT), streams.uniform(Stream.EMIT)[:, 0])
    return draft.token_ids, draft.num_draft_tokens, *q, *_parts(target), *uniforms


def commit(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns what a step leaves; arguments and results are those of ``_written`` of specbench/decoding/commit.py."""
    return torch.ops.specbench_cpu.commit(*(tensor.contiguous() for tensor in tensors))


def _parts(rows: LogitRows) -> tuple[Tensor | None, ...]:
    return rows.logits, rows.temperature, rows.cutoff, rows.log_normalizer
