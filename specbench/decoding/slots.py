"""A batch whose tensors keep their memory: requests are written to its rows, and steps write their results back."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import pad

from specbench.core.types import PADDING
from specbench.sampling import RowParams, SamplingParams
from specbench.sampling.batch import FULL, NUMBERS, Batch


class Slots:
    """Rows for requests. A free row holds a request that has ended.

    Args:
        rows: the largest number of requests.
        capacity: columns of Batch.tokens.
        stops: columns of Batch.stop_ids.
        fixed: see :class:`Batch`.
    """

    def __init__(self, rows: int, capacity: int, stops: int, device: torch.device, fixed: bool = True):
        none = torch.zeros(rows, dtype=torch.int64, device=device)
        tokens = torch.zeros((rows, capacity), dtype=torch.int64, device=device)
        stop_ids = torch.full((rows, stops), PADDING, dtype=torch.int64, device=device)
        params = RowParams.of([SamplingParams()] * rows, device)
        numbers = (none, *(none.clone() for _ in range(4)))  # prompt_lengths, lengths, limits, gammas, seeds
        self.batch = Batch(tokens, *numbers, params, torch.full_like(none, FULL), stop_ids, fixed=fixed)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, capacity and stops."""
        rows, capacity = self.batch.tokens.shape
        return rows, capacity, self.batch.stop_ids.shape[1]

    @torch.inference_mode()
    def clear(self) -> None:
        """Ends all requests. The tensors of their parameters keep their memory, which a step may be reading."""
        batch = self.batch
        torch._foreach_zero_([batch.prompt_lengths, batch.lengths, batch.limits])
        batch.finished.fill_(FULL)
        self.batch = dataclasses.replace(batch, params=batch.params.ended())

    @torch.inference_mode()
    def put(self, rows: Int64[Tensor, " m"], requests: Batch) -> None:
        width = requests.tokens.shape[1]
        self.batch.tokens[rows, :width] = requests.tokens
        spare = self.batch.stop_ids.shape[1] - requests.stop_ids.shape[1]
        self.batch.stop_ids[rows] = pad(requests.stop_ids, (0, spare), value=PADDING)
        for name in NUMBERS:
            getattr(self.batch, name)[rows] = getattr(requests, name)
        self.batch = dataclasses.replace(self.batch, params=self.batch.params.put(rows, requests.params))

    def leading(self, rows: int) -> Batch:
        """Returns the first rows, in the same memory."""
        return self.batch if rows == len(self.batch) else self.batch.select(slice(rows))

    @torch.inference_mode()
    def take(self, after: Batch) -> None:
        """Writes back the batch after a step of the leading rows."""
        names = ("tokens", "lengths", "finished")
        kept = [getattr(self.batch, name)[: len(after)] for name in names]
        torch._foreach_copy_(kept, [getattr(after, name) for name in names])

    @torch.inference_mode()
    def move(self, sources: Int64[Tensor, " m"], targets: Int64[Tensor, " m"]) -> None:
        """Copies the requests of some rows to others, and frees the rows that they leave."""
        self.put(targets, self.batch.select(sources))
        self.batch.finished[sources] = FULL
