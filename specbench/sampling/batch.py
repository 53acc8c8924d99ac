"""The requests of a decoding step and their texts, as tensors.

A step takes a Batch and returns a new one, so that no list of texts is rebuilt and nothing waits for the device. The
host knows lengths only by a bound: :meth:`Batch.at_most`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad

from specbench.core import trees
from specbench.core.fusion import fusible
from specbench.core.types import PADDING, LogitRows
from specbench.kernels import cpu_rows
from specbench.sampling import History, RowParams, TextCounts, logit_rows, tally

# Batch.finished: not yet, by a stop token, by max_new_tokens, by logits from which no token can be sampled
RUNNING, STOPPED, FULL, FAILED = 0, 1, 2, 3
NUMBERS = ("prompt_lengths", "lengths", "limits", "gammas", "seeds", "finished")  # one a request


@dataclass(frozen=True)
class Batch:
    """B requests and their texts so far.

    Attributes:
        tokens: prompt and continuation of each request; any ids of the vocabulary beyond its length. There are columns
            for one block beyond the largest of the limits.
        lengths: tokens of each text; the last one is not yet fed to the target.
        limits: the length at which each text is full.
        gammas: the most tokens that each request drafts a step, on each path of a tree.
        finished: RUNNING, STOPPED, FULL or FAILED.
        stop_ids: the ids that end each text, then PADDING.
        fixed: whether shapes may not depend on values of tensors, as a captured CUDA graph requires.
        tally: the counts of the texts' tokens, made by :meth:`counted`; None if no kernel needs them.
    """

    tokens: Int64[Tensor, "B capacity"]
    prompt_lengths: Int64[Tensor, " B"]
    lengths: Int64[Tensor, " B"]
    limits: Int64[Tensor, " B"]
    gammas: Int64[Tensor, " B"]
    seeds: Int64[Tensor, " B"]
    params: RowParams
    finished: Int64[Tensor, " B"]
    stop_ids: Int64[Tensor, "B stops"]
    fixed: bool = False
    tally: TextCounts | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def running(self) -> Bool[Tensor, " B"]:
        """Whether each request goes on."""
        return self.finished == RUNNING

    def free_tokens(self) -> Int64[Tensor, " B"]:
        """Returns the tokens that each request may draft: its gamma, or fewer near its limit.

        A step emits one token more than it accepts.
        """
        if cpu_rows.drawing.on:
            return cpu_rows.free_tokens(self.limits, self.lengths, self.gammas, self.finished)
        return _free_tokens(self.limits, self.lengths, self.gammas, self.finished)

    def counted(self, vocabulary: int) -> Batch:
        """Returns the batch with the counts of its texts' tokens, for all penalties of a step, if kernels apply any."""
        counts = tally(self.params, self.tokens, self.prompt_lengths, self.lengths, vocabulary)
        return self if counts is self.tally else dataclasses.replace(self, tally=counts)

    def span(self, first: Int64[Tensor, " B"], width: int) -> Int64[Tensor, "B width"]:
        """Returns ``width`` tokens of each text from position ``first``; any valid ids beyond a text's end."""
        return span(self.tokens, first, width)

    def rows(
        self, logits: Shaped[Tensor, "n V"], drafted: Int64[Tensor, "B width"], first: int = 0, masks: bool = False
    ) -> LogitRows:
        """Returns the distributions at the places of a block from ``first`` to the place after the draft tokens.

        Args:
            logits: one row a place, the rows of a request consecutive. On a GPU penalties, biases and bans change them
                in place: code that needs the model's own logits reads them before.
            drafted: the draft tokens so far; place i follows the first i of them.
            masks: see :func:`specbench.sampling.logit_rows`.
        """
        width = drafted.shape[1] + 1 - first
        if not self.params.looks_back:
            return logit_rows(logits, self.params, width=width)
        owner = torch.arange(len(self), device=drafted.device).repeat_interleave(width)
        params = self.params.repeated(owner)
        places = torch.arange(first, first + width, device=drafted.device).repeat(len(self))
        history = History(self.tokens, self.prompt_lengths, self.lengths, drafted, owner, places, self.tally)
        return logit_rows(logits, params, history, in_place=True, masks=masks)

    def at_most(self, values: Int64[Tensor, " B"], bound: int) -> int:
        """Returns the largest value if the host can read it without waiting (:func:`known_max`), else ``bound``."""
        return bound if self.fixed else known_max(values, bound)

    def rows_of_tree(
        self, logits: Shaped[Tensor, "n V"], drafted: Int64[Tensor, "B m"], seen: Bool[Tensor, "B places m"], depth: int
    ) -> LogitRows:
        """Returns the distributions at places of a tree, as :meth:`rows_of_paths` does; paths only if they are needed.

        Args:
            drafted: the draft tokens so far.
            seen: which of them are on the way to each place (core/trees.py).
            depth: the most draft tokens on the way to a place.
        """
        if not self.params.looks_back:
            return logit_rows(logits, self.params, width=seen.shape[1])
        path = drafted.gather(1, trees.paths(seen, depth).flatten(1)).view(*seen.shape[:2], depth)
        return self.rows_of_paths(logits, path, trees.depths(seen))

    def rows_of_paths(
        self, logits: Shaped[Tensor, "n V"], path: Int64[Tensor, "B m depth"], offset: Int64[Tensor, "B m"]
    ) -> LogitRows:
        """Returns the distributions at m places of a tree, each of which has a history of its own.

        Args:
            logits: as in :meth:`rows`.
            path: the draft tokens on the way to each place; entries at or beyond its offset are not read.
            offset: the number of draft tokens on the way to each place.
        """
        owner = torch.arange(len(self), device=path.device).repeat_interleave(path.shape[1])
        params, history = self.params.select(owner), None
        if params.looks_back:
            places = torch.arange(len(owner), device=path.device)
            texts, prompt_lengths, lengths = self.tokens[owner], self.prompt_lengths[owner], self.lengths[owner]
            history = History(texts, prompt_lengths, lengths, path.flatten(0, 1), places, offset.flatten())
        return logit_rows(logits, params, history, in_place=True)

    def select(self, rows: Int64[Tensor, " m"] | slice) -> Batch:
        """Returns the given requests, in that order; those of a slice in the same memory."""
        parts = {name: getattr(self, name)[rows] for name in ("tokens", "stop_ids", *NUMBERS)}
        return Batch(**parts, params=self.params.select(rows), fixed=self.fixed)

    def joined(self, other: Batch) -> Batch:
        """Returns these requests, then the other's."""
        parts: dict[str, Any] = {name: torch.cat([getattr(self, name), getattr(other, name)]) for name in NUMBERS}
        parts["tokens"] = _stacked(self.tokens, other.tokens, 0)
        parts["stop_ids"] = _stacked(self.stop_ids, other.stop_ids, PADDING)
        return Batch(**parts, params=self.params.joined(other.params), fixed=self.fixed)


