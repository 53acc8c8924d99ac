"""An index of the last occurrence of each n-gram of a batch of texts, which grows with the texts.

Each request has a hash table for each size of n-gram. A bucket holds up to WAYS n-grams, each as the position in the
text behind its last occurrence. An entry counts only if the text has the n-gram at that position, so that a collision
never gives a wrong answer. A table has as many buckets as a text may have tokens. An n-gram whose bucket is full is
left out, and is then not found. With random hashes, the chance that any bucket of a full text of 65,536 tokens
overflows is below 1e-9 (a Poisson tail).

All state is tensors with a row for each request, changed in place. The work depends on the number of new tokens, and
not on the length of the text. Nothing waits for the device, so a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.models import RowCache, right_padded

WAYS = 16  # n-grams that a bucket holds
PIECE = 64  # tokens of a prompt that are added at once, since all pairs of them are compared


class NgramIndex(RowCache):
    """Texts in rows, and the last occurrences of their n-grams of ``shortest`` to ``longest`` tokens.

    An n-gram is in the index once a token follows it: the ending of a text is never found at the text's end.

    Attributes:
        tokens: of the texts, as far as they were added, [rows, capacity].
        lengths: the number of tokens of each text that were added, [rows].
        table: positions by row, size, bucket and way, [rows, sizes, buckets, WAYS]; -1 for a free way.
    """

    def __init__(self, longest: int, shortest: int, device: torch.device):
        self._device = device
        self._sizes = torch.arange(shortest, longest + 1, device=device)
        self._backs = torch.arange(1, longest + 1, device=device)
        self._beyond = self._backs > self._sizes[:, None]  # [sizes, longest]: True for tokens outside of the n-gram
        # Multilinear hashing: odd numbers, one for each token of an n-gram (Lemire & Kaser, arXiv 1202.4961).
        generator = torch.Generator().manual_seed(0)
        self._odd = (torch.randint(2**62, (longest,), generator=generator) * 2 + 1).to(device)
        self.layout = 0
        self._allocate(0, 0)

    def _allocate(self, rows: int, capacity: int) -> None:
        self._bits = max(capacity - 1, 1).bit_length()
        shape = (rows, len(self._sizes), 2**self._bits, WAYS)
        self.tokens = torch.zeros((rows, capacity), dtype=torch.int64, device=self._device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self.table = torch.full(shape, -1, dtype=torch.int32, device=self._device)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and the most tokens of a text."""
        rows, capacity = self.tokens.shape
        return rows, capacity

    @property
    def state(self) -> tuple[Tensor, ...]:
        return self.tokens, self.lengths, self.table

    @torch.inference_mode()
    def reserve(self, rows: int, capacity: int) -> None:
        wanted = (max(rows, self.shape[0]), max(capacity, self.shape[1]))
        if wanted == self.shape:
            return
        texts = [text[:length] for text, length in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]
        self._allocate(*wanted)
        if texts:  # the number of buckets may have changed
            self.feed(texts, range(len(texts)), [0] * len(texts))
        self.layout += 1

    @torch.inference_mode()
    def clear(self, rows: Int64[Tensor, " m"]) -> None:
        self.lengths[rows] = 0
        self.table[rows] = -1

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        at, to = self._tensor(sources), self._tensor(targets)
        for part in (self.tokens, self.lengths, self.table):
            part[to] = part[at]

    @torch.inference_mode()
    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        if not pieces:
            return
        begun = [row for row, place in zip(rows, first, strict=True) if place == 0]
        at, start, counts = (self._tensor(numbers) for numbers in (rows, first, map(len, pieces)))
        self.clear(self._tensor(begun))
        self.lengths[at] = start
        if any(pieces):
            new = right_padded(pieces, self._device)
            for place in range(0, new.shape[1], PIECE):
                self.append(at, new[:, place : place + PIECE], (counts - place).clamp(0, PIECE))

    @torch.inference_mode()
    def append(
        self, rows: Int64[Tensor, " B"], new: Int64[Tensor, "B m"], counts: Int64[Tensor, " B"]
    ) -> Int64[Tensor, "B sizes"]:
        """Adds the first ``counts[b]`` of m tokens to the text in each of these rows. The work grows with m squared.

        Returns:
            The position behind the last earlier occurrence of each text's ending, by the ending's size from the
            shortest; -1 if there is none.
        """
        capacity, sizes = self.tokens.shape[1], len(self._sizes)
        order = torch.arange(new.shape[1] + 1, device=self._device)
        places = self.lengths[rows][:, None] + order  # of the m tokens, and the position behind them
        start = (rows * capacity)[:, None]
        # Tokens that do not count are written too: no reader looks behind a text's end.
        written = start + places[:, :-1].clamp(max=capacity - 1)
        self.tokens.view(-1).scatter_(0, written.flatten(), new.flatten())
        self.lengths.index_add_(0, rows, counts)
        grams = self._grams(start + places)
        buckets = self._buckets(rows, grams)
        ways = self.table.view(-1, WAYS)[buckets].long()
        stored = self._grams(start[:, :, None, None] + ways)
        matches = ((stored == grams[:, :, None, None]) | self._beyond[:, None]).all(dim=-1) & (ways >= 0)
        whole = places[:, :, None] >= self._sizes
        counted = whole & (order < counts[:, None])[:, :, None]
        before = (order[:, None] > order)[:, :, None]
        equal = ((grams[:, :, None, None] == grams[:, None, :, None]) | self._beyond).all(dim=-1)
        again = equal & before & counted[:, None]  # [B, m + 1, m + 1, sizes]: an equal n-gram came before
        self._keep(places, buckets, ways, matches, again, before, counted)
        in_table = torch.where(matches, ways, -1).amax(dim=-1)
        among_new = torch.where(again, places[:, None, :, None], -1).amax(dim=2)
        latest = torch.where(whole, torch.maximum(in_table, among_new), -1)
        return latest.gather(1, counts[:, None, None].expand(-1, 1, sizes))[:, 0]

    def _keep(
        self,
        places: Int64[Tensor, "B n"],
        buckets: Int64[Tensor, "B n sizes"],
        ways: Int64[Tensor, "B n sizes ways"],
        matches: Bool[Tensor, "B n sizes ways"],
        again: Bool[Tensor, "B n n sizes"],
        before: Bool[Tensor, "n n 1"],
        counted: Bool[Tensor, "B n sizes"],
    ) -> None:
        """Writes the n-grams that count into the table: to the way of an equal n-gram, or else to the next free way."""
        stored, repeated = matches.any(dim=-1), again.any(dim=2)
        fresh = counted & ~stored & ~repeated
        sharing = (buckets[:, :, None] == buckets[:, None]) & before & fresh[:, None]
        way = torch.where(stored, matches.long().argmax(dim=-1), (ways >= 0).sum(dim=-1) + sharing.sum(dim=2))
        way = torch.where(repeated, way.gather(1, again.long().argmax(dim=2)), way)
        place = torch.where(counted & (way < WAYS), places[:, :, None], -1).int()
        goal = buckets * WAYS + way.clamp(max=WAYS - 1)
        self.table.view(-1).scatter_reduce_(0, goal.flatten(), place.flatten(), "amax")  # the last of equals counts

    def _grams(self, behind: Int64[Tensor, "*places"]) -> Int64[Tensor, "*places longest"]:
        """Returns the tokens before each position, the nearest first; arbitrary ones before a text's beginning."""
        return self.tokens.view(-1)[(behind[..., None] - self._backs).clamp(min=0)]

    def _buckets(self, rows: Int64[Tensor, " B"], grams: Int64[Tensor, "B n longest"]) -> Int64[Tensor, "B n sizes"]:
        """Returns the bucket of each n-gram, as an index into the buckets of all rows and sizes."""
        sizes = len(self._sizes)
        hashed = (grams * self._odd).cumsum(dim=-1)[..., -sizes:] >> (64 - self._bits) & (2**self._bits - 1)
        tables = rows[:, None] * sizes + torch.arange(sizes, device=self._device)
        return (tables << self._bits)[:, None] + hashed

    def _tensor(self, numbers: Iterable[int]) -> Int64[Tensor, " n"]:
        return torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
