"""Verified steps on a fixture: draft with the DRAFT stream, verify, and follow what was emitted through the table.

The draft tokens are drawn here, from the very streams the verifier gets, because the drafter's randomness belongs to
the rule: a verifier that reuses it is biased although each of its parts looks right.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.exactness import guard
from specbench.exactness.fixtures import Fixture
from specbench.exactness.fixtures.table import first_above
from specbench.exactness.reference import TabledCall, VerifyCall
from specbench.exactness.streams import uniforms
from specbench.rules.draft_path import DraftPathTables
from specbench.rules.verifier import Verifier, capabilities


@dataclass(frozen=True)
class Drawn(TabledCall):
    """B requests of a fixture with their drafts, and where these stand in its tables.

    Attributes:
        fixture: on the streams' device.
        tokens: [B, gamma], the drafted tokens; those beyond a request's draft were never drafted.
        rows: [B, gamma + 1], the table rows along them.
        base: [B], where each request's variant begins in the tables.
    """

    fixture: Fixture
    tokens: Int64[Tensor, "B gamma"]
    rows: Int64[Tensor, "B width"]
    base: Int64[Tensor, " B"]

    @cached_property
    def path(self) -> DraftPathTables:
        """p and q along the drafts, which are taken to be drawn from the fixture's own rows."""
        fixture, rows = self.fixture, self.rows
        return DraftPathTables(fixture.p, fixture.q, rows, rows[:, :-1], self.tokens, self.counts)

    @property
    def classes(self) -> Int64[Tensor, " B"]:
        """Which of ``fixture.classes()`` each request is of."""
        lengths = torch.tensor(sorted(set(self.fixture.counts)), device=self.base.device)
        return self.base // self.fixture.rows * len(lengths) + torch.searchsorted(lengths, self.counts)


@dataclass(frozen=True)
class Steps:
    """B verified steps.

    Attributes:
        rows: [B, gamma + 1], the table row that each emitted token should be distributed as.
        tokens: [B, gamma + 1], the emitted tokens, 0 where there is none.
        emitted: [B, gamma + 1], whether there is one.
        malformed: [B], a result that no rule can give (rules.agreement.well_formed).
    """

    drawn: Drawn
    verification: Verification
    rows: Int64[Tensor, "B width"]
    tokens: Int64[Tensor, "B width"]
    emitted: Bool[Tensor, "B width"]
    malformed: Bool[Tensor, " B"]

    @property
    def visible(self) -> Int64[Tensor, "B width"]:
        """The emitted tokens, PADDING behind them, and PADDING alone for a malformed result."""
        return torch.where(self.emitted & ~self.malformed[:, None], self.tokens, PADDING)

    @staticmethod
    def on_cpu(parts: Sequence[Steps]) -> Steps:
        """Steps one after another with what was emitted on the CPU; ``drawn`` and ``verification`` are the first's."""
        names = ("rows", "tokens", "emitted", "malformed")
        joined = {name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names}
        return dataclasses.replace(parts[0], **joined)


def draw(verifier: Verifier | None, fixture: Fixture, streams: Streams) -> Drawn:
    """Returns the streams' requests with drafts by the verifier's own sampler, if it has one; None has none.

    How many tokens a request drafts, and its sampling parameters, are functions of its seed and position, so that
    neither depends on the batch.
    """
    number = streams.seeds % 2**31 + streams.positions  # either alone is often at an end of its range
    counts = torch.tensor(fixture.counts, device=streams.seeds.device)[number % len(fixture.counts)]
    base = number % fixture.variants * fixture.rows
    uniforms = streams.uniform(Stream.DRAFT)  # at offset i for drafted token i
    sampler = None if verifier is None else capabilities(verifier).draft_tokens
    state = torch.zeros_like(counts)
    tokens, table, stated = [], [], []
    for i in range(fixture.gamma):
        rows = base + fixture.first_row[i] + state
        if sampler is not None and not fixture.deterministic:
            token, rows_drawn = guard.draft(sampler, fixture.name, fixture.draft.select(rows), uniforms[:, i])
            stated.append(rows_drawn)
        elif fixture.deterministic:
            token = fixture.draft.argmax[rows]
        else:
            token = first_above(fixture.q[rows], uniforms[:, i])
        tokens.append(token)
        table.append(rows)
        state = fixture.advance(i, state, token)
    table.append(base + fixture.first_row[fixture.gamma] + state)
    all_tokens = torch.stack(tokens, 1) if tokens else counts.new_zeros((len(counts), 0))
    all_rows = torch.stack(table, 1)
    rows_drawn = LogitRows.interleave(stated) if stated else None
    if rows_drawn is None and not fixture.deterministic:
        rows_drawn = fixture.draft.select(all_rows[:, :-1].flatten())
    ragged = fixture.counts != (fixture.gamma,)
    draft = Draft(all_tokens.flatten(), rows_drawn, counts, fixture.gamma, padded=ragged)
    target = fixture.target.select(all_rows.flatten())
    if ragged:  # rows without a drafted token go
        draft, target = draft.compact(target)
    return Drawn(fixture.name, draft, target, streams, fixture, all_tokens, all_rows, base)


