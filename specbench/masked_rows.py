"""Rows of which only some tokens are allowed, with the mask beside the logits and not in them.

To write -inf over all that is not allowed costs as many bytes as the logits have. A mask has a bit a token, a sixteenth
of a bfloat16 row, so kernels that read the logits anyway read it too (kernels/tiles.py). Whoever else asks for
``logits`` finds them with -inf in them, as in any other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int32, Int64, Shaped
from torch import Tensor

from specbench.types import LogitRows


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
    """LogitRows whose mask is not applied until somebody asks for ``logits``; it is then applied in their memory.

    Attributes:
        raw: the logits, in which what the mask bans does not count.
        mask: which tokens are allowed.
        write: writes -inf in place to what a mask bans, and returns the logits.
    """

    write: Callable[[Tensor, Mask], Tensor]

    @staticmethod
    def of(
        raw: Shaped[Tensor, "n V"],
        temperature: Float[Tensor, " n"],
        cutoff: Float[Tensor, " n"],
        log_normalizer: Float[Tensor, " n"] | None,
        mask: Mask,
        write: Callable[[Tensor, Mask], Tensor],
    ) -> MaskedRows:
        """See the class. A constructor would have to be given ``logits``, which are not there yet."""
        made = object.__new__(MaskedRows)
        parts = {"temperature": temperature, "cutoff": cutoff, "log_normalizer": log_normalizer}
        made.__dict__.update(parts, _raw=raw, _mask=mask, write=write)
        return made

    @property
    def mask(self) -> Mask | None:
        """See LogitRows."""
        return self.__dict__.get("_mask")

    @property
    def raw(self) -> Tensor:
        """See LogitRows. dataclasses.replace gives rows without a mask, which have no others than ``logits``."""
        return self.logits if self.mask is None else self.__dict__["_raw"]

    @cached_property
    def logits(self) -> Shaped[Tensor, "n V"]:  # type: ignore[override]
        """With -inf where the mask bans a token."""
        assert self.mask is not None
        return self.write(self.raw, self.mask)

    def select(self, rows: Int64[Tensor, " m"]) -> LogitRows:
        """See LogitRows. The copies have the mask beside them too."""
        assert self.mask is not None
        known = self.__dict__.get("normalizer", self.log_normalizer)
        parts = (self.raw[rows], self.temperature[rows], self.cutoff[rows], None if known is None else known[rows])
        return MaskedRows.of(*parts, self.mask.select(rows), self.write)

    def normalized(self, log_normalizer: Float[Tensor, " n"]) -> LogitRows:
        """See LogitRows."""
        assert self.mask is not None
        return MaskedRows.of(self.raw, self.temperature, self.cutoff, log_normalizer, self.mask, self.write)

    def followed_by(self, others: Sequence[LogitRows]) -> LogitRows:
        """See LogitRows. Steps that share a mask, a row a set, have it in common afterwards."""
        mask, steps = self.mask, [self, *others]
        if mask is None or mask.rows != 1 or not all(mask.same_sets(rows.mask) for rows in steps):
            return super().followed_by(others)
        parts = [[getattr(rows, name) for rows in steps] for name in ("raw", "temperature", "cutoff", "normalizer")]
        raw, *rest = (torch.stack(each, dim=1).flatten(0, 1) for each in parts)
        return MaskedRows.of(raw, *rest, Mask(mask.restricted, mask.bits, len(steps)), self.write)
