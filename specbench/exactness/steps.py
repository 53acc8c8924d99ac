"""Verified steps on a fixture: draft with the DRAFT stream, verify, and follow what was emitted through the table.

The draft tokens are drawn here, from the very streams the verifier gets, because the drafter's randomness belongs to
the rule: a verifier that reuses it is biased although each of its parts looks right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from specbench.errors import ConfigError
from specbench.exactness.fixtures import Fixture
from specbench.rng import Stream, Streams
from specbench.sampling import inverse_cdf
from specbench.types import PADDING, Draft, LogitRows, Verification
from specbench.verifiers import Verifier

# How a sampler that is itself under test draws: true rows and uniforms -> tokens, and the rows it says they are from.
DraftSampler = Callable[[LogitRows, Float64[Tensor, " n"]], tuple[Int64[Tensor, " n"], LogitRows]]


@dataclass(frozen=True)
class Steps:
    """B verified steps.

    Attributes:
        draft, target, verification: the verifier's arguments and result.
        rows: [B, gamma + 1], the table row that each emitted token should be distributed as.
        tokens: [B, gamma + 1], the emitted tokens, 0 where there is none.
        emitted: [B, gamma + 1], whether there is one.
        malformed: [B], a result that no rule can give: accepted tokens that are not the draft's, a token outside the
            vocabulary, a hole or something behind the end.
    """

    draft: Draft
    target: LogitRows
    verification: Verification
    rows: Int64[Tensor, "B width"]
    tokens: Int64[Tensor, "B width"]
    emitted: Bool[Tensor, "B width"]
    malformed: Bool[Tensor, " B"]

    def cpu(self) -> Steps:
        """The same with what was emitted on the CPU."""
        names = ("rows", "tokens", "emitted", "malformed")
        return dataclasses.replace(self, **{name: getattr(self, name).cpu() for name in names})


def num_draft_tokens(fixture: Fixture, seeds: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """How many tokens each request drafts: a function of its seed, so that no result depends on the batches."""
    return torch.tensor(fixture.counts, device=seeds.device)[seeds % len(fixture.counts)]


def first_rows(fixture: Fixture, seeds: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Where each request's variant begins in the tables: a function of its seed as well."""
    return seeds % fixture.variants * fixture.rows


def make_draft(
    fixture: Fixture,
    uniforms: Float64[Tensor, "B width"],
    counts: Int64[Tensor, " B"],
    sampler: DraftSampler | None,
    base: Int64[Tensor, " B"] | int = 0,
) -> tuple[Draft, LogitRows]:
    """A draft for each request and the target's rows for it.

    Args:
        uniforms: of the DRAFT stream, used at offset i for drafted token i.
        counts: tokens drafted by each request, at most gamma.
        sampler: draws the tokens in place of the fixture's own rows.
        base: of first_rows.
    """
    batch, device = len(counts), counts.device
    state = torch.zeros(batch, dtype=torch.int64, device=device)
    tokens, draft_rows, target_rows, stated = [], [], [], []
    for i in range(fixture.gamma):
        rows = base + fixture.first_row[i] + state
        if sampler is not None and not fixture.deterministic:
            token, said = sampler(fixture.draft.select(rows), uniforms[:, i])
            stated.append(said)
        elif fixture.deterministic:
            token = fixture.draft.argmax[rows]
        else:
            token = inverse_cdf(fixture.q[rows], uniforms[:, i])
        tokens.append(token)
        draft_rows.append(rows)
        target_rows.append(rows)
        state = fixture.advance(i, state, token)
    target_rows.append(base + fixture.first_row[fixture.gamma] + state)
    token_ids, target_index = torch.stack(tokens, 1).flatten(), torch.stack(target_rows, 1).flatten()
    draft_index = torch.stack(draft_rows, 1).flatten()
    rows = LogitRows.interleave(stated) if stated else None
    if len(set(fixture.counts)) > 1 or fixture.counts[0] != fixture.gamma:
        offsets = torch.arange(fixture.gamma + 1, device=device)
        drafted = (offsets[:-1] < counts[:, None]).flatten()
        target_index = target_index[(offsets <= counts[:, None]).flatten()]
        token_ids, draft_index = token_ids[drafted], draft_index[drafted]
        rows = None if rows is None else rows.select(drafted.nonzero()[:, 0])
    if rows is None and not fixture.deterministic:
        rows = fixture.draft.select(draft_index)
    return Draft(token_ids, rows, counts, fixture.gamma), fixture.target.select(target_index)


