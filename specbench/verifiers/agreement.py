"""Two verifiers of one rule should emit the same tokens from the same streams. Where they do not: rounding, or a bug?

Every decision compares two numbers: a uniform times q with p, a uniform with h of the block rule, a uniform times the
total mass with a cumulative sum. An outcome that differs from the rule's own can be explained by rounding when some
small relative error of p and q leads to it. ``excess`` is the size of the error that an outcome needs, in float64
arithmetic of its own: 0 for what the rule emits exactly, 1e-7 or so for float32 at a threshold, inf where no error
would do (a token that the target forbids, a token that was not drafted). A difference is rounding when both outcomes
need at most ``TOLERANCE``; a larger one is a bug, in one or the other.

Words: p target, q draft, u the uniforms of Streams; see naive.py and block.py for the two rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.rng import Stream, Streams
from specbench.types import PADDING, Draft, LogitRows, Verification
from specbench.verifiers import batched
from specbench.verifiers.base import Verifier
from specbench.verifiers.block import BlockVerifier, h_values, prefix_weights, residual_masses
from specbench.verifiers.masked import MaskedVerifier

TOLERANCE = 1e-5  # float32: exp() of a logit near 40 is off by 40 * 6e-8, and sums over a vocabulary add little to it
TWINS: dict[str, Verifier] = {"token": MaskedVerifier(), "block": BlockVerifier()}  # plain PyTorch, float64
_AT_ONCE = 16  # requests whose dense rows are held side by side


@dataclass(frozen=True)
class Differences:
    """The requests whose outcomes differ, in order.

    Attributes:
        requests: their indices.
        excess: the larger relative error that either outcome needs; inf where none would do.
        tolerance: up to which excess a difference counts as rounding.
    """

    requests: Int64[Tensor, " m"]
    excess: Float64[Tensor, " m"]
    tolerance: float

    @property
    def rounding(self) -> Bool[Tensor, " m"]:
        """True where rounding explains the difference."""
        return self.excess <= self.tolerance

    @property
    def wrong(self) -> Int64[Tensor, " k"]:
        """The requests whose difference nothing explains."""
        return self.requests[~self.rounding]


def classify(
    rule: str,
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    first: Verification,
    second: Verification,
    tolerance: float = TOLERANCE,
) -> Differences:
    """Compares two outcomes of one step, token for token. Waits for the device.

    Args:
        rule: "token" or "block", the rule of both.
        draft, target, streams: what both were given.

    Raises:
        ArgumentError: another rule, or outcomes of other shapes than the draft asks for.
    """
    if rule not in TWINS:
        raise ArgumentError(f"rule: {rule!r}; outcomes can be explained for {', '.join(TWINS)}")
    shape = (len(draft.num_draft_tokens), draft.max_draft_tokens + 1)
    for name, outcome in (("first", first), ("second", second)):
        if outcome.token_ids.shape != shape or outcome.num_accepted.shape != shape[:1]:
            raise ArgumentError(f"{name}: token_ids of shape {tuple(outcome.token_ids.shape)}, expected {shape}")
    same = (first.token_ids == second.token_ids).all(dim=1) & (first.num_accepted == second.num_accepted)
    requests = (~same).nonzero()[:, 0]
    needed = [
        torch.maximum(
            *(
                excess(rule, *only(chosen, draft, target, streams), _outcome(verification, chosen))
                for verification in (first, second)
            )
        )
        for chosen in requests.split(_AT_ONCE)
    ]
    none = torch.zeros(0, dtype=torch.float64, device=requests.device)
    return Differences(requests, torch.cat([none, *needed]), tolerance)


def excess(
    rule: str, draft: Draft, target: LogitRows, streams: Streams, outcome: Verification
) -> Float64[Tensor, " B"]:
    """The relative error of p and q that each request's outcome needs to follow from the rule; see the module."""
    form = well_formed(draft, target, outcome)
    # What follows indexes by the outcome's numbers, so those of no sense are replaced first.
    accepted = outcome.num_accepted.clamp(min=0).minimum(draft.num_draft_tokens)
    emitted = outcome.token_ids.gather(1, accepted[:, None])[:, 0].clamp(0, target.logits.shape[1] - 1)
    weights = prefix_weights(draft, target)
    decide = _block_decisions if rule == "block" else _token_decisions
    needed = decide(draft, target, streams, accepted, weights)
    pi = weights.gather(1, accepted[:, None]) if rule == "block" else torch.ones_like(weights[:, :1])
    pi = torch.where(accepted[:, None] < draft.num_draft_tokens[:, None], pi, 1.0)
    p, q = batched.next_rows(draft, target, accepted)
    u = streams.uniform(Stream.EMIT)[:, :1]
    from_residual = _draw_excess(pi * p, q, u, emitted, accepted)
    # Where little is left of the residual, rounding may leave nothing, and then the rule draws from p.
    left = (pi * p - q).clamp(min=0).sum(dim=-1)
    from_target = torch.maximum(_draw_excess(p, torch.zeros_like(q), u, emitted, accepted), left)
    drawn = torch.minimum(torch.minimum(from_residual, from_target), _noise_excess(pi * p, q, emitted, accepted))
    needed = torch.maximum(needed, drawn)
    forbidden = p.gather(1, emitted[:, None])[:, 0] == 0
    return needed.nan_to_num(torch.inf).masked_fill(forbidden | ~form, torch.inf)


