"""A verifier as a function of a drafted token and two uniforms, for one pair of rows (row.py)."""

from __future__ import annotations

import time

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.exactness import guard
from specbench.exactness.reference import VerifyCall
from specbench.exactness.streams import GivenStreams, request_streams
from specbench.rules.verifier import Verifier

_CELLS = {"cpu": 2**17}  # probabilities of a batch; on a CPU they stay in its cache
_CELLS_ELSEWHERE = 2**25


class RowCode:
    """The verifier as a function of a drafted token and two uniforms, in batches.

    An outcome is one number: y < V for a refusal after which y is emitted, V + z for an acceptance with the bonus token
    z, 2 V for what no rule can give.
    """

    def __init__(
        self,
        verifier: Verifier,
        p_logits: Float32[Tensor, "2 V"],
        q_logits: Float32[Tensor, "1 V"],
        normalized: bool,
        deadline: float,
    ):
        self.verifier, self.deadline, self.requests = verifier, deadline, 0
        self.vocabulary, device = p_logits.shape[1], p_logits.device
        self.size = max(1, _CELLS.get(device.type, _CELLS_ELSEWHERE) // self.vocabulary)
        self.p_logits, self.q_logits = p_logits.repeat(self.size, 1), q_logits.repeat(self.size, 1)
        p_normalizer, q_normalizer = (logits.double().logsumexp(dim=1) for logits in (p_logits, q_logits))
        self.p_normalizer = p_normalizer.repeat(self.size) if normalized else None
        self.q_normalizer = q_normalizer.repeat(self.size)
        self.like = request_streams(0, 0, self.size, 2, device)
        self.streams_read: set[Stream] = set()

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    def draws_from_streams(self) -> bool:
        """Whether the verifier reads the uniforms that it is handed."""
        token = torch.zeros(1, dtype=torch.int64, device=self.like.seeds.device)
        half = torch.full_like(token, 0.5, dtype=torch.float64)
        self._batch(token, half, half)
        return bool(self.streams_read)

    def __call__(
        self, token: Int64[Tensor, " n"], accept: Float64[Tensor, " n"], emit: Float64[Tensor, " n"]
    ) -> Int64[Tensor, " m"]:
        """The outcomes of the first m requests: all of them, unless the time is up before."""
        tokens = [token[:0]]
        if not len(token):  # split() would make a batch of no request of it
            return token
        for part in zip(token.split(self.size), accept.split(self.size), emit.split(self.size), strict=True):
            if self.late:
                break
            tokens.append(self._batch(*part))
        return torch.cat(tokens)

    def _batch(self, token: Tensor, accept: Tensor, emit: Tensor) -> Tensor:
        n, vocabulary = len(token), self.vocabulary
        given = torch.full((len(Stream), n, 2), 0.5, dtype=torch.float64, device=token.device)
        given[Stream.ACCEPT, :, 0], given[Stream.EMIT, :, 0] = accept, emit
        streams = GivenStreams.of(given, Streams(self.like.seeds[:n], self.like.positions[:n], 2))
        draft = Draft(token, _as_rows(self.q_logits[:n], self.q_normalizer), torch.ones_like(token), 1)
        target = _as_rows(self.p_logits[: 2 * n], self.p_normalizer)
        result = guard.verify(self.verifier, VerifyCall("located row", draft, target, streams))
        self.requests += n
        self.streams_read |= streams.read
        (first, second), count = result.token_ids.unbind(1), result.num_accepted
        inside = ((first >= 0) & (first < vocabulary), (second >= 0) & (second < vocabulary))
        refused = (count == 0) & inside[0] & (second == PADDING)
        accepted = (count == 1) & (first == token) & inside[1]
        return torch.where(refused, first, torch.where(accepted, vocabulary + second, 2 * vocabulary))


def _as_rows(logits: Tensor, normalizer: Tensor | None) -> LogitRows:
    ones = torch.ones(len(logits), dtype=torch.float64, device=logits.device)
    known = None if normalizer is None else normalizer[: len(logits)]
    return LogitRows(logits, ones, torch.full_like(ones, -torch.inf), known)
