"""What a drafter is, and how ragged drafts are flattened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.models import Engine
from specbench.rng import Streams
from specbench.sampling import RowParams
from specbench.types import Draft


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens for a batch of requests. Built as ``DrafterClass(pair=pair, **settings of its yaml)``.

    Attributes:
        engine: the model whose distributions its drafts are sampled from and carry; None where a draft is deterministic
            and its q one-hot.
    """

    engine: Engine | None

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """Begins a new batch; no sequence will grow beyond ``capacity`` tokens."""
        ...

    def propose(
        self, sequences: Sequence[Sequence[int]], limits: Sequence[int], params: RowParams, streams: Streams
    ) -> Draft:
        """Drafts at most ``limits[b]`` tokens after each sequence (0 is allowed), sampling with streams DRAFT."""
        ...

    def commit(self, agreed: Sequence[int]) -> None:
        """Says how long a prefix of what was drafted upon still stands; anything beyond was rejected."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only the given requests of the batch, in that order."""
        ...


def ragged_index(counts: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Indices, into a flattened [B, width], of the first ``counts[b]`` entries of each row."""
    return torch.tensor(
        [b * width + i for b, count in enumerate(counts) for i in range(count)], dtype=torch.int64, device=device
    )
