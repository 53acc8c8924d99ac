"""Rows of which only some tokens are allowed, with the mask beside the logits and not in them, or whose penalties,
biases and bans are still to be applied.

To write -inf over all that is not allowed costs as many bytes as the logits have. A mask has a bit a token, a sixteenth
of a bfloat16 row, so kernels that read the logits anyway read it too (kernels/tiles.py). To penalise a few tokens takes
little, but a launch of its own for it takes long, so a verifier's launch does it (kernels/verify.py). Whoever else asks
for ``logits`` finds all of it done, as in any other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32, Int64, Shaped
from torch import Tensor

from specbench.core.types import LogitRows


@dataclass(frozen=True)
class Mask:
    """Which tokens are allowed: one set of them for every ``rows`` rows that follow one another. Contiguous tensors.

    Attributes:
        restricted: whether anything is banned from the rows of a set.
        bits: id 32 * i + j is allowed if bit j of word i is set. Ids beyond the words are not.
        rows: rows that share a set.
    """

    restricted: Bool[Tensor, " m"]
    bits: Int32[Tensor, "m words"]
    rows: int

    def select(self, rows: Int64[Tensor, " n"]) -> Mask:
        """The sets of some rows, a set for each."""
        own = rows // self.rows
        return Mask(self.restricted[own], self.bits[own], 1)

    def same_sets(self, other: Mask | None) -> bool:
        """Whether both have their sets in the same memory."""
        return other is not None and self.restricted is other.restricted and self.bits is other.bits


class MaskedRows(LogitRows):
    """LogitRows to which a mask, and what is pending, are not applied until somebody asks for ``logits``; then they
    are, in their memory.

    Args:
        logits: what the mask bans does not count in them; afterwards they are ``raw``.
        temperature, cutoff, log_normalizer: see LogitRows.
        mask: which tokens are allowed. None: all, as in what dataclasses.replace makes, which knows of no mask.
        write: writes -inf in place to what a mask bans, and returns the logits.
        pending: penalises and bans in these logits; None for nothing.
    """

    _write: Callable[[Tensor, Mask], Tensor]

    def __init__(
        self,
        logits: Shaped[Tensor, "n V"],
        temperature: Float[Tensor, " n"],
        cutoff: Float[Tensor, " n"],
        log_normalizer: Float[Tensor, " n"] | None,
        mask: Mask | None = None,
        write: Callable[[Tensor, Mask], Tensor] | None = None,
        pending: Any = None,
    ):
        super().__init__(logits, temperature, cutoff, log_normalizer)
        if mask is not None or pending is not None:
            self.__dict__["_raw"] = self.__dict__.pop("logits")  # so that ``logits`` are made when asked for
        self.__dict__.update(_mask=mask, _write=write, _pending=pending)  # attributes of frozen rows cannot be set

    @property
    def mask(self) -> Mask | None:
        """See LogitRows."""
        return self.__dict__["_mask"]

    @property
    def pending(self) -> Any:
        """See LogitRows."""
        pending = self.__dict__["_pending"]
        return None if pending is None or pending.done else pending

    @property
    def raw(self) -> Tensor:
        """See LogitRows."""
        held = self.__dict__.get("_raw")
        return self.logits if held is None else held

    def _settled(self) -> Tensor:
        """``raw`` with nothing pending."""
        if self.pending is not None:
            self.pending.apply()
        return self.raw

    @cached_property
    def logits(self) -> Shaped[Tensor, "n V"]:  # type: ignore[override]
        """Penalised, and with -inf where the mask bans a token."""
        raw = self._settled()
        return raw if self.mask is None else self._write(raw, self.mask)

    def select(self, rows: Int64[Tensor, " m"]) -> LogitRows:
        """See LogitRows. The copies have the mask beside them too."""
        if self.mask is None:
            return super().select(rows)
        known = self.__dict__.get("normalizer", self.log_normalizer)
        known = None if known is None else known[rows]
        parts = (self._settled()[rows], self.temperature[rows], self.cutoff[rows], known)
        return MaskedRows(*parts, self.mask.select(rows), self._write)

    def normalized(self, log_normalizer: Float[Tensor, " n"]) -> LogitRows:
        """See LogitRows."""
        if self.mask is None:
            return super().normalized(log_normalizer)
        return MaskedRows(self._settled(), self.temperature, self.cutoff, log_normalizer, self.mask, self._write)

    def followed_by(self, others: Sequence[LogitRows]) -> LogitRows:
        """See LogitRows. Steps that share a mask, a row a set, have it in common afterwards."""
        mask, steps = self.mask, [self, *others]
        if mask is None or mask.rows != 1 or not all(mask.same_sets(rows.mask) for rows in steps):
            return super().followed_by(others)
        for rows in steps:
            if rows.pending is not None:
                rows.pending.apply()
        parts = [[getattr(rows, name) for rows in steps] for name in ("raw", "temperature", "cutoff", "normalizer")]
        raw, temperature, cutoff, known = (torch.stack(each, dim=1).flatten(0, 1) for each in parts)
        together = Mask(mask.restricted, mask.bits, len(steps))
        return MaskedRows(raw, temperature, cutoff, known, together, self._write)
