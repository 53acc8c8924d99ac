"""The input distribution D: every choice that is drawn for a call of a verifier, with its probability.

A certificate bounds the share of the requests of D whose tokens are not the rule's, so D has to be public and plain.
These tables are the only place where its numbers are written: draw.py draws from them, docs/inputs.md and each
certificate print them. One call is one batch of requests. What a call's requests share is drawn once a call, all else
once a request.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from specbench.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class Choice:
    """One choice: its options with their probabilities, which sum to 1.

    Attributes:
        per: "call" if the requests of a call share it, else "request".
        options: probability by option.
        text: what the options mean.
    """

    name: str
    per: str
    options: Mapping[str, float]
    text: str

    def draw(self, rng: np.random.Generator, size: int) -> list[str]:
        """Independent options."""
        names = list(self.options)
        return [names[i] for i in _places(self.options.values(), rng, size)]


@dataclass(frozen=True)
class Stratum:
    """A part of D. Vocabularies are log-uniform in their range; the form of the number is a choice (``vocabulary``).

    Attributes:
        name, reason: of the stratum, and which mistakes show there.
        vocabulary: smallest and largest number of tokens.
        gamma: ranges of draft lengths, uniform within one, with their probabilities.
        batch: likewise of requests in a call.
        recorded: whether rows are recorded ones of the embedded pair.
        sampling, dtype: in the place of what D draws, under the conditions of a run; None in D.
    """

    name: str
    reason: str
    probability: float
    vocabulary: tuple[int, int]
    gamma: Mapping[tuple[int, int], float]
    batch: Mapping[tuple[int, int], float]
    recorded: bool = False
    sampling: SamplingParams | None = None
    dtype: str | None = None

    @property
    def large(self) -> bool:
        """Whether its vocabularies have the size of a language model's."""
        return self.vocabulary[0] >= 32_000


# Draft lengths that engines use have most of the weight, and no length up to 16 has none.
USUAL_GAMMA = {
    (0, 0): 0.05, (1, 1): 0.25, (2, 2): 0.2, (3, 3): 0.18, (4, 4): 0.12, (5, 5): 0.09, (6, 8): 0.08, (9, 16): 0.03,
}  # fmt: skip
LONG_GAMMA = {(9, 16): 0.5, (17, 32): 0.3, (33, 64): 0.2}
FEW_REQUESTS = {(1, 1): 0.92, (2, 4): 0.07, (5, 16): 0.01}
MIXED_BATCHES = {(1, 1): 0.35, (2, 8): 0.35, (9, 64): 0.30}

STRATA = (
    Stratum("tiny", "few tokens, so that each is met often", 0.05, (2, 64), USUAL_GAMMA, MIXED_BATCHES),
    Stratum("small", "indices of rows, tiles that are not full", 0.06, (65, 4096), USUAL_GAMMA, MIXED_BATCHES),
    Stratum(
        "recorded", "rows of real models", 0.03, (4096, 4096), USUAL_GAMMA, {(1, 1): 0.6, (2, 8): 0.4}, recorded=True
    ),
    Stratum("long drafts", "drafts of 9 to 64 tokens", 0.03, (2, 1024), LONG_GAMMA, {(1, 1): 0.4, (2, 24): 0.6}),
    Stratum(
        "large batches", "calls of 65 to 512 requests", 0.03, (2, 256), USUAL_GAMMA, {(65, 128): 0.5, (129, 512): 0.5}
    ),
    Stratum("32k", "vocabularies of 32,000 to 40,960 tokens", 0.56, (32_000, 40_960), USUAL_GAMMA, FEW_REQUESTS),
    Stratum("64k", "vocabularies of up to 65,536 tokens", 0.15, (40_961, 65_536), USUAL_GAMMA, FEW_REQUESTS),
    Stratum("256k", "vocabularies of up to 262,144 tokens", 0.09, (65_537, 262_144), USUAL_GAMMA, FEW_REQUESTS),
)

