"""Two verifiers of one rule should emit the same tokens from the same streams. Where they do not: rounding, or a bug?

Every decision compares two numbers: a uniform times q with p, a uniform with h of the block rule, a uniform times the
total mass with a cumulative sum. An outcome that differs from the rule's own can be explained by rounding when some
small relative error of p and q leads to it. ``excess`` is the size of the error that an outcome needs, in float64
arithmetic of its own: 0 for what the rule emits exactly, 1e-7 or so for float32 at a threshold, inf where no error
would do (a token that the target forbids, a token that was not drafted). A difference is rounding when both outcomes
need at most ``TOLERANCE``; a larger one is a bug, in one or the other.

A rule may know best what an error of p and q does to its decisions (``Rule.decision_errors``); else the error is that
of its thresholds. Words: p target, q draft, u the uniforms of Streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.along import AlongBatch
from specbench.rules.known import KNOWN, rule_of
from specbench.rules.rule import LAST_SUCCESS, Rule
from specbench.verifiers import batched

TOLERANCE = 1e-5  # float32: exp() of a logit near 40 is off by 40 * 6e-8, and sums over a vocabulary add little to it
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
    rule: Rule | str,
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    first: Verification,
    second: Verification,
    tolerance: float = TOLERANCE,
) -> Differences:
    """Compares two outcomes of one step, token for token. Waits for the device.

    Args:
        rule: of both, or its name.
        draft, target, streams: what both were given.

    Raises:
        ArgumentError: a rule whose formulas are not known, or outcomes of other shapes than the draft asks for.
    """
    rule = rule_of(rule)
    if not rule.has_law:
        known = ", ".join(KNOWN)
        raise ArgumentError(f"rule: {rule.name!r}; outcomes can be explained for {known}, and rules with thresholds")
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
    rule: Rule | str, draft: Draft, target: LogitRows, streams: Streams, outcome: Verification
) -> Float64[Tensor, " B"]:
    """The relative error of p and q that each request's outcome needs to follow from the rule; see the module.

    Args:
        rule: one whose formulas are known, or its name.
    """
    rule = rule_of(rule)
    form = well_formed(draft, target, outcome)
    # What follows indexes by the outcome's numbers, so those of no sense are replaced first.
    accepted = outcome.num_accepted.clamp(min=0).minimum(draft.num_draft_tokens)
    emitted = outcome.token_ids.gather(1, accepted[:, None])[:, 0].clamp(0, target.logits.shape[1] - 1)
    along = AlongBatch(draft, target)
    decide = rule.decision_errors or partial(_threshold_errors, rule, along)
    needed = decide(draft, target, streams, accepted)
    p, q = batched.next_rows(draft, target, accepted)
    weighted = p
    if rule.prefix_weights is not None:
        pi = rule.prefix_weights(along).gather(1, accepted[:, None])
        weighted = torch.where(accepted[:, None] < draft.num_draft_tokens[:, None], pi, 1.0) * p
    # After a whole draft q is 0, and the bonus is drawn from p, whatever the residual is elsewhere.
    left = torch.where((accepted == draft.num_draft_tokens)[:, None], p, rule.residual(weighted, q))
    u = streams.uniform(Stream.EMIT)[:, :1]
    scale = (1 + accepted[:, None]) * weighted + q
    from_residual = _draw_excess(left, scale, u, emitted)
    # Where little is left of the residual, rounding may leave nothing, and then the rule draws from p.
    from_target = torch.maximum(_draw_excess(p, (1 + accepted[:, None]) * p, u, emitted), left.sum(dim=-1))
    apart = torch.where(left > 0, left, weighted - q)
    drawn = torch.minimum(torch.minimum(from_residual, from_target), _noise_excess(apart, scale, emitted))
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


def _threshold_errors(
    rule: Rule,
    along: AlongBatch,
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    accepted: Int64[Tensor, " B"],
) -> Float64[Tensor, " B"]:
    """The largest relative error of a threshold that so many accepted tokens need, for any rule."""
    u, limits = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens], rule.limits(along)
    if draft.max_draft_tokens == 0:
        return u.new_zeros(len(accepted))
    short = (u - limits) / torch.maximum(u, limits)  # by how much u is too large to pass
    places, count = torch.arange(draft.max_draft_tokens, device=u.device), accepted[:, None]
    in_draft = places < draft.num_draft_tokens[:, None]
    if rule.decides == LAST_SUCCESS:
        passed, refused = places == count - 1, (places >= count) & in_draft
    else:
        passed, refused = places < count, (places == count) & in_draft
    # u equal to the threshold is a refusal: passing there needs an error, if only the smallest one.
    short = torch.where(short == 0, torch.finfo(torch.float64).eps, short) * passed - short * refused
    return short.clamp(min=0).amax(dim=1)


def _draw_excess(
    weights: Float64[Tensor, "B V"],
    scale: Float64[Tensor, "B V"],
    u: Float64[Tensor, "B 1"],
    emitted: Int64[Tensor, " B"],
) -> Float64[Tensor, " B"]:
    """How far u times the total of the weights lies outside the emitted token's step of the cumulative sum.

    Relative to the sum of all p and q that the weights are made of (``scale``), whose errors the cumulative sums carry;
    in the block rule p is multiplied by pi and carries the errors of the accepted tokens too.
    """
    cumulative = weights.cumsum(dim=-1)
    above = cumulative.gather(1, emitted[:, None])
    below = above - weights.gather(1, emitted[:, None])
    drawn = u * cumulative[:, -1:]
    outside = torch.maximum(below - drawn, drawn - above).clamp(min=0)[:, 0]
    scale = torch.where(weights > 0, scale, 0.0).sum(dim=-1)
    return torch.where(scale > 0, outside / torch.where(scale > 0, scale, 1.0), torch.inf)


def _noise_excess(
    apart: Float64[Tensor, "B V"], scale: Float64[Tensor, "B V"], emitted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """The error that leaves the emitted token alone in the residual, whatever u is.

    Where p is q but for rounding, what rounding leaves of the residual can be any token. Float32 kernels get there once
    in some 1e7 tokens: p = q is refused only if u rounds to 1.

    Args:
        apart: the residual, and p - q where nothing is left of it.
    """
    apart = torch.where(scale > 0, apart / torch.where(scale > 0, scale, 1.0), 0.0)
    own = -apart.gather(1, emitted[:, None])[:, 0]
    return apart.scatter(1, emitted[:, None], 0.0).amax(dim=1).maximum(own).clamp(min=0)
