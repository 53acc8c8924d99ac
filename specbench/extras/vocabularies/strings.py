"""Drafting as text with a model of another vocabulary: string-level exact match.

The draft model writes in its own tokens, and what it wrote is read as tokens of the target (Timor et al.,
arXiv 2502.05202, algorithm 2). It may use its whole vocabulary, shared or not, and may share nothing.

The target tokens of a draft are fixed before the verifier draws anything. Given its draft, q is one-hot: a lossless
rule accepts x with probability p(x) and draws from p without x after a refusal, or draws the target's own token and
compares. Both give p for any x, so that decoding is lossless however x was chosen: likeliest tokens or sampled ones,
read well or badly. The draft only must not depend on the verifier's random numbers. A target token may depend on all
drafted tokens, later ones included. So drafts are drawn with random numbers of their own, which no verifier uses
(verifier=control/coupled draws the target's tokens with the numbers that drafts are usually drawn with).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.checks import check_flag
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft
from specbench.drafters.drafter import Drafter
from specbench.extras.vocabularies.retokenized import Retokenized
from specbench.extras.vocabularies.spelling import Spelling
from specbench.extras.vocabularies.translation import Translation
from specbench.models import CachedModel, Pair, RowCache, right_padded
from specbench.sampling import RowParams, logit_rows, sample
from specbench.sampling.batch import Batch

_DRAFT_SEED = 0x5349_4E47_5354_5254  # separates the random numbers of drafts from those of verifiers
_MULTIPLE = 64  # capacities are multiples of it, so that memory seldom grows


class TextCache(RowCache):
    """The texts of requests in the draft's tokens, on the host, and the draft model that reads them.

    Rejected tokens are taken back when the next draft begins, from the text itself.
    """

    def __init__(self, translation: Translation, model: CachedModel):
        self.model = model
        self._translation = translation
        self._texts: dict[int, Retokenized] = {}

    @property
    def layout(self) -> int:  # ty: ignore[incompatible-property-override]
        return self.model.layout

    def texts(self, rows: int) -> list[Retokenized]:
        """Returns the texts of the leading rows."""
        return [self._texts[row] for row in range(rows)]

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        self._texts.clear()
        self.model.start([], 0)
        super().start(prompts, capacity)

    def reserve(self, rows: int, capacity: int) -> None:
        self.model.reserve(rows, -(-capacity // _MULTIPLE) * _MULTIPLE)

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        texts = [Retokenized(self._translation, prompt) for prompt in prompts]
        self._texts.update(zip(rows, texts, strict=True))
        self.reserve(0, max((len(text.ids) for text in texts), default=0))
        self.model.place([text.ids for text in texts], rows)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.model.move(sources, targets)
        self._texts.update({target: self._texts[source] for source, target in zip(sources, targets, strict=True)})

    def show(self, rows: int, longest: int | None = None) -> None:
        self.model.show(rows, None if longest is None else self.model.capacity)


class StringsDrafter(Drafter):
    """Each step drafts as many tokens of the draft model as the target may accept, and reads them as target tokens.

    Texts are stored and read on the host. Of the sampling parameters, temperature, top-k, top-p and min-p shape the
    draft. Parameters that depend on tokens of the target (penalties, bans, grammars, processors) shape the target
    alone.

    Args:
        sampled: draw the draft's tokens at the request's temperature; False takes the likeliest ones, which are
            accepted more often (the sum of p q is at most the largest p).
    """

    needs_draft_model: ClassVar[bool] = True
    capturable: ClassVar[bool] = False
    takes_pieces: ClassVar[bool] = False  # the draft's tokens of a prompt are those of the whole prompt

    def __init__(self, sampled: object = False):
        self.sampled = check_flag("drafter.sampled", sampled)

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        self.check(pair.draft is not None)
        assert pair.draft is not None
        translation = pair.translation
        if translation is None:  # the draft has the target's tokenizer
            spelling = Spelling(pair.tokenizer, pair.vocab_size)
            translation = Translation(spelling, spelling)
        assert isinstance(translation, Translation), "of another provider of different_vocabularies"
        self._cache = TextCache(translation, CachedModel(pair.draft, len(translation.draft.tokens), "draft"))
        self.caches = (self._cache,)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        device, width = batch.lengths.device, streams.width - 1
        if width == 0:
            return Draft.empty(len(batch), device)
        texts = self._cache.texts(len(batch))
        for text, tokens, length in zip(texts, batch.tokens, batch.lengths.tolist(), strict=True):
            text.append(tokens[text.length : length].tolist())
        written = self._written(batch, texts, width, streams)
        rows = list(zip(texts, written, limits.tolist(), strict=True))
        drafts = [text.read(ids[:limit])[:limit] for text, ids, limit in rows]
        for text, ids, limit in rows:
            # The last token was not fed. What others of the batch have written for it does not count, so that the text
            # is read as it would be alone.
            text.written(ids[:limit][:-1])
        counts = torch.tensor([len(draft) for draft in drafts], device=device)
        ids = torch.tensor([token for draft in drafts for token in draft], dtype=torch.int64, device=device)
        return Draft(ids, None, counts, max(map(len, drafts)))

    def _written(self, batch: Batch, texts: Sequence[Retokenized], width: int, streams: Streams) -> list[list[int]]:
        """Returns ``width`` tokens of the draft model after each text."""
        model, device = self._cache.model, batch.lengths.device
        cached, fed = [text.known for text in texts], [text.ids[text.known :] for text in texts]
        # Padding is written to as well.
        self._cache.reserve(len(batch), max(len(text.ids) for text in texts) + max(map(len, fed)) + width)
        model.show(len(batch), max(cached))
        model.truncate(torch.tensor(cached, device=device))
        counts = torch.tensor([len(ids) for ids in fed], device=device)
        logits = model.extend(right_padded(fed, device), counts).logits
        logits = logits[torch.arange(len(fed), device=device), counts - 1]
        params, uniforms = self._sampling(batch, streams)
        written: list[Tensor] = []
        for i in range(width):
            if i > 0:
                logits = model.extend(written[-1][:, None], torch.ones_like(counts)).logits[:, 0]
            # A row with NaN has no token to feed. Any draft will do, since q is one-hot.
            written.append(sample(logit_rows(logits, params), uniforms[:, i]).clamp(min=0))
        return torch.stack(written, dim=1).tolist()

    def _sampling(self, batch: Batch, streams: Streams) -> tuple[RowParams, Float64[Tensor, "B width"]]:
        params = dataclasses.replace(batch.params, chains=(), shaping=None)
        if not self.sampled:
            likeliest = torch.zeros_like(params.temperature)
            unused = likeliest[:, None].expand(-1, streams.width)  # nothing is drawn
            return dataclasses.replace(params, temperature=likeliest, truncates=False), unused
        draft_streams = Streams(streams.seeds ^ _DRAFT_SEED, streams.positions, streams.width)
        return params, draft_streams.uniform(Stream.DRAFT)