@fusible
def _free_tokens(
    limits: Int64[Tensor, " B"],
    lengths: Int64[Tensor, " B"],
    gammas: Int64[Tensor, " B"],
    finished: Int64[Tensor, " B"],
) -> Int64[Tensor, " B"]:
    left = (limits - lengths - 1).clamp(min=0).minimum(gammas)
    return torch.where(finished == RUNNING, left, 0)


@fusible
def span(tokens: Int64[Tensor, "B capacity"], first: Int64[Tensor, " B"], width: int) -> Int64[Tensor, "B width"]:
    """Returns ``width`` tokens of each text from position ``first``; any valid ids beyond a text's end."""
    columns = first[:, None]
    if width != 1:
        columns = columns + torch.arange(width, device=first.device)
    return tokens.gather(1, columns.clamp(0, tokens.shape[1] - 1))


def _stacked(one: Int64[Tensor, "m w"], other: Int64[Tensor, "n u"], filling: int) -> Int64[Tensor, "rows widest"]:
    """Returns the rows of both, as wide as the wider ones."""
    width = max(one.shape[1], other.shape[1])
    return torch.cat([pad(rows, (0, width - rows.shape[1]), value=filling) for rows in (one, other)])


def known_max(values: Int64[Tensor, " B"], bound: int) -> int:
    """Returns the largest value on a CPU, and elsewhere ``bound``, which is at least that.

    On a CPU the smaller width saves rows of a matrix product. On a GPU rows are cheap, and reading a number would wait
    for all the work before it.
    """
    if values.device.type != "cpu" or not len(values):
        return bound
    return int(values.max())
