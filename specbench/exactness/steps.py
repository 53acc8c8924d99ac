"""Verified steps on a fixture: draft with the DRAFT stream, verify, and follow what was emitted through the table.

The draft tokens are drawn here, from the very streams the verifier gets, because the drafter's randomness belongs to
the rule: a verifier that reuses it is biased although each of its parts looks right.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.exactness import guard
from specbench.exactness.fixtures import Fixture
from specbench.exactness.fixtures.table import first_above
from specbench.exactness.streams import uniforms
from specbench.rules.verifier import DraftSampler, Verifier


@dataclass(frozen=True)
class Drawn:
    """Drafts of B requests, and where they stand in the fixture's tables.

    Attributes:
        draft, target: the verifier's arguments.
        tokens: [B, gamma], the drafted tokens; those beyond a request's draft were never drafted.
        rows: [B, gamma + 1], the table rows along them.
        base: [B], where each request's variant begins in the tables.
    """

    draft: Draft
    target: LogitRows
    tokens: Int64[Tensor, "B gamma"]
    rows: Int64[Tensor, "B width"]
    base: Int64[Tensor, " B"]

    @property
    def counts(self) -> Int64[Tensor, " B"]:
        """num_draft_tokens."""
        return self.draft.num_draft_tokens


@dataclass(frozen=True)
class Steps:
    """B verified steps.

    Attributes:
        drawn, verification: the verifier's arguments and result.
        rows: [B, gamma + 1], the table row that each emitted token should be distributed as.
        tokens: [B, gamma + 1], the emitted tokens, 0 where there is none.
        emitted: [B, gamma + 1], whether there is one.
        malformed: [B], a result that no rule can give: accepted tokens that are not the draft's, a token outside the
            vocabulary, a hole or something behind the end.
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


def num_draft_tokens(fixture: Fixture, streams: Streams) -> Int64[Tensor, " B"]:
    """How many tokens each request drafts: a function of its seed and position, so that none depends on the batch."""
    return torch.tensor(fixture.counts, device=streams.seeds.device)[_number(streams) % len(fixture.counts)]


def variant_of(fixture: Fixture, streams: Streams) -> Int64[Tensor, " B"]:
    """Which sampling parameters each request has: a function of its seed and position as well."""
    return _number(streams) % fixture.variants


def _number(streams: Streams) -> Int64[Tensor, " B"]:
    return streams.seeds % 2**31 + streams.positions  # either alone is often at an end of its range


def make_draft(
    fixture: Fixture,
    uniforms: Float64[Tensor, "B width"],
    counts: Int64[Tensor, " B"],
    sampler: DraftSampler | None,
    variant: Int64[Tensor, " B"] | None = None,
) -> Drawn:
    """A draft for each request and the target's rows for it.

    Args:
        uniforms: of the DRAFT stream, used at offset i for drafted token i.
        counts: tokens drafted by each request, at most gamma.
        sampler: draws the tokens in place of the fixture's own rows.
        variant: of variant_of; the first if None.
    """
    state = torch.zeros_like(counts)
    base = state if variant is None else variant * fixture.rows
    tokens, table, stated = [], [], []
    for i in range(fixture.gamma):
        rows = base + fixture.first_row[i] + state
        if sampler is not None and not fixture.deterministic:
            token, rows_drawn = sampler(fixture.draft.select(rows), uniforms[:, i])
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
    # What nobody drafts goes: all that follows is flat, request after request.
    token_ids, draft_rows, target_rows = all_tokens.flatten(), all_rows[:, :-1].flatten(), all_rows.flatten()
    rows_drawn = LogitRows.interleave(stated) if stated else None
    if fixture.counts != (fixture.gamma,):
        offsets = torch.arange(fixture.gamma + 1, device=counts.device)
        drafted = (offsets[:-1] < counts[:, None]).flatten().nonzero()[:, 0]
        scored = (offsets <= counts[:, None]).flatten()
        token_ids, draft_rows, target_rows = token_ids[drafted], draft_rows[drafted], target_rows[scored]
        rows_drawn = None if rows_drawn is None else rows_drawn.select(drafted)
    if rows_drawn is None and not fixture.deterministic:
        rows_drawn = fixture.draft.select(draft_rows)
    draft = Draft(token_ids, rows_drawn, counts, fixture.gamma)
    return Drawn(draft, fixture.target.select(target_rows), all_tokens, all_rows, base)


