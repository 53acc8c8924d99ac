"""Sampling parameters of one request, validated where they are made. Needs no PyTorch, which ``sampling`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.errors import ConfigError

LARGEST_VOCABULARY = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How a request samples; applied to target and draft alike.

    Attributes:
        temperature: 0 is greedy (lowest index on ties).
        top_k: keep the k most likely tokens, and those tied with the last; 0 or -1 is off.
        top_p: keep the smallest set of most likely tokens whose mass reaches top_p, in (0, 1]; 1 is off. Mass is
            counted after top-k, as Hugging Face transformers and vLLM do.
        min_p: keep tokens at least min_p times as likely as the most likely one, in [0, 1); 0 is off.
        processors: what changes the logits first, by what precedes each position
            (:class:`specbench.sampling.Processor`); one after the other.

    Raises:
        ConfigError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    processors: Sequence[Callable[..., Any]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "processors", tuple(self.processors))  # a list has no hash
        for name in ("temperature", "top_p", "min_p", "top_k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"sampler.{name}", value, "not a finite number", "Give a number.")
        if self.temperature < 0:
            raise ConfigError(
                "sampler.temperature", self.temperature, "below 0", "Use 0 for greedy, or a positive number."
            )
        if 0 < self.temperature < 1e-3:
            raise ConfigError(
                "sampler.temperature",
                self.temperature,
                "so small that logits overflow",
                "Use 0 for greedy, or 0.001 and more.",
            )
        if self.top_k != int(self.top_k) or not -1 <= self.top_k <= LARGEST_VOCABULARY:
            raise ConfigError(
                "sampler.top_k", self.top_k, "not a count of tokens", "Use a whole number; 0 or -1 is off."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError("sampler.top_p", self.top_p, "outside (0, 1]", "Use 1.0 for off.")
        if not 0 <= self.min_p < 1:
            raise ConfigError("sampler.min_p", self.min_p, "outside [0, 1)", "Use 0.0 for off.")

    @property
    def numbers(self) -> dict[str, float]:
        """All but the processors, by name; top_k is a whole number."""
        return {
            "temperature": float(self.temperature),
            "top_k": int(self.top_k),
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
        }

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether any token can be cut off, which is when a row needs a cutoff."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)
