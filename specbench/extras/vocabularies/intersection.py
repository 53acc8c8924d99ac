"""A draft model with a vocabulary of its own, fed and read in the target's tokens: token-level intersection.

The model's logits are restricted to the tokens that both vocabularies have, and stand at the target's ids; all others
are -inf. What is drawn from them is drawn from the draft's distribution renormalised on what is shared, and this is the
q that verification gets, so that decoding is lossless with any lossless rule (arXiv 2502.05202, algorithm 4).

The model reads the text in its own tokens: a shared token as itself, another one as the tokens that its text is written
by (Translation.pieces). So it has more tokens cached than the text has. Any function of the text would do here: it
decides how good drafts are, not whether q is true. All of it is made of tensors, so that a step can be captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from specbench.core.errors import ArgumentError, ModelError
from specbench.extras.vocabularies.translation import MISSING, Translation
from specbench.models.cached_model import CachedModel
from specbench.models.forward import Feature, Features, ModelOutput

_Count = TypeVar("_Count", int, Tensor)
_ROOM = 4  # draft tokens for each token of a text that there is memory for, on average


class IntersectionModel(CachedModel):
    """A cached model whose tokens, lengths and logits are the target's. It returns no features.

    Args:
        translation: between the target's vocabulary and its own.

    Raises:
        ModelError: no text is shared; the message has examples of both vocabularies.
    """

    feeds_fixed: ClassVar[bool] = False  # a token may be several of the draft's
    lacks_tokens: ClassVar[bool] = True

    def __init__(self, model: PreTrainedModel, translation: Translation, name: str, dtype: torch.dtype | None = None):
        if not translation.shares_text:
            of_target, of_draft = translation.examples()
            raise ModelError(
                f"pair.vocabularies=different: target and draft share no token, so that the draft cannot be restricted "
                f"to what is shared. The target has {of_target}, the draft {of_draft}. Use drafter=strings, or a draft "
                "whose tokens are of a similar size."
            )
        self._inner = CachedModel(model, len(translation.draft.tokens), name, dtype)
        self.model, self.name, self.context = model, name, self._inner.context
        self.vocab_size, self.device = len(translation.target.tokens), self._inner.device
        self._draft_ids = translation.draft_ids.to(self.device)
        self._missing = self._draft_ids == MISSING
        self._pieces, self._counts = (table.to(self.device) for table in translation.pieces)
        self._read_as = [
            row[:count] for row, count in zip(*(table.tolist() for table in translation.pieces), strict=True)
        ]
        self._room = min(self._pieces.shape[1], _ROOM)
        self._grown = 0
        self._lengths = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._ends = torch.zeros((0, 0), dtype=torch.int64, device=self.device)  # draft tokens up to each token
        self.show(0, 0)

    @property
    def layout(self) -> int:  # ty: ignore[incompatible-property-override]
        return self._inner.layout + self._grown

    @property
    def dtype(self) -> torch.dtype:
        return self._inner.dtype

    @property
    def state(self) -> tuple[Tensor, ...]:
        return (self.lengths, *self._inner.state)

    @property
    def capacity(self) -> int:
        """The tokens of a request that there is memory for."""
        return max(self._ends.shape[1] - 1, 0)

    @property
    def fixed_forward(self) -> Callable[..., Any] | None:
        return self._inner.fixed_forward

    @fixed_forward.setter
    def fixed_forward(self, forward: Callable[..., Any] | None) -> None:
        self._inner.fixed_forward = forward

    def placed(self, model: Callable[..., Any]) -> Callable[..., Any]:
        return self._inner.placed(model)

    def start(self, prompts: Sequence[Sequence[int]], capacity: int, features: Sequence[Feature] = ()) -> Features:
        self._inner.start([], 0)
        self._lengths.zero_()
        self.reserve(len(prompts), capacity)
        self.place(prompts, range(len(prompts)), features)
        self.show(len(prompts), capacity)
        return {}

    def reserve(self, rows: int, capacity: int) -> None:
        before, now = self._ends.shape, (max(rows, len(self._ends)), max(capacity + 1, self._ends.shape[1]))
        if now != before:
            self._ends = torch.nn.functional.pad(self._ends, (0, now[1] - before[1], 0, now[0] - before[0]))
            self._lengths = torch.nn.functional.pad(self._lengths, (0, now[0] - before[0]))
            self.lengths = self._lengths[: len(self.lengths)]
            self._grown += 1
        # Behind a text there is room for the widest pass of a step: what is pending of it, one token and a bonus.
        self._inner.reserve(now[0], now[1] * self._room + 2 * self._pieces.shape[1])

    @torch.inference_mode()
    def place(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[int], features: Sequence[Feature] = ()
    ) -> Features:
        _refuse(features)
        self._written([prompt[:-1] for prompt in prompts], rows, [0] * len(prompts), whole=True)
        return {}

    @torch.inference_mode()
    def feed(
        self,
        pieces: Sequence[Sequence[int]],
        rows: Sequence[int],
        first: Sequence[int],
        features: Sequence[Feature] = (),
    ) -> Features:
        _refuse(features)
        self._written(pieces, rows, first, whole=False)
        return {}

    def _written(self, texts: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int], whole: bool) -> None:
        """Feeds whole prompts, or pieces of prompts of which the row has as many tokens as ``first`` says."""
        begun = [int(self._ends[row, place - 1]) if place else 0 for row, place in zip(rows, first, strict=True)]
        read = []
        for text, row, place, start in zip(texts, rows, first, begun, strict=True):
            pieces = [self._read_as[token] for token in text]
            if not self._fits(sum(map(len, pieces)) + start, place + len(text)):
                pieces = [piece[:1] for piece in pieces]
            ends = torch.tensor(list(itertools.accumulate(map(len, pieces), initial=start))[1:], dtype=torch.int64)
            self._ends[row, place : place + len(text)] = ends.to(self.device)
            self._lengths[row] = place + len(text)
            read.append(list(itertools.chain.from_iterable(pieces)))
        if whole:
            self._inner.place([[*tokens, 0] for tokens in read], rows)  # it leaves the last token for later
        else:
            self._inner.feed(read, rows, begun)

    def _fits(self, draft_tokens: _Count, tokens: _Count) -> Any:
        """Whether the rest of a text finds memory after its first tokens, given their number and that of the
        draft's."""
        return draft_tokens + (self._ends.shape[1] - tokens) <= self._ends.shape[1] * self._room

    def show(self, rows: int, longest: int | None = None) -> None:
        # No bound on draft tokens follows from ``longest``.
        self.lengths, self._fixed = self._lengths[:rows], longest is None
        self._inner.show(rows, None if longest is None else self._inner.capacity)

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if len(sources) > 0:
            at, to = self._integers(sources), self._integers(targets)
            self._lengths[to] = self._lengths[at]
            self._ends[to] = self._ends[at]
            self._inner.move(sources, targets)

    @torch.inference_mode()
    def extend(
        self,
        token_ids: Int64[Tensor, "B n"],
        counts: Int64[Tensor, " B"],
        ancestors: Bool[Tensor, "B n k"] | None = None,
        features: Sequence[Feature] = (),
    ) -> ModelOutput:
        """Feeds tokens as :meth:`CachedModel.extend` does. Tokens of a tree were drafted, so they are shared ones."""
        _refuse(features)
        pieces = self._fed_as(token_ids, counts)
        ends, begun = pieces.cumsum(dim=1), self._inner.lengths.clone()
        if ancestors is None:
            read = self._packed(token_ids, pieces, ends)
            logits = self._inner.extend(read, ends[:, -1]).logits
            logits = logits[torch.arange(len(read), device=self.device)[:, None], (ends - 1).clamp(min=0)]
        else:
            logits = self._inner.extend(self._draft_ids[token_ids].clamp(min=0), counts, ancestors).logits
        places = self.lengths[:, None] + torch.arange(token_ids.shape[1], device=self.device)
        self._ends[: len(pieces)].scatter_(1, places.clamp(max=self._ends.shape[1] - 1), begun[:, None] + ends)
        self.lengths += counts
        return ModelOutput(self._in_target_ids(logits), {})

    def _fed_as(self, token_ids: Int64[Tensor, "B n"], counts: Int64[Tensor, " B"]) -> Int64[Tensor, "B n"]:
        """How many draft tokens each token is fed as, 0 behind the last: all that it is read as, or one where memory
        would run out."""
        fed = torch.arange(token_ids.shape[1], device=self.device) < counts[:, None]
        pieces = torch.where(fed, self._counts[token_ids], 0)
        fits = self._fits(self._inner.lengths + pieces.sum(dim=1), self.lengths + counts)
        return torch.where(fits[:, None], pieces, pieces.clamp(max=1))

    def _packed(
        self, token_ids: Int64[Tensor, "B n"], pieces: Int64[Tensor, "B n"], ends: Int64[Tensor, "B n"]
    ) -> Int64[Tensor, "B width"]:
        """What is fed to the model: the pieces of each request's tokens, one after the other."""
        if self._fixed:
            width = token_ids.shape[1] * self._pieces.shape[1]
        else:  # the host waits for the device, and makes room
            width, longest = torch.stack([ends[:, -1].max(), self._inner.lengths.max()]).tolist()
            width = max(width, 1)
            self._inner.reserve(len(self._ends), longest + width)
            self._inner.show(len(ends), longest)
        places = torch.arange(width, device=self.device).expand(len(ends), -1).contiguous()
        token = torch.searchsorted(ends, places, right=True).clamp(max=token_ids.shape[1] - 1)
        piece = places - (ends - pieces).gather(1, token)
        return self._pieces[token_ids.gather(1, token), piece.clamp(0, self._pieces.shape[1] - 1)]

    def _in_target_ids(self, logits: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return logits[..., self._draft_ids].masked_fill(self._missing, -torch.inf)  # MISSING reads the last one

    def _ended(self, lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """The number of draft tokens that the first tokens of each text were fed as."""
        last = self._ends[: len(lengths)].gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        return torch.where(lengths > 0, last, 0)

    @torch.inference_mode()
    def truncate(self, lengths: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"] | None = None) -> None:
        """Takes tokens back as :meth:`CachedModel.truncate` does. Each token of a tree is one of the model's own."""
        if path is None:
            torch.minimum(self.lengths, lengths, out=self.lengths)
            self._inner.truncate(self._ended(self.lengths))
            return
        accepted = (path >= 0).sum(dim=1)
        root, inner_root = lengths - accepted, self._ended(lengths - accepted)
        self._inner.truncate(inner_root + accepted, path)
        torch.minimum(self.lengths, root + self._inner.lengths - inner_root, out=self.lengths)

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> Float[Tensor, "n V"]:
        pieces = [self._read_as[token] for token in token_ids]
        last = torch.tensor(list(itertools.accumulate(map(len, pieces))), device=self.device) - 1
        return self._in_target_ids(self._inner.score(list(itertools.chain.from_iterable(pieces)))[last])


def _refuse(features: Sequence[Feature]) -> None:
    if features:
        raise ArgumentError(f"features: {list(features)}; a draft of another vocabulary returns no hidden states")