def draw_length(
    fixture: Fixture, count: int, uniforms: Float64[Tensor, "B width"], sampler: DraftSampler | None = None
) -> Drawn:
    """A draft of ``count`` tokens for each request, of a fixture of one variant; arguments as those of make_draft."""
    counts = torch.full((len(uniforms),), count, device=uniforms.device)
    return make_draft(dataclasses.replace(fixture, counts=(count,)), uniforms, counts, sampler)


def draw(verifier: Verifier, fixture: Fixture, streams: Streams) -> Drawn:
    """The drafts of the streams' requests, by the verifier's own sampler if it has one."""
    counts, sampler = num_draft_tokens(fixture, streams), guard.draft_sampler(verifier, fixture.name)
    return make_draft(fixture, streams.uniform(Stream.DRAFT), counts, sampler, variant_of(fixture, streams))


def follow(fixture: Fixture, drawn: Drawn, result: Verification) -> Steps:
    """Finds the table row of every emitted token, and results that no rule can give."""
    accepted, tokens = result.num_accepted, result.token_ids
    offsets = torch.arange(fixture.gamma + 1, device=accepted.device)
    emitted = offsets <= accepted[:, None]
    inside = (tokens >= 0) & (tokens < fixture.vocabulary)
    malformed = (accepted < 0) | (accepted > drawn.counts)
    malformed |= (torch.where(emitted, ~inside, tokens != PADDING)).any(dim=1)
    malformed |= ((offsets[:-1] < accepted[:, None]) & (tokens[:, :-1] != drawn.tokens)).any(dim=1)
    tokens = torch.where(emitted & inside, tokens, 0)
    return Steps(drawn, result, table_rows(fixture, drawn.base, tokens), tokens, emitted & inside, malformed)


def table_rows(
    fixture: Fixture, base: Int64[Tensor, " B"], tokens: Int64[Tensor, "B width"]
) -> Int64[Tensor, "B width"]:
    """The table row that each token of some sequences should be distributed as; PADDING counts as token 0."""
    return base[:, None] + fixture.rows_along(tokens[:, :-1].clamp(min=0))


def verified(verifier: Verifier, fixture: Fixture, drawn: Drawn, streams: Streams) -> Steps:
    """One step of every request, from drafts that are there."""
    return follow(fixture, drawn, guard.verify(verifier, fixture.name, drawn.draft, drawn.target, streams))


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
        return verified(verifier, fixture, drawn, streams)
    results = [guard.verify(verifier, fixture.name, *arguments) for arguments in _calls(drawn, streams, sizes)]
    return follow(fixture, drawn, Verification.join(results))


def _calls(drawn: Drawn, streams: Streams, sizes: Sequence[int]) -> Iterator[tuple[Draft, LogitRows, Streams]]:
    """The arguments of each call: views of those of all requests, which cost less than to draw each call by itself."""
    draft, made = drawn.draft, uniforms(streams)
    ends = [0, *itertools.accumulate(sizes)]
    rows = [0, *drawn.counts.cumsum(0)[torch.tensor(ends[1:], device=drawn.counts.device) - 1].tolist()]
    for (first, end), (row, last) in zip(itertools.pairwise(ends), itertools.pairwise(rows), strict=True):
        own = slice(first, end)
        yield (
            Draft(
                draft.token_ids[row:last],
                None if draft.rows is None else draft.rows.select(slice(row, last)),
                drawn.counts[own],
                draft.max_draft_tokens,
            ),
            drawn.target.select(slice(row + first, last + end)),
            Streams(streams.seeds[own], streams.positions[own], streams.width, made[:, own]),
        )


def node_counts(fixture: Fixture, steps: Steps) -> Int64[Tensor, "classes rows V"]:
    """How often each token was emitted at each table row, by num_draft_tokens of the request."""
    shape = (fixture.gamma + 1, len(fixture.target), fixture.vocabulary)
    key = (steps.drawn.counts[:, None] * shape[1] + steps.rows) * shape[2] + steps.tokens
    cells = shape[0] * shape[1] * shape[2]
    key = torch.where(steps.emitted, key, cells)  # one more cell for what was not emitted: no shape depends on data
    return torch.bincount(key.flatten(), minlength=cells + 1)[:cells].view(shape)


def length_counts(fixture: Fixture, steps: Steps) -> Int64[Tensor, "classes lengths"]:
    """How often 0..gamma tokens were accepted, by num_draft_tokens of the request."""
    width = fixture.gamma + 1
    key = steps.drawn.counts * width + steps.verification.num_accepted.clamp(0, fixture.gamma)
    return torch.bincount(key, minlength=width * width).view(width, width)
