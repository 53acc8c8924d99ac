"""Processors: code that changes logits by the tokens before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        ArgumentError: processors without a history, or one that does not return logits of the same kind.
    """
    for chain, rows in chains:
        if history is None:
            raise ArgumentError(f"history: None; {type(chain[0]).__name__} needs to know what precedes each position")
        changed = logits.clone()  # a processor may write to its argument; other rows and readers keep theirs
        for processor in chain:
            changed = _checked(processor, changed, processor(changed, history))
        logits = changed if rows is None else torch.where(rows[:, None], changed, logits)
    return logits


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
