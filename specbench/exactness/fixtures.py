"""Small model pairs whose every distribution is known: what verifiers are tested on.

A fixture is a table of rows p and q, one a position in the block and state of the prefix before it. Nearly every real
mistake reads the row next to the right one, so that fixtures with equal rows hide it (which most published tests have);
here every row differs, and the state is the whole prefix where the vocabulary is small.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.sampling import RowParams, SamplingParams, logit_rows
from specbench.types import LogitRows


@dataclass(frozen=True)
class Fixture:
    """A target and a draft as tables of rows.

    Attributes:
        name, reason: what it is, and which mistakes it is there to show.
        target: the rows p of positions 0..gamma, one a state; position i starts at ``first_row[i]``. As models give
            them: nobody has computed a normaliser where nothing truncates.
        draft: the rows q of positions 0..gamma-1, at the same indices; as drafting leaves them, normaliser and all.
        gamma: the longest draft.
        states: how many states each position 0..gamma has. A position's state is that of the one before it times V plus
            the token, modulo the number of states: the whole prefix where there are V^i of them.
        counts: num_draft_tokens of the requests, in turn.
        variants: sets of sampling parameters of the requests, in turn; the tables hold all positions once for each.
        deterministic: drafts are the argmax of q and come without rows.
    """

    name: str
    reason: str
    target: LogitRows
    draft: LogitRows
    gamma: int
    states: tuple[int, ...]
    counts: tuple[int, ...]
    variants: int = 1
    deterministic: bool = False

    @property
    def vocabulary(self) -> int:
        return self.target.logits.shape[1]

    @property
    def whole_prefix(self) -> bool:
        """Whether a state is the whole prefix, so that steps can be enumerated."""
        return all(states == self.vocabulary**i for i, states in enumerate(self.states))

    @cached_property
    def first_row(self) -> tuple[int, ...]:
        return tuple(sum(self.states[:i]) for i in range(len(self.states)))

    @property
    def rows(self) -> int:
        """Table rows of one variant."""
        return sum(self.states)

    def variant(self, number: int) -> Fixture:
        """The fixture with the requests of one variant alone."""
        if self.variants == 1:
            return self
        first, device = number * self.rows, self.target.logits.device
        own = torch.arange(first, first + self.rows, device=device)
        return dataclasses.replace(self, target=self.target.select(own), draft=self.draft.select(own), variants=1)

    def advance(self, position: int, state: Int64[Tensor, ...], token: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
        """The state of position + 1, where ``token`` follows ``state`` at ``position``."""
        following = state * self.vocabulary + token
        return (
            following
            if self.states[position + 1] == self.vocabulary ** (position + 1)
            else following % (self.states[position + 1])
        )

    @cached_property
    def p(self) -> Float64[Tensor, "rows V"]:
        """The target's probabilities."""
        return dataclasses.replace(self.target).probs()  # of a copy, or the rows would remember their normaliser

    @cached_property
    def q(self) -> Float64[Tensor, "draft_rows V"]:
        """The draft's probabilities; one-hot where it is deterministic."""
        if self.deterministic:
            return torch.nn.functional.one_hot(self.draft.argmax, self.vocabulary).double()
        return self.draft.probs()

    def to(self, device: torch.device) -> Fixture:
        """The fixture on a device."""
        return dataclasses.replace(self, target=_moved(self.target, device), draft=_moved(self.draft, device))


def _moved(rows: LogitRows, device: torch.device) -> LogitRows:
    known = None if rows.log_normalizer is None else rows.log_normalizer.to(device)
    return LogitRows(rows.logits.to(device), rows.temperature.to(device), rows.cutoff.to(device), known)


def _fixture(
    name: str,
    reason: str,
    p_logits: Tensor,
    q_logits: Tensor,
    gamma: int,
    *,
    states: tuple[int, ...] | None = None,
    counts: tuple[int, ...] | None = None,
    params: tuple[SamplingParams, ...] = (SamplingParams(),),
    draft_params: tuple[SamplingParams, ...] | None = None,
    deterministic: bool = False,
) -> Fixture:
    vocabulary = p_logits.shape[1]
    states = states or tuple(vocabulary**i for i in range(gamma + 1))
    if len(params) > 1:  # rows that nothing is drafted from, so that both tables repeat at the same length
        q_logits = torch.cat([q_logits, p_logits[len(q_logits) :]])
    target, draft = (
        logit_rows(logits.repeat(len(sets), 1), RowParams.of([each for each in sets for _ in range(len(logits))]))
        for logits, sets in ((p_logits, params), (q_logits, draft_params or params))
    )
    draft = dataclasses.replace(draft, log_normalizer=draft.normalizer)
    return Fixture(name, reason, target, draft, gamma, states, counts or (gamma,), len(params), deterministic)


def _logits(
    vocabulary: int, gamma: int, seed: int, spread: float = 1.3, closeness: float | None = None
) -> list[Tensor]:
    """Random p and q logits for every prefix; ``closeness`` makes q a noisy copy of p."""
    generator = torch.Generator().manual_seed(seed)
    rows = sum(vocabulary**i for i in range(gamma + 1))
    p = spread * torch.randn(rows, vocabulary, generator=generator)
    noise = torch.randn(rows - vocabulary**gamma, vocabulary, generator=generator)
    return [p, spread * noise if closeness is None else p[: len(noise)] + closeness * noise]


