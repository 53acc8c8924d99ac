"""The base class and helpers of adapters: loading the package, limits, seeds, facts that an engine has on the host.

An adapter gives another project's own function the input that its engine would give, made from the same raw logits by
the same operations: fp32 copy, temperature, mask, softmax. Top-k, top-p and min-p arrive as a cutoff, so the mask is
one comparison. The engines sort or search for the cutoff, and that part of their work is not included.

Randomness is the library's own. Its seeds are drawn from Streams through Philox, in a stream that nothing else in
specbench uses: two of the libraries use Philox with the request's seed as key themselves, and would otherwise share
words with the uniforms of the drafts.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Float32, Int64, Shaped
from torch import Tensor

from specbench.core import arguments
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.extensions import import_optional
from specbench.core.rng import Stream, Streams, philox
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.rules.verifier import Limits

T = TypeVar("T")

_LOW32 = 0xFFFFFFFF
_SEED_STREAM = 1 + max(Stream)  # a Philox stream of its own


class ExternalVerifier:
    """Base of the adapters.

    Attributes:
        rule: the library's name. Its randomness is its own, so no other verifier emits the same tokens.
        lossless: the claim of its project.
        limits, interpreted: see :class:`specbench.rules.verifier.Capabilities`.
    """

    rule: str
    lossless: bool = True
    limits: Limits
    interpreted: bool = False

    def check(self, draft: Draft, target: LogitRows, streams: Streams) -> None:
        """Raises ArgumentError for shapes that do not fit and for a batch beyond the library's limits.

        Reads no device data, and so checks no ids, counts, positions or seeds. The engines do not either.
        """
        arguments.check(draft, target, streams, values=False)
        device = target.logits.device.type
        if self.limits.device not in (None, device):
            raise ArgumentError(f"target: logits on {device}; {self.rule} runs on {self.limits.device} alone")
        counted = len(draft.num_draft_tokens) * draft.max_draft_tokens
        if not self.limits.ragged and len(draft.token_ids) != counted:
            raise ArgumentError(
                f"draft.num_draft_tokens: {self.rule} takes as many drafted tokens from each request; here "
                f"{len(draft.num_draft_tokens)} requests drafted {len(draft.token_ids)}, at most "
                f"{draft.max_draft_tokens} each"
            )
        if not self.limits.empty and draft.max_draft_tokens == 0:
            raise ArgumentError(f"draft.num_draft_tokens: {self.rule} needs at least one drafted token a request")


def load(module: str, verifier: str, extra: str) -> ModuleType:
    """Imports a module of the optional package that a verifier feeds. Raises NotInstalledError."""
    return import_optional(module, extra, "verifier", verifier)


def check_draft_probs(value: str) -> str:
    """Returns it. Raises ConfigError for anything but "computed" or "kept"."""
    if value not in ("computed", "kept"):
        raise ConfigError("verifier.draft_probs", value, "unknown", "Use computed or kept.")
    return value


def triton_device() -> str | None:
    """Returns the device of a library's Triton kernels: "cuda", or None (any) with Triton's interpreter."""
    return None if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


class Memo(Generic[T]):
    """Caches the last value derived from some tensors, until one of them is freed or written to.

    Engines have the facts of a batch on the host (draft lengths, greedy requests) and upload them ahead of the step.
    Reading them back from the device in every call would charge the engines for our types.
    """

    def __init__(self) -> None:
        self._sources: list[tuple[weakref.ref[Tensor], int]] = []
        self._value: T | None = None

    def __call__(self, sources: list[Tensor], make: Callable[[], T]) -> T:
        """Returns the cached value if it was derived from the same tensors, else a new one."""
        is_current = len(sources) == len(self._sources) and all(
            ref() is tensor and not tensor.is_inference() and tensor._version == version
            for tensor, (ref, version) in zip(sources, self._sources, strict=True)
        )
        if not is_current or self._value is None:
            self._value = make()
            versions = [0 if tensor.is_inference() else tensor._version for tensor in sources]
            self._sources = [
                (weakref.ref(tensor, self._forget), v) for tensor, v in zip(sources, versions, strict=True)
            ]
        return self._value

    def _forget(self, _: weakref.ref[Tensor]) -> None:
        self._value = None  # it may be of vocabulary size


@dataclass(frozen=True)
class RowFacts:
    """The facts about n rows that an engine has before their logits.

    Attributes:
        greedy: on the host, whether each row is greedy.
        truncated: whether any row has a cutoff.
        temperature: with 1 for greedy rows, as all engines divide.
        cutoff: in fp32, which is exact where the cutoff is one of the logits.
    """

    greedy: list[bool]
    truncated: bool
    temperature: Float32[Tensor, " n"]
    cutoff: Float32[Tensor, " n"]

    @staticmethod
    def of(rows: LogitRows) -> RowFacts:
        greedy = rows.temperature == 0
        return RowFacts(
            greedy=greedy.tolist(),
            truncated=bool(((rows.cutoff > -torch.inf) & ~greedy).any()),
            temperature=torch.where(greedy, 1.0, rows.temperature).float(),
            cutoff=torch.where(greedy, -torch.inf, rows.cutoff).float(),
        )

    @staticmethod
    def sources(*sides: LogitRows | None) -> list[Tensor]:
        """Returns the tensors that the facts of target and draft are derived from, for Memo; none of a draft's None."""
        return [tensor for rows in sides if rows is not None for tensor in (rows.temperature, rows.cutoff)]


