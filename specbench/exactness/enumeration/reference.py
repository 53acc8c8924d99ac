"""What a rule emits for given streams, from a fixture's tables and the rule's formulas: what code is held against.

Nothing here is shared with a verifier: p and q are looked up in the tables, and the thresholds are those of laws.py.
"""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.enumeration.laws import LAWS, accepted
from specbench.exactness.fixtures import Fixture
from specbench.exactness.fixtures.table import Cdf
from specbench.exactness.steps import Drawn, make_draft
from specbench.exactness.streams import GivenStreams
from specbench.rng import Stream, Streams
from specbench.types import PADDING, Verification

_CELLS = 2**23  # probabilities held side by side


def expected(rule: str, fixture: Fixture, drawn: Drawn, streams: Streams) -> Verification:
    """The outcome of a rule of LAWS, with drafts from the fixture's own rows. Waits for no device.

    Args:
        fixture: on the streams' device.
    """
    assert rule in LAWS, rule
    accept, emit = streams.uniform(Stream.ACCEPT), streams.uniform(Stream.EMIT)[:, 0]
    size = max(1, _CELLS // fixture.vocabulary)
    parts = [
        _expected(rule, fixture, drawn, chosen, accept[chosen], emit[chosen])
        for chosen in torch.arange(len(emit), device=emit.device).split(size)
    ]
    tokens, lengths = (torch.cat(each) for each in zip(*parts, strict=True))
    return Verification(tokens, lengths)


def expected_of(
    rule: str, fixture: Fixture, count: int, given: Float64[Tensor, "s n width"]
) -> Int64[Tensor, "n width"]:
    """The tokens that a rule of LAWS emits for given uniforms, drafts of ``count`` tokens drawn with them."""
    streams = GivenStreams.of(given.to(fixture.p.device))
    counts = torch.full((given.shape[1],), count, device=fixture.p.device)
    drawn = make_draft(dataclasses.replace(fixture, counts=(count,)), streams.given[Stream.DRAFT], counts, None)
    return expected(rule, fixture, drawn, streams).token_ids.cpu()


def _expected(
    rule: str,
    fixture: Fixture,
    drawn: Drawn,
    chosen: Int64[Tensor, " m"],
    accept: Float64[Tensor, "m offsets"],
    emit: Float64[Tensor, " m"],
) -> tuple[Int64[Tensor, "m width"], Int64[Tensor, " m"]]:
    tokens, rows, counts = drawn.tokens[chosen], drawn.rows[chosen], drawn.counts[chosen]
    gamma = tokens.shape[1]
    places = torch.arange(gamma, device=tokens.device)
    ratio = fixture.p[rows[:, :-1], tokens] / fixture.q[rows[:, :-1], tokens]
    weights = _weights(ratio) if rule == "block" else torch.ones_like(fixture.p[rows, 0])
    thresholds = _h(fixture, rows, weights, counts) if rule == "block" else ratio.clamp(max=1)
    tau = accepted(rule, torch.where(places < counts[:, None], thresholds, 0.0), accept[:, :gamma])
    at = rows.gather(1, tau[:, None])[:, 0]
    bonus = fixture.target_cdf.draw(at, emit)
    # A bonus row has no q; any other stands in for it, and what is drawn there is not used.
    in_q = at.clamp(max=len(fixture.q) - 1)
    if not len(fixture.q):
        recovered = bonus  # nobody drafts
    elif rule == "token":
        recovered = fixture.residual_cdf.draw(in_q, emit)
    else:
        left = (weights.gather(1, tau[:, None]) * fixture.p[at] - fixture.q[in_q]).clamp(min=0)
        left = torch.where(left.sum(dim=1, keepdim=True) > 0, left, fixture.p[at])
        recovered = Cdf.of(left).draw(torch.arange(len(at), device=at.device), emit)
    out = torch.full((len(tau), gamma + 1), PADDING, dtype=torch.int64, device=tau.device)
    out[:, :gamma] = torch.where(places < tau[:, None], tokens, PADDING)
    out.scatter_(1, tau[:, None], torch.where(tau == counts, bonus, recovered)[:, None])
    return out, tau


def _weights(ratio: Float64[Tensor, "m gamma"]) -> Float64[Tensor, "m width"]:
    """pi_0 ... pi_gamma of the block rule."""
    pi = [torch.ones_like(ratio.sum(dim=1))]
    for i in range(ratio.shape[1]):
        pi.append((pi[-1] * ratio[:, i]).clamp(max=1))
    return torch.stack(pi, 1)


def _h(
    fixture: Fixture, rows: Int64[Tensor, "m width"], pi: Float64[Tensor, "m width"], counts: Int64[Tensor, " m"]
) -> Float64[Tensor, "m gamma"]:
    """h_1 ... h_gamma of the block rule; h at the end of each draft is its pi."""
    h = []
    for i in range(1, pi.shape[1]):
        weight = pi[:, i]
        if i < pi.shape[1] - 1:
            row = rows[:, i]
            mass = (weight[:, None] * fixture.p[row] - fixture.q[row]).clamp(min=0).sum(dim=1)
            total = mass + 1 - weight
            inner = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 1.0)
            h.append(torch.where(counts == i, weight, inner))
        else:
            h.append(weight)
    return torch.stack(h, 1) if h else pi[:, :0]