def small_fixtures() -> tuple[Fixture, ...]:
    """The fixtures whose joint distribution over a whole step is tested and enumerated."""
    zeros_p, zeros_q = _logits(4, 2, seed=4)
    for i, logits in enumerate((zeros_p, zeros_q)):  # supports that overlap in part, another part in every row
        rows = torch.arange(len(logits))
        logits[rows, (rows + 2 * i) % 4] = -math.inf
    ties_p, ties_q = _logits(3, 2, seed=5)
    ties_p[:, 1] = ties_p[:, 0]
    ties_q[::2] = ties_p[: len(ties_q) : 2]  # p = q in every other row
    ties_q[1::2, 2] = ties_q[1::2, 1]
    return (
        _fixture("chain", "every row differs: shifted indices, wrong rows", *_logits(3, 2, seed=1), 2),
        _fixture("deep", "a longer block: whatever goes wrong late in it", *_logits(2, 3, seed=2), 3),
        _fixture("near", "q close to p: small residuals, long acceptance", *_logits(3, 2, seed=3, closeness=0.25), 2),
        _fixture("zeros", "tokens of probability 0 under p, under q, or both", zeros_p, zeros_q, 2),
        _fixture("ties", "p = q in every other row, tied tokens", ties_p, ties_q, 2),
        _fixture("one_hot", "a deterministic draft without rows", *_logits(3, 2, seed=6), 2, deterministic=True),
        _fixture(
            "processed",
            "temperature and top-p: raw and processed distributions mixed up",
            *_logits(4, 1, seed=7, spread=1.0),
            1,
            params=(SamplingParams(temperature=0.6, top_p=0.95),),
        ),
        _fixture(
            "ragged", "requests that draft 0, 1 and 2 tokens in one batch", *_logits(3, 2, seed=8), 2, counts=(2, 0, 1)
        ),
        _fixture(
            "mixed",
            "sampling parameters that differ in a batch, and between draft and target: another row's are read",
            *_logits(3, 2, seed=9, spread=1.0, closeness=0.8),
            2,
            params=(
                SamplingParams(temperature=0.7),
                SamplingParams(temperature=1.4, top_p=0.85),
                SamplingParams(temperature=0.0),
            ),
            draft_params=tuple(SamplingParams(temperature=each) for each in (1.1, 0.8, 1.3)),
        ),
        _fixture("idle", "nobody drafts, though two tokens might be", *_logits(3, 2, seed=10), 2, counts=(0,)),
        _long_fixture(),
    )


def _long_fixture() -> Fixture:
    """Blocks longer than a kernel's first chunk; a row depends on the last token alone, or there would be thousands."""
    gamma, vocabulary = 6, 3
    states = (1, *(vocabulary,) * gamma)
    generator = torch.Generator().manual_seed(11)
    p = 1.3 * torch.randn(sum(states), vocabulary, generator=generator)
    q = p[: sum(states[:-1])] + 0.5 * torch.randn(sum(states[:-1]), vocabulary, generator=generator)
    reason = "drafts of 5 and 2 tokens where 6 were allowed, logits of 16 bits, a temperature without normalisers"
    warm = (SamplingParams(temperature=0.7),)
    return _fixture("long", reason, p.bfloat16(), q.bfloat16(), gamma, states=states, counts=(5, 2), params=warm)


def random_fixture(name: str, vocabulary: int, gamma: int, seed: int, identical: bool = False) -> Fixture:
    """A fixture of the usual kind, or, to see what such tests miss, one whose rows are all the same."""
    p, q = _logits(vocabulary, gamma, seed=seed)
    if identical:
        p, q = p[:1].repeat(len(p), 1), q[:1].repeat(len(q), 1)
    return _fixture(name, "all rows equal" if identical else "every row differs", p, q, gamma)


def greedy_fixture() -> Fixture:
    """Temperature 0 with ties: one sequence has all the probability, and anything else is forbidden."""
    p, q = _logits(3, 2, seed=17, closeness=1.0)
    p[::2] = p[::2].clamp(max=0.2)  # ties, where the lowest index wins
    return _fixture("greedy", "temperature 0 with ties", p, q, 2, params=(SamplingParams(temperature=0.0),))


def large_fixture(vocabulary: int, classes: int = 4, gamma: int = 2) -> Fixture:
    """Rows as language models have them (few likely tokens, a long flat tail); the state is the last token's class."""
    generator = torch.Generator().manual_seed(vocabulary)
    states = (1, *(classes,) * gamma)
    p = 2.2 * torch.randn(sum(states), vocabulary, generator=generator)
    p[:, : vocabulary // 50] += 4.0
    q = p[: sum(states[:-1])] + 0.7 * torch.randn(sum(states[:-1]), vocabulary, generator=generator)
    reason = "a vocabulary of real size: sums over long rows, resolution of the random numbers"
    return _fixture(f"large_{vocabulary}", reason, p, q, gamma, states=states)
