"""What a step did, as tensors for the device and as numbers for the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

PHASES = ("draft", "target", "verify", "commit")  # of a step
NUMBERS = ("num_draft_tokens", "num_accepted", "num_emitted", "draft_depth", "finished", "bad")  # one a request
FINITE, BAD_TARGET, BAD_DRAFT, RANKS_DIFFER = 0, 1, 2, 3  # StepResult.bad


@dataclass(frozen=True)
class RequestStep:
    """The step of one request, as the host reads it; the fields are those of StepResult."""

    num_draft_tokens: int
    num_accepted: int
    num_emitted: int
    draft_depth: int
    finished: int
    bad: int
    token_ids: list[int]


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step. The next step does not read it.

    Attributes:
        token_ids: accepted tokens, then the emitted one, then PADDING.
        draft_depth: the most tokens that a request could have accepted; fewer than it drafted if the draft is a tree.
        num_emitted: num_accepted + 1, or fewer where a stop token cut the block; 0 for a request that had finished.
        finished: as in Batch, after the step.
        bad: BAD_TARGET or BAD_DRAFT for a request with NaN or +inf in its logits; RANKS_DIFFER; else FINITE.
        stamps: nanoseconds at which the step began and each of PHASES ended.
    """

    token_ids: Int64[Tensor, "B width"]
    num_draft_tokens: Int64[Tensor, " B"]
    draft_depth: Int64[Tensor, " B"]
    num_accepted: Int64[Tensor, " B"]
    num_emitted: Int64[Tensor, " B"]
    finished: Int64[Tensor, " B"]
    bad: Int64[Tensor, " B"]
    stamps: Int64[Tensor, " 5"]

    def packed(self) -> Int64[Tensor, " n"]:
        """Returns all fields in one tensor, so that one copy brings them to the host."""
        return torch.cat([self.stamps, *(getattr(self, name) for name in NUMBERS), self.token_ids.flatten()])


@dataclass(frozen=True)
class StepReport:
    """What the host reads of a step.

    Attributes:
        requests: of each row of the batch; meaningless for rows without a request and for requests that had ended.
        stamps: nanoseconds; see StepResult.
    """

    requests: list[RequestStep]
    stamps: list[int]

    @staticmethod
    def unpacked(numbers: list[int], batch: int) -> StepReport:
        """Returns what :meth:`StepResult.packed` holds, of a batch of ``batch`` rows."""
        stamps, rest = numbers[: len(PHASES) + 1], numbers[len(PHASES) + 1 :]
        columns, tokens = rest[: len(NUMBERS) * batch], rest[len(NUMBERS) * batch :]
        width = len(tokens) // batch
        requests = [RequestStep(*columns[i::batch], tokens[i * width : (i + 1) * width]) for i in range(batch)]
        return StepReport(requests, stamps)
