"""Drafting as text with a model of another vocabulary: string-level exact match.

The draft model writes in its own tokens, and what it wrote is read as tokens of the target (Timor et al.,
arXiv 2502.05202, algorithm 2). It may use its whole vocabulary, shared or not, and may share nothing.

Which target tokens come of it is settled before the verifier draws anything. Given its draft, q is one-hot: a lossless
rule accepts x with probability p(x) and draws from p without x after a refusal, or draws the target's own token and
compares. Both give p whatever x is, so that decoding is lossless however x was found: likeliest tokens or sampled ones,
read well or badly. The draft only must not know what the verifier draws with. A target token may depend on all
that was drafted, on later tokens too; so drafts are drawn with random numbers of their own, which no verifier has
(verifier=control/coupled draws the target's tokens with those that drafts are usually drawn with).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.errors import ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft
from specbench.drafters.base import Drafter
from specbench.extras.vocabularies.retokenized import Retokenized
from specbench.extras.vocabularies.translation import Translation
from specbench.models import Engine, Pair, right_padded
from specbench.sampling import RowParams, logit_rows, sample
from specbench.sampling.batch import Batch

_OWN_NUMBERS = 0x5349_4E47_5354_5254  # for the seeds of drafts
_MULTIPLE = 64  # memory is for a multiple of so many tokens, so that it seldom grows


class StringsDrafter(Drafter):
    """Each step drafts as many tokens of the draft model as the target may accept, and reads them as target tokens.

    Texts are kept and read on the host. Of the sampling parameters, temperature, top-k, top-p and min-p shape the
    draft; what knows tokens of the target (penalties, bans, grammars, processors) shapes the target alone.

    Args:
        sampled: draw the draft's tokens at the request's temperature; False takes the likeliest ones, which are
            accepted more often (the sum of p q is at most the largest p).
    """

    needs_draft_model: ClassVar[bool] = True
    capturable: ClassVar[bool] = False

    def __init__(self, sampled: object = False):
        if not isinstance(sampled, bool):  # as a yaml may have it
            raise ConfigError("drafter.sampled", sampled, "not true or false", "Use true or false.")
        self.sampled = sampled

    def _attach(self, pair: Pair, target: Engine) -> None:
        self.check_draft(pair.draft is not None)
        assert pair.draft is not None
        shared = pair.translation or Translation.between_same(pair.tokenizer, pair.vocab_size)
        assert isinstance(shared, Translation), "of another provider of different_vocabularies"
        self._translation = shared
        self.own = Engine(pair.draft, len(self._translation.draft.tokens), "draft")
        self._texts: dict[int, Retokenized] = {}

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        device, width = batch.lengths.device, streams.width - 1
        if width == 0:
            return Draft.empty(len(batch), device)
        texts = [self._texts[row] for row in range(len(batch))]
        for text, tokens, length in zip(texts, batch.tokens, batch.lengths.tolist(), strict=True):
            text.append(tokens[text.length : length].tolist())
        written = self._written(batch, texts, width, streams)
        found = [text.read(ids[:room])[:room] for text, ids, room in zip(texts, written, limits.tolist(), strict=True)]
        counts = torch.tensor([len(each) for each in found], device=device)
        ids = torch.tensor([token for each in found for token in each], dtype=torch.int64, device=device)
        return Draft(ids, None, counts, max(map(len, found)))

    def _written(self, batch: Batch, texts: Sequence[Retokenized], width: int, streams: Streams) -> list[list[int]]:
        """What the draft model writes after each text: ``width`` of its own tokens."""
        own, device = self._model, batch.lengths.device
        kept, fed = [text.known for text in texts], [text.ids[text.known :] for text in texts]
        own.bound(max(kept))
        # Padding is written to as well.
        self._make_room(len(batch), max(map(len, (text.ids for text in texts))) + max(map(len, fed)) + width)
        own.truncate(torch.tensor(kept, device=device))
        counts = torch.tensor([len(each) for each in fed], device=device)
        logits = own.extend(right_padded(fed, device), counts)[torch.arange(len(fed), device=device), counts - 1]
        params, uniforms = self._sampling(batch, streams)
        written: list[Tensor] = []
        for i in range(width):
            if i > 0:
                logits = own.extend(written[-1][:, None], torch.ones_like(counts))[:, 0]
            # A row with NaN has no token to feed. Its draft is as good as any, and the target will have NaN or not.
            written.append(sample(logit_rows(logits, params), uniforms[:, i]).clamp(min=0))
        ids = torch.stack(written, dim=1).tolist()
        for text, each in zip(texts, ids, strict=True):
            text.written(each[:-1])  # the last one was not fed
        return ids

    def _sampling(self, batch: Batch, streams: Streams) -> tuple[RowParams, Float64[Tensor, "B width"]]:
        given = batch.params
        params = RowParams(given.temperature, given.top_k, given.top_p, given.min_p, given.truncates)
        if not self.sampled:
            likeliest = torch.zeros_like(params.temperature)
            nothing = likeliest[:, None].expand(-1, streams.width)  # nothing is drawn
            return dataclasses.replace(params, temperature=likeliest, truncates=False), nothing
        own = Streams(streams.seeds ^ _OWN_NUMBERS, streams.positions, streams.width)
        return params, own.uniform(Stream.DRAFT)

    def _make_room(self, rows: int, capacity: int) -> None:
        self._model.reserve(rows, -(-capacity // _MULTIPLE) * _MULTIPLE)

    @property
    def _model(self) -> Engine:
        assert self.own is not None, "bind first"
        return self.own

    def commit(self, agreed: Int64[Tensor, " B"]) -> None:
        """What was refused is forgotten when the next draft begins, with the text at hand."""

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._texts.clear()
        self._model.start([], 0)
        self._make_room(len(prompts), capacity)
        self.place(prompts, range(len(prompts)))
        self._model.show(len(prompts))

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        texts = [Retokenized(self._translation, prompt) for prompt in prompts]
        self._texts.update(zip(rows, texts, strict=True))
        self._make_room(0, max((len(text.ids) for text in texts), default=0))
        self._model.place([text.ids for text in texts], rows)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        super().move(sources, targets)
        self._texts.update({to: self._texts[at] for at, to in zip(sources, targets, strict=True)})

    def bound(self, longest: int) -> None:
        """Nothing: how many draft tokens there are does not follow from it."""
