"""Processors: code that changes logits by the tokens before them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.sampling_params import SamplingParams
from specbench.sampling.history import History


@runtime_checkable
class Processor(Protocol):
    """Changes logits by the tokens before them, before temperature and truncation; of target and draft alike.

    A draft token is then tested against the distribution that plain decoding would have drawn from. This holds only if
    row i of the result is a function of row i of the logits and of the tokens before position i.

    A processor that works on the host has the attribute ``capturable = False``: no CUDA graph can hold its step.
    """

    def __call__(self, logits: Float[Tensor, "n V"], history: History) -> Float[Tensor, "n V"]:
        """Returns logits, -inf for a banned token: new ones, or the argument, which is a copy."""
        ...


Chain = tuple[Processor, ...]
_TOLERANCE = 1e-3  # of a row alone, relative to its largest logit: sums of other shapes may be rounded otherwise
# Processors that were tried, by their id and whether among several rows; of objects without weak references themselves.
_tried: dict[tuple[int, bool], Callable[[], object]] = {}


def on_host(params: SamplingParams) -> str:
    """Returns the parameters that work on the host, so that no CUDA graph can hold a step; empty for none."""
    if params.structured_outputs is not None:
        return "sampler.structured_outputs"
    return host_processors(params.processors)


def host_processors(processors: Iterable[object]) -> str:
    """Returns the names of the processors that work on the host."""
    return ", ".join(type(processor).__name__ for processor in processors if not getattr(processor, "capturable", True))


def apply_processors(
    logits: Shaped[Tensor, "n V"], chains: Sequence[tuple[Chain, Bool[Tensor, " n"] | None]], history: History | None
) -> Shaped[Tensor, "n V"]:
    """Returns the logits after all processors.

    Args:
        chains: with the rows that each changes; None stands for all rows.

    Raises:
        ArgumentError: processors without a history, or one that does not return logits of the same kind. Outside of
            captured steps the first call with one row and the first with several are repeated for the last row alone;
            one that then returns other logits.
    """
    for chain, rows in chains:
        if history is None:
            raise ArgumentError(f"history: None; {type(chain[0]).__name__} needs to know what precedes each position")
        changed = logits.clone()  # a processor may write to its argument; other rows and readers keep theirs
        for processor in chain:
            changed = _apply(processor, changed, history, rows)
        logits = changed if rows is None else torch.where(rows[:, None], changed, logits)
    return logits


def _apply(processor: Processor, logits: Tensor, history: History, rows: Tensor | None) -> Tensor:
    row = _untried_row(processor, logits, rows)
    alone = None if row is None else logits[row : row + 1].clone()
    result = _checked(processor, logits, processor(logits, history))
    if row is None or alone is None:
        return result
    result = result.clone()  # not memory that the next call writes to
    _check_row(processor, alone, result, history, row)
    key = id(processor), len(logits) > 1
    try:
        _tried[key] = weakref.ref(processor)
    except TypeError:
        _tried[key] = lambda: processor
    return result


def _untried_row(processor: Processor, logits: Tensor, rows: Tensor | None) -> int | None:
    """The last row of a request with the processor; None if it was tried, or is not to be."""
    known = _tried.get((id(processor), len(logits) > 1))
    captured = logits.is_cuda and torch.cuda.is_current_stream_capturing()
    # Grammars (sampling.structured_outputs) are ours, and know their texts by the batch that they are in.
    if captured or (known is not None and known() is processor) or hasattr(processor, "parameter"):
        return None
    changed = range(len(logits)) if rows is None else rows.nonzero().flatten().tolist()
    return max(changed, default=None)


def _check_row(processor: Processor, alone: Tensor, result: Tensor, history: History, row: int) -> None:
    """Raises ArgumentError if a row by itself has another result than in its batch."""
    name, count, request = type(processor).__name__, len(result), history.request[row : row + 1]
    fields = ("texts", "prompt_lengths", "text_lengths", "drafted")
    of_row = {field: getattr(history, field)[request] for field in fields}
    single = History(**of_row, request=torch.zeros_like(request), offset=history.offset[row : row + 1])
    try:
        repeated = _checked(processor, alone, processor(alone, single))[0].float()
    except Exception as error:
        raise ArgumentError(f"{name} fails for one row, and not for {count}: {error}") from error
    expected = result[row].float()
    largest = torch.where(expected.isfinite(), expected, 0.0).abs().max().item()
    if not torch.allclose(repeated, expected, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True):
        how = f"for a row alone than for it among {count}" if count > 1 else "for the same row a second time"
        raise ArgumentError(
            f"{name} returns other logits {how}. Let row i of the result depend on row i of the logits and the tokens "
            "before it alone, without randomness"
        )


def _checked(processor: Processor, logits: Tensor, result: object) -> Tensor:
    """Returns the result of a processor, or raises ArgumentError if it is not logits of the same kind."""
    name = type(processor).__name__
    if not isinstance(result, Tensor):
        raise ArgumentError(f"{name} returned {type(result).__name__}; logits needed")
    if result.shape != logits.shape or result.dtype != logits.dtype or result.device != logits.device:
        raise ArgumentError(
            f"{name} returned {result.dtype} {tuple(result.shape)} on {result.device}; it was given {logits.dtype} "
            f"{tuple(logits.shape)} on {logits.device}"
        )
    return result