def follow(drawn: Drawn, result: Verification) -> Steps:
    """Finds the table row of every emitted token, and results that no rule can give."""
    fixture, accepted, tokens = drawn.fixture, result.num_accepted, result.token_ids
    offsets = torch.arange(fixture.gamma + 1, device=accepted.device)
    emitted = offsets <= accepted[:, None]
    inside = (tokens >= 0) & (tokens < fixture.vocabulary)
    malformed = ~drawn.well_formed(result)
    tokens = torch.where(emitted & inside, tokens, 0)
    return Steps(drawn, result, table_rows(fixture, drawn.base, tokens), tokens, emitted & inside, malformed)


def table_rows(
    fixture: Fixture, base: Int64[Tensor, " B"], tokens: Int64[Tensor, "B width"]
) -> Int64[Tensor, "B width"]:
    """The table row that each token of some sequences should be distributed as; PADDING counts as token 0."""
    return base[:, None] + fixture.rows_along(tokens[:, :-1].clamp(min=0))


def verified(verifier: Verifier, drawn: Drawn) -> Steps:
    """One step of every request, from drafts that are there."""
    return follow(drawn, guard.verify(verifier, drawn))


def verified_steps(verifier: Verifier, fixture: Fixture, streams: Streams, sizes: Sequence[int] | None = None) -> Steps:
    """One step of every request of the streams.

    Args:
        sizes: requests of each call of the verifier, whose sum is that of the streams; None for one call.

    Raises:
        ArgumentError: the verifier refuses the fixture.
        VerifierFault: the verifier did what no verifier may.
    """
    drawn = draw(verifier, fixture, streams)
    if sizes is None or len(sizes) == 1:
        return verified(verifier, drawn)
    results = [guard.verify(verifier, call) for call in _calls(drawn, sizes)]
    return follow(drawn, Verification.join(results))


def _calls(drawn: Drawn, sizes: Sequence[int]) -> Iterator[VerifyCall]:
    """The calls, as views of all requests: that costs less than to draw each call by itself."""
    draft, streams, made = drawn.draft, drawn.streams, uniforms(drawn.streams)
    ends = [0, *itertools.accumulate(sizes)]
    rows = [0, *drawn.counts.cumsum(0)[torch.tensor(ends[1:], device=drawn.counts.device) - 1].tolist()]
    for (first, end), (row, last) in zip(itertools.pairwise(ends), itertools.pairwise(rows), strict=True):
        own = slice(first, end)
        yield VerifyCall(
            drawn.name,
            Draft(
                draft.token_ids[row:last],
                None if draft.rows is None else draft.rows.select(slice(row, last)),
                drawn.counts[own],
                draft.max_draft_tokens,
            ),
            drawn.target.select(slice(row + first, last + end)),
            Streams(streams.seeds[own], streams.positions[own], streams.width, made[:, own]),
        )


def node_counts(steps: Steps) -> Int64[Tensor, "classes rows V"]:
    """How often each token was emitted at each table row, by num_draft_tokens of the request."""
    fixture = steps.drawn.fixture
    shape = (fixture.gamma + 1, len(fixture.target), fixture.vocabulary)
    key = (steps.drawn.counts[:, None] * shape[1] + steps.rows) * shape[2] + steps.tokens
    cells = shape[0] * shape[1] * shape[2]
    key = torch.where(steps.emitted, key, cells)  # one more cell for what was not emitted: no shape depends on data
    return torch.bincount(key.flatten(), minlength=cells + 1)[:cells].view(shape)


def length_counts(steps: Steps) -> Int64[Tensor, "classes lengths"]:
    """How often 0..gamma tokens were accepted, by num_draft_tokens of the request."""
    width = steps.drawn.fixture.gamma + 1
    key = steps.drawn.counts * width + steps.verification.num_accepted.clamp(0, width - 1)
    return torch.bincount(key, minlength=width * width).view(width, width)