def masked(rows: LogitRows, facts: RowFacts) -> Shaped[Tensor, "n V"]:
    """Returns the logits with -inf below the cutoff, in their dtype; the same tensor if nothing is removed."""
    if not facts.truncated:
        return rows.logits
    return rows.logits.masked_fill(rows.logits < facts.cutoff[:, None], -torch.inf)


def softmax(rows: LogitRows, facts: RowFacts) -> Float32[Tensor, "n V"]:
    """Probabilities as engines make them: fp32 copy, division and mask in place, softmax; greedy rows one-hot."""
    logits = rows.logits.to(torch.float32, copy=True).div_(facts.temperature[:, None])
    if facts.truncated:
        logits.masked_fill_(rows.logits < facts.cutoff[:, None], -torch.inf)
    return make_greedy_one_hot(logits.softmax(dim=-1), rows, facts)


def make_greedy_one_hot(probs: Float32[Tensor, "n V"], rows: LogitRows, facts: RowFacts) -> Float32[Tensor, "n V"]:
    """Overwrites the greedy rows of ``probs`` in place."""
    if any(facts.greedy):
        greedy = (rows.temperature == 0)[:, None]
        probs.masked_fill_(greedy, 0.0).scatter_add_(1, rows.logits.argmax(-1, keepdim=True), greedy.float())
    return probs


def one_hot(token_ids: Int64[Tensor, " n"], vocabulary: int) -> Float32[Tensor, "n V"]:
    """Returns q of a deterministic draft as dense rows."""
    zeros = torch.zeros(len(token_ids), vocabulary, device=token_ids.device)
    return zeros.scatter_(1, token_ids[:, None], 1.0)


def library_seeds(streams: Streams) -> Int64[Tensor, " B"]:
    """A 63-bit seed for each request and position, from a Philox stream of its own."""
    zero = torch.zeros_like(streams.positions)
    key = (streams.seeds & _LOW32, streams.seeds >> 32 & _LOW32)
    high, low, _, _ = philox(key, (streams.positions, zero, zero + _SEED_STREAM, zero))
    return (high >> 1) << 32 | low


_GENERATOR = threading.RLock()


@contextmanager
def private_generator(device: torch.device, seed: int) -> Generator[None]:
    """Inside, the device's default generator is freshly seeded; afterwards it is as it was. One thread at a time.

    While a CUDA graph is captured the default generator is drawn from as it stands: torch moves its offset with every
    replay, and forbids seeding it here.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        yield
        return
    if device.type == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    else:
        generator = torch.default_generator
    with _GENERATOR:
        state = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(state)


def accepted_before(is_padding: Bool[Tensor, "B width"]) -> Int64[Tensor, " B"]:
    """Returns the accepted lengths: all emitted tokens but the last are accepted."""
    return (~is_padding).sum(dim=1) - 1


def widened(token_ids: Shaped[Tensor, "B emitted"], width: int) -> Int64[Tensor, "B width"]:
    """Returns token ids as int64, padded on the right to ``width`` columns."""
    missing = width - token_ids.shape[1]
    return torch.nn.functional.pad(token_ids.long(), (0, missing), value=PADDING)