def well_formed(draft: Draft, target: LogitRows, outcome: Verification) -> Bool[Tensor, " B"]:
    """True where the outcome is a prefix of the request's draft, a token of the vocabulary, and padding."""
    accepted, gamma = outcome.num_accepted, draft.max_draft_tokens
    columns = torch.arange(gamma + 1, device=accepted.device)
    drafted = torch.nn.functional.pad(batched.padded(draft.token_ids, draft, PADDING), (0, 1), value=PADDING)
    ids, place = outcome.token_ids, accepted[:, None]
    emitted = (ids >= 0) & (ids < target.logits.shape[1])
    good = torch.where(columns < place, ids == drafted, torch.where(columns == place, emitted, ids == PADDING))
    return good.all(dim=1) & (accepted >= 0) & (accepted <= draft.num_draft_tokens)


def only(
    requests: Int64[Tensor, " m"], draft: Draft, target: LogitRows, streams: Streams
) -> tuple[Draft, LogitRows, Streams]:
    """The same step for the given requests alone. Waits for the device."""
    counts = draft.num_draft_tokens[requests]
    first = draft.first_row[requests]
    offset = torch.arange(draft.max_draft_tokens + 1, device=requests.device)
    drafted = (first[:, None] + offset)[offset < counts[:, None]]
    scored = ((first + requests)[:, None] + offset)[offset <= counts[:, None]]
    rows = None if draft.rows is None else draft.rows.select(drafted)
    return (
        Draft(draft.token_ids[drafted], rows, counts, draft.max_draft_tokens),
        target.select(scored),
        streams.select(requests),
    )


def _outcome(outcome: Verification, requests: Int64[Tensor, " m"]) -> Verification:
    return Verification(outcome.token_ids[requests], outcome.num_accepted[requests])


def _token_decisions(
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    accepted: Int64[Tensor, " B"],
    _weights: Float64[Tensor, "B gamma1"],
) -> Float64[Tensor, " B"]:
    """The largest error that a decision up to the first rejection needs: u q against p."""
    p, q = (batched.padded(each, draft, 1.0) for each in batched.drafted_probs(draft, target))
    threshold = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens] * q
    short = (threshold - p) / torch.maximum(threshold, p)  # by how much p falls short of being accepted
    places = torch.arange(draft.max_draft_tokens, device=p.device)
    rejected = (places == accepted[:, None]) & (accepted < draft.num_draft_tokens)[:, None]
    wrong_by = torch.where(places < accepted[:, None], short, torch.where(rejected, -short, 0.0)).clamp(min=0)
    # u q = p is a rejection: accepting there needs an error, if only the smallest one.
    equal = (places < accepted[:, None]) & (short == 0)
    wrong_by = wrong_by.masked_fill(equal, torch.finfo(torch.float64).eps)
    return wrong_by.amax(dim=1) if draft.max_draft_tokens else wrong_by.new_zeros(len(accepted))


def _block_decisions(
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    accepted: Int64[Tensor, " B"],
    weights: Float64[Tensor, "B gamma1"],
) -> Float64[Tensor, " B"]:
    """The largest error that u_i < h_i at i = tau, and u_i >= h_i behind it, need.

    pi_i is a product of i ratios, so an error e of each p / q makes up to i e of it, (i + 2) e of S_i, which is a
    difference of p and q scaled by it, and (i + 2) e / (S_i + 1 - pi_i) of h_i. Where S_i and 1 - pi_i both vanish,
    h_i is 0/0, and any outcome follows from rounding.
    """
    if draft.max_draft_tokens == 0:
        return torch.zeros_like(accepted, dtype=torch.float64)
    masses = residual_masses(draft, target, weights)
    h, total = h_values(weights, masses, draft.num_draft_tokens)
    lengths = torch.arange(1, weights.shape[1], device=h.device)
    needed = (streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens] - h) * total / (lengths + 2)
    beyond = (lengths > accepted[:, None]) & (lengths <= draft.num_draft_tokens[:, None])
    return torch.where(lengths == accepted[:, None], needed, torch.where(beyond, -needed, 0.0)).clamp(min=0).amax(dim=1)


def _draw_excess(
    p: Float64[Tensor, "B V"],
    q: Float64[Tensor, "B V"],
    u: Float64[Tensor, "B 1"],
    emitted: Int64[Tensor, " B"],
    accepted: Int64[Tensor, " B"],
) -> Float64[Tensor, " B"]:
    """How far u times the total of (p - q)+ lies outside the emitted token's step of the cumulative sum.

    Relative to the sum of all p and q that were subtracted, whose errors the cumulative sums carry; in the block rule
    p is multiplied by pi and carries the errors of the accepted tokens too.
    """
    weights = (p - q).clamp(min=0)
    cumulative = weights.cumsum(dim=-1)
    above = cumulative.gather(1, emitted[:, None])
    below = above - weights.gather(1, emitted[:, None])
    drawn = u * cumulative[:, -1:]
    outside = torch.maximum(below - drawn, drawn - above).clamp(min=0)[:, 0]
    scale = torch.where(weights > 0, (1 + accepted[:, None]) * p + q, 0.0).sum(dim=-1)
    return torch.where(scale > 0, outside / torch.where(scale > 0, scale, 1.0), torch.inf)


def _noise_excess(
    p: Float64[Tensor, "B V"], q: Float64[Tensor, "B V"], emitted: Int64[Tensor, " B"], accepted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """The error that leaves the emitted token alone in (p - q)+, whatever u is.

    Where p is q but for rounding, what rounding leaves of the residual can be any token. Float32 kernels get there once
    in some 1e7 tokens: p = q is refused only if u rounds to 1.
    """
    scale = (1 + accepted[:, None]) * p + q
    apart = torch.where(scale > 0, (p - q) / torch.where(scale > 0, scale, 1.0), 0.0)
    own = -apart.gather(1, emitted[:, None])[:, 0]
    return apart.scatter(1, emitted[:, None], 0.0).amax(dim=1).maximum(own).clamp(min=0)