CHOICES = {
    choice.name: choice
    for choice in (
        Choice(
            "vocabulary", "call", {"any": 0.5, "multiple of 1024": 0.2, "multiple of 64": 0.15, "odd": 0.15},
            "the number of tokens, rounded to the form where the stratum is wide enough",
        ),
        Choice("dtype", "call", {"float32": 0.55, "bfloat16": 0.3, "float16": 0.15}, "of the target's logits"),
        Choice(
            "draft dtype", "call", {"same": 0.8, "float32": 0.1, "bfloat16": 0.05, "float16": 0.05},
            "of the draft's logits",
        ),
        Choice(
            "drafts", "call", {"sampled": 0.75, "one-hot": 0.25},
            "drawn from the draft's rows, or without rows (half the argmax of the row, half a draw from it)",
        ),
        Choice(
            "padding", "call", {"none": 0.75, "padded": 0.25},
            "whether every request owns as many rows of the draft and the target, as in engines with fixed shapes; "
            "drawn for verifiers that take padded drafts",
        ),
        Choice(
            "spare", "call", {"none": 0.9, "some": 0.1},
            "whether max_draft_tokens, the width of the batch, is 1 to 8 above the longest draft of the call",
        ),
        Choice(
            "layout", "call",
            {"contiguous": 0.6, "wider": 0.2, "offset": 0.1, "every second row": 0.1},
            "how rows lie in memory: dense; in a buffer of 1 to 128 columns more; dense from an odd element on; with a "
            "row of others between two",
        ),
        Choice(
            "normaliser", "call", {"target unknown": 0.45, "both known": 0.35, "both unknown": 0.2},
            "whether log_normalizer is there; known in any case where a request of the call truncates",
        ),
        Choice(
            "temperature", "request", {"1": 0.25, "0": 0.1, "log-uniform": 0.65},
            "1, 0 (greedy), or log-uniform from 0.05 to 5",
        ),
        Choice(
            "draft temperature", "request", {"same": 0.65, "0": 0.05, "log-uniform": 0.3}, "the target's, or its own"
        ),
        Choice(
            "truncation", "request",
            {"none": 0.6, "top-k": 0.1, "top-p": 0.1, "min-p": 0.1, "top-k and top-p": 0.1},
            "of both models: k log-uniform from 1 to 200, p uniform from 0.3 to 0.99 (among the 256 most likely "
            "tokens), min-p log-uniform from 0.0001 to 0.3",
        ),
        Choice(
            "mask", "request", {"none": 0.8, "half": 0.08, "few": 0.08, "one": 0.04},
            "tokens at -inf: each token with a probability drawn from 0 to 1, all but 2 to 20, all but one; in every "
            "third call of a verifier that takes masks, in target.allowed instead",
        ),
        Choice("masked", "request", {"target": 0.5, "both": 0.5}, "which rows a mask applies to"),
        Choice(
            "rows", "request", {"usual": 0.6, "peaked": 0.12, "flat": 0.1, "near-tied": 0.18},
            "normal logits of spread 1 to 3 with up to 48 likely tokens anywhere; one token far above; spread 0.1; "
            "usual ones rounded to multiples of 0.5; recorded rows keep their shape",
        ),
        Choice(
            "draft rows", "request", {"close": 0.85, "equal": 0.05, "unrelated": 0.1},
            "the target's logits plus normal noise (log-uniform from 0.02 to 1.5), the target's own, or others",
        ),
        Choice(
            "shift", "request", {"none": 0.85, "some": 0.1, "far": 0.05},
            "added to all logits of a request: 0, -60 to 60, or -900 or 900",
        ),
        Choice(
            "seed", "request", {"written": 0.5, "end": 0.1, "any": 0.4},
            "0 to 10^5 (log-uniform), an end of a range of bits (streams.END_SEEDS), all 63 bits",
        ),
        Choice(
            "position", "request", {"written": 0.6, "end": 0.1, "any": 0.3},
            "0 to 10^5 (log-uniform), an end of a range of bits (streams.END_POSITIONS), all 32 bits",
        ),
    )
}  # fmt: skip


def choices_of(seed: int, number: int) -> np.random.Generator:
    """What the choices of a call of D are drawn from, its stratum first."""
    return np.random.default_rng([seed, number])


def drawn_stratum(rng: np.random.Generator) -> Stratum:
    """Returns a stratum, each with its probability."""
    return STRATA[rng.choice(len(STRATA), p=[stratum.probability for stratum in STRATA])]


def drawn_from(ranges: Mapping[tuple[int, int], float], rng: np.random.Generator, size: int) -> np.ndarray:
    """Whole numbers: a range by its probability, then uniform within it."""
    chosen = np.array(list(ranges))[_places(ranges.values(), rng, size)]
    return rng.integers(chosen[:, 0], chosen[:, 1] + 1)


def _places(probabilities: Iterable[float], rng: np.random.Generator, size: int) -> np.ndarray:
    """Places in a table, each with its probability, as ``rng.choice`` draws them in four times the time."""
    return np.searchsorted(np.cumsum(list(probabilities))[:-1], rng.random(size), side="right")


def log_uniform(rng: np.random.Generator, low: float | int, high: float | int, size: int) -> np.ndarray:
    """Numbers whose logarithm is uniform."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def _ranges(ranges: Mapping[tuple[int, int], float]) -> str:
    return ", ".join(
        f"{low if low == high else f'{low} to {high}'} {share:.0%}" for (low, high), share in ranges.items()
    )


def published() -> Iterator[tuple[str, str, str, str]]:
    """The whole table of D as rows (choice, drawn for each, options with probabilities, meaning)."""
    for stratum in STRATA:
        low, high = stratum.vocabulary
        size = f"{low:,} tokens" if low == high else f"{low:,} to {high:,} tokens"
        text = f"{size}; gamma of each request {_ranges(stratum.gamma)}; requests of a call {_ranges(stratum.batch)}"
        yield f"stratum {stratum.name!r}", "call", f"{stratum.probability:.0%}", text
    for choice in CHOICES.values():
        options = ", ".join(f"{name} {share:.0%}" for name, share in choice.options.items())
        yield choice.name, choice.per, options, choice.text
