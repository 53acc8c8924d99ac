"""A toy pair, p and q of the next token given the last one, as traces and as models that the decoder can drive."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.drafters import Drafter
from specbench.models import CachedModel, Feature, Features, ModelOutput
from specbench.replay.trace import Identity, Trace
from specbench.sampling import sample
from specbench.sampling.batch import Batch

IDENTITY = Identity("p", "q", {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}, "float64", "toy")


def markov_pair(vocabulary: int = 4, closeness: float = 0.6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random p and q [V, V], rows by the last token."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(vocabulary), size=vocabulary)
    return p, closeness * p + (1 - closeness) * rng.dirichlet(np.ones(vocabulary), size=vocabulary)


def trace_of_tokens(
    p: np.ndarray, q: np.ndarray, texts: Sequence[Sequence[int]], last: int = 0, prompts: Sequence[str] = ()
) -> Trace:
    """The trace of texts that follow a prompt ending in ``last``; prompts are named 0, 1, 2, ... if not given."""
    before = np.concatenate([[last, *text[:-1]] for text in texts]).astype(int)
    tokens = np.concatenate([np.asarray(text) for text in texts]).astype(np.int64)
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    columns = {
        "log_p": np.log(p[before, tokens]),
        "log_q": np.log(q[before, tokens]),
        "overlap": np.minimum(p, q).sum(axis=1)[before],
        "target_entropy": -(p * np.log(p)).sum(axis=1)[before],
        "draft_entropy": -(q * np.log(q)).sum(axis=1)[before],
        "argmax_agree": (p.argmax(axis=1) == q.argmax(axis=1))[before],
        "draft_argmax": q.argmax(axis=1)[before] == tokens,
    }
    names = list(prompts) or [str(i) for i in range(len(texts))]
    floats = {name: values.astype(np.float32) for name, values in columns.items()}
    return Trace(IDENTITY, names, starts, tokens, floats, np.diff(starts))


def sampled_texts(p: np.ndarray, count: int, length: int, seed: int) -> np.ndarray:
    """Texts [count, length] of p after a prompt that ends in token 0."""
    rng, texts = np.random.default_rng(seed), np.zeros((count, length + 1), dtype=int)
    for t in range(length):
        beyond = rng.random(count)[:, None] > p[texts[:, t]].cumsum(axis=1)
        texts[:, t + 1] = beyond.sum(axis=1).clip(max=len(p) - 1)
    return texts[:, 1:]


def outcomes(rule: str, p: np.ndarray, q: np.ndarray, draft: Sequence[int]) -> list[tuple[float, np.ndarray]]:
    """Returns, for each number of accepted tokens of a draft, its probability and the law [V] of the token behind them.

    The rules as the papers write them: "token" (Leviathan et al., arXiv 2211.17192), "block" (Sun et al., 2403.10444).
    """
    before = (0, *draft)
    ratios = [p[a, b] / q[a, b] for a, b in itertools.pairwise(before)]
    if rule == "token":
        pis = [1.0] * len(before)
        stands = np.cumprod([1.0, *np.minimum(ratios, 1.0)])
        chances = list(stands - np.append(stands[1:], 0.0))
    else:
        pis, chances, left = [1.0], [], 1.0
        for ratio in ratios:
            pis.append(min(1.0, pis[-1] * ratio))
        for i in reversed(range(len(pis))):
            spare, lost = np.maximum(pis[i] * p[before[i]] - q[before[i]], 0).sum(), 1 - pis[i]
            h = spare / (spare + lost) if spare + lost > 0 else 1.0
            h = 1.0 if i == 0 else pis[i] if i == len(draft) else h
            chances.insert(0, left * h)
            left *= 1 - h
    residuals = [np.maximum(pi * p[token] - q[token], 0) for pi, token in zip(pis, before, strict=True)]
    residuals[-1] = p[before[-1]]
    return [(chance, weights / (weights.sum() or 1.0)) for chance, weights in zip(chances, residuals, strict=True)]


class MarkovModel(CachedModel):
    """Logits from a table by the last token; counts lengths as specbench.models.CachedModel does."""

    device = torch.device("cpu")
    compare_ranks = None

    def __init__(self, table: np.ndarray):
        self.table = torch.from_numpy(np.log(table)).float()
        self.layout, self.vocab_size = 0, table.shape[1]
        self._lengths = torch.zeros(0, dtype=torch.int64)
        self.show(0, 0)

    def start(self, prompts: Sequence[Sequence[int]], capacity: int, features: Sequence[Feature] = ()) -> Features:
        self._lengths.zero_()
        self.reserve(len(prompts), capacity)
        self.place(prompts, range(len(prompts)))
        self.show(len(prompts), capacity)
        return {}

    def reserve(self, rows: int, capacity: int) -> None:
        if rows > len(self._lengths):
            self._lengths = torch.nn.functional.pad(self._lengths, (0, rows - len(self._lengths)))
            self.layout += 1

    def place(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[int], features: Sequence[Feature] = ()
    ) -> Features:
        for prompt, row in zip(prompts, rows, strict=True):
            self._lengths[row] = len(prompt) - 1
        return {}

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._lengths[list(targets)] = self._lengths[list(sources)]

    def show(self, rows: int, longest: int | None = None) -> None:
        self.lengths = self._lengths[:rows]
        assert longest is None or rows == 0 or int(self.lengths.max()) <= longest

    def extend(
        self,
        token_ids: Tensor,
        counts: Tensor,
        ancestors: Tensor | None = None,
        features: Sequence[Feature] = (),
    ) -> ModelOutput:
        self.lengths += counts
        return ModelOutput(self.table[token_ids], {})


class MarkovDrafter(Drafter):
    """Samples from a MarkovModel's table."""

    has_probabilities = True

    def __init__(self, table: np.ndarray):
        self.model = MarkovModel(table)

    def propose(self, batch: Batch, limits: Tensor, streams: Streams) -> Draft:
        width = streams.width - 1
        if width == 0:
            return Draft.empty(len(batch), self.model.device)
        last, tokens, rows = batch.span(batch.lengths - 1, 1)[:, 0], [], []
        for i in range(width):
            drafted = torch.stack(tokens, dim=1) if i else batch.tokens[:, :0]
            rows.append(batch.rows(self.model.table[last], drafted, first=i))
            last = sample(rows[-1], streams.uniform(Stream.DRAFT)[:, i])
            tokens.append(last)
        return Draft(torch.stack(tokens, dim=1).flatten(), LogitRows.interleave(rows), limits, width, padded=True)
