"""The requests that are decoded side by side, as tensors: what a decoding step needs and leaves.

A step reads nothing else of them and hands on a new value, so that no list of texts is rebuilt and nothing waits for
the device. What only the host can know of lengths is a bound: :meth:`Batch.at_most`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad

from specbench.core.types import PADDING, LogitRows
from specbench.sampling import History, RowParams, logit_rows, tally

# Batch.finished: by a stop token, by max_new_tokens, by logits that nothing can be drawn from
RUNNING, STOPPED, FULL, FAILED = 0, 1, 2, 3


@dataclass(frozen=True)
class Batch:
    """B requests and their texts so far.

    Attributes:
        tokens: prompt and continuation of each request; beyond its length any id of the vocabulary. A block's width
            of columns is left beyond the largest of the limits.
        prompt_lengths: tokens of each prompt.
        lengths: tokens of each text; the last one is not yet fed to the target.
        limits: the length at which each text is full.
        gammas: tokens that each request drafts a step, at most, on each path of a tree.
        seeds: of the requests.
        params: sampling parameters, a row a request.
        finished: RUNNING, STOPPED, FULL or FAILED.
        stop_ids: the ids that end each text; PADDING fills up rows that have fewer than others.
        fixed: no shape may depend on what the tensors hold, as a captured CUDA graph wants it.
        tally: what :meth:`counted` found in the texts as they are now; None for nothing.
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
    tally: Any = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def running(self) -> Bool[Tensor, " B"]:
        """Which requests go on."""
        return self.finished == RUNNING

    def room(self) -> Int64[Tensor, " B"]:
        """Tokens to draft for each request: its gamma, or fewer near the limit, since a step emits one token more."""
        left = (self.limits - self.lengths - 1).clamp(min=0).minimum(self.gammas)
        return torch.where(self.running, left, 0)

    def counted(self, vocabulary: int) -> Batch:
        """The same, with the tokens of the texts counted for all penalties of a step, if kernels apply any."""
        given = (self.params, self.tokens, self.prompt_lengths, self.lengths, vocabulary)
        return dataclasses.replace(self, tally=tally(*given))

    def span(self, first: Int64[Tensor, " B"], width: int) -> Int64[Tensor, "B width"]:
        """``width`` tokens of each text from its position ``first``; what lies beyond a text's end is any valid id."""
        columns = first[:, None] + torch.arange(width, device=first.device)
        return self.tokens.gather(1, columns.clamp(0, self.tokens.shape[1] - 1))

    def rows(self, logits: Shaped[Tensor, "n V"], drafted: Int64[Tensor, "B width"], first: int = 0) -> LogitRows:
        """The distributions at the places of a block from ``first`` to the one behind the drafted tokens.

        Args:
            logits: a row a place, those of a request following one another; penalties and bans may change them in
                place, so that who wants them raw looks before.
            drafted: the tokens drafted so far; place i follows the first i of them.
        """
        width = drafted.shape[1] + 1 - first
        if width == 1 and not self.params.looks_back:
            return logit_rows(logits, self.params)
        owner = torch.arange(len(self), device=drafted.device).repeat_interleave(width)
        params = self.params.repeated(owner)
        if not params.looks_back:
            return logit_rows(logits, params)
        places = torch.arange(first, first + width, device=drafted.device).repeat(len(self))
        history = History(self.tokens, self.prompt_lengths, self.lengths, drafted, owner, places, self.tally)
        return logit_rows(logits, params, history, in_place=True)

    def at_most(self, values: Int64[Tensor, " B"], bound: int) -> int:
        """The largest of some values where the host reads it for nothing (:func:`known_max`), else ``bound``."""
        return bound if self.fixed else known_max(values, bound)

    def rows_of_paths(
        self, logits: Shaped[Tensor, "n V"], path: Int64[Tensor, "B m depth"], offset: Int64[Tensor, "B m"]
    ) -> LogitRows:
        """The distributions at m places of a tree, each of which has a history of its own.

        Args:
            logits: as in :meth:`rows`.
            path: the drafted tokens on the way to each place.
            offset: how many of them there are; what stands behind them does not count.
        """
        owner = torch.arange(len(self), device=path.device).repeat_interleave(path.shape[1])
        params, history = self.params.select(owner), None
        if params.looks_back:
            places = torch.arange(len(owner), device=path.device)
            parts = (self.tokens, self.prompt_lengths, self.lengths)
            history = History(*(each[owner] for each in parts), path.flatten(0, 1), places, offset.flatten())
        return logit_rows(logits, params, history, in_place=True)

    def select(self, rows: Int64[Tensor, " m"]) -> Batch:
        """The given requests, in that order."""
        return Batch(
            self.tokens[rows],
            self.prompt_lengths[rows],
            self.lengths[rows],
            self.limits[rows],
            self.gammas[rows],
            self.seeds[rows],
            self.params.select(rows),
            self.finished[rows],
            self.stop_ids[rows],
            self.fixed,
        )

    def joined(self, other: Batch) -> Batch:
        """These requests, then the other's."""
        return Batch(
            _stacked(self.tokens, other.tokens, 0),
            torch.cat([self.prompt_lengths, other.prompt_lengths]),
            torch.cat([self.lengths, other.lengths]),
            torch.cat([self.limits, other.limits]),
            torch.cat([self.gammas, other.gammas]),
            torch.cat([self.seeds, other.seeds]),
            self.params.joined(other.params),
            torch.cat([self.finished, other.finished]),
            _stacked(self.stop_ids, other.stop_ids, PADDING),
            self.fixed,
        )


def _stacked(one: Int64[Tensor, "m w"], other: Int64[Tensor, "n u"], filling: int) -> Int64[Tensor, "rows widest"]:
    """Rows above rows, as wide as the wider ones."""
    width = max(one.shape[1], other.shape[1])
    return torch.cat([pad(each, (0, width - each.shape[1]), value=filling) for each in (one, other)])


def known_max(values: Int64[Tensor, " B"], bound: int) -> int:
    """The largest of some values where the host reads it for nothing, on a CPU; elsewhere ``bound``, which holds them.

    On a CPU the smaller width saves rows that a matrix product would compute for nothing; on a GPU rows are cheap, and
    to read a number means to wait for all the work before it.
    """
    if values.device.type != "cpu" or not len(values):
        return bound
    return int(values.max())