def follow(
    fixture: Fixture,
    draft: Draft,
    target: LogitRows,
    result: Verification,
    base: Int64[Tensor, " B"] | int = 0,
) -> Steps:
    """Finds the table row of every emitted token, and results that no rule can give."""
    accepted, width = result.num_accepted, fixture.gamma + 1
    offsets = torch.arange(width, device=accepted.device)
    # A result of another shape is cut or filled up with padding, and shows as malformed.
    tokens = torch.nn.functional.pad(result.token_ids, (0, width), value=PADDING)[:, :width]
    emitted = offsets <= accepted[:, None]
    inside = (tokens >= 0) & (tokens < fixture.vocabulary)
    malformed = (accepted < 0) | (accepted > draft.num_draft_tokens)
    malformed |= (torch.where(emitted, ~inside, tokens != PADDING)).any(dim=1)
    index = (draft.first_row[:, None] + offsets[:-1]).clamp(max=max(len(draft.token_ids) - 1, 0))
    if len(draft.token_ids):
        malformed |= ((offsets[:-1] < accepted[:, None]) & (tokens[:, :-1] != draft.token_ids[index])).any(dim=1)
    tokens = torch.where(emitted & inside, tokens, 0)
    state = torch.zeros_like(accepted)
    rows = []
    for i in range(width):
        rows.append(base + fixture.first_row[i] + state)
        if i < fixture.gamma:
            state = fixture.advance(i, state, tokens[:, i])
    return Steps(draft, target, result, torch.stack(rows, 1), tokens, emitted & inside, malformed)


def check_result(verifier: Verifier, result: object, batch: int) -> None:
    """Raises ConfigError for what is no Verification of ``batch`` requests at all; a wrong width shows as malformed."""
    problem = None
    if not isinstance(result, Verification):
        problem = f"returned a {type(result).__name__}"
    elif result.token_ids.ndim != 2 or len(result.token_ids) != batch or result.num_accepted.shape != (batch,):
        shapes = f"token_ids {list(result.token_ids.shape)} and num_accepted {list(result.num_accepted.shape)}"
        problem = f"returned {shapes} for {batch} requests"
    elif result.token_ids.is_floating_point() or result.num_accepted.is_floating_point():
        problem = f"returned {result.token_ids.dtype} token_ids and {result.num_accepted.dtype} num_accepted"
    if problem:
        remedy = "Return Verification(token_ids [B, max_draft_tokens + 1], num_accepted [B]), both int64."
        raise ConfigError("verifier", type(verifier).__name__, problem, remedy)


def verified_steps(verifier: Verifier, fixture: Fixture, streams: Streams) -> Steps:
    """One step of every request of the streams."""
    counts = num_draft_tokens(fixture, streams.seeds)
    base = first_rows(fixture, streams.seeds)
    sampler = getattr(verifier, "draft_tokens", None)
    draft, target = make_draft(fixture, streams.uniform(Stream.DRAFT), counts, sampler, base)
    result = verifier.verify(draft, target, streams)
    check_result(verifier, result, len(counts))
    return follow(fixture, draft, target, result, base)


def node_counts(fixture: Fixture, steps: Steps) -> Int64[Tensor, "classes rows V"]:
    """How often each token was emitted at each table row, by num_draft_tokens of the request."""
    shape = (fixture.gamma + 1, len(fixture.target), fixture.vocabulary)
    key = (steps.draft.num_draft_tokens[:, None] * shape[1] + steps.rows) * shape[2] + steps.tokens
    cells = shape[0] * shape[1] * shape[2]
    key = torch.where(steps.emitted, key, cells)  # one more cell for what was not emitted: no shape depends on data
    return torch.bincount(key.flatten(), minlength=cells + 1)[:cells].view(shape)


def length_counts(fixture: Fixture, steps: Steps) -> Int64[Tensor, "classes lengths"]:
    """How often 0..gamma tokens were accepted, by num_draft_tokens of the request."""
    width = fixture.gamma + 1
    key = steps.draft.num_draft_tokens * width + steps.verification.num_accepted.clamp(0, fixture.gamma)
    return torch.bincount(key, minlength=width * width).view(width, width)
