"""Masks: the tokens that rows of logits allow, a bit a token, kept beside the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

BITS = 32  # tokens in a word of a mask


@dataclass(frozen=True)
class Mask:
    """The tokens that each of n rows allows, as bits: one set of tokens for every ``rows`` consecutive rows.

    A mask costs a bit a token to read, a sixteenth of a bfloat16 row; -inf written into the logits costs as many bytes
    as the logits have.

    Attributes:
        restricted: whether a set bans any token; the bits of a set that does not are not read.
        bits: token 32 * i + j is allowed if bit j of word i is set; tokens beyond the words are banned. Contiguous.
        rows: consecutive rows that share a set.
    """

    restricted: Bool[Tensor, " m"]
    bits: Int32[Tensor, "m words"]
    rows: int

    @staticmethod
    def packed(restricted: Bool[Tensor, " m"], allowed: Bool[Tensor, "m V"]) -> Mask:
        """Returns the mask of sets of allowed tokens, one a row."""
        words = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % BITS)).unflatten(1, (-1, BITS)).long()
        bits = (words << torch.arange(BITS, device=words.device)).sum(dim=2)
        return Mask(restricted, bits.to(torch.int32), 1)

    def select(self, rows: Int64[Tensor, " n"]) -> Mask:
        """Returns the mask of the given rows, one set a row."""
        sets = rows // self.rows
        return Mask(self.restricted[sets], self.bits[sets], 1)

    def banned(self, vocabulary: int) -> Bool[Tensor, "n V"]:
        """Returns True for each token that a row bans."""
        places = torch.arange(BITS, dtype=torch.int32, device=self.bits.device)
        allowed = ((self.bits[:, :, None] >> places) & 1).flatten(1).bool()[:, :vocabulary]
        allowed = torch.nn.functional.pad(allowed, (0, vocabulary - allowed.shape[1]))
        return (self.restricted[:, None] & ~allowed).repeat_interleave(self.rows, dim=0)
