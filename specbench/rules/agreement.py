"""Whether a difference between the outcomes of two verifiers of one rule comes of rounding or of a bug.

Verifiers of one rule should emit the same tokens from the same streams. Every decision compares two numbers: a uniform
times q with p, a uniform with h of the block rule, a uniform times the total mass with a cumulative sum. Rounding
explains an outcome that differs from the rule's own if some small relative error of p and q leads to it. ``excess`` is
the size of this error, computed in float64: 0 for the rule's own outcome, some 1e-7 for float32 at a threshold, inf if
no error leads to it (a token that the target forbids, a token that was not drafted). A difference is rounding if both
outcomes need at most ``TOLERANCE``. A larger one is a bug in one of the two.

``Rule.decision_errors`` says which error of p and q a rule's decisions need. Without it, the error is the one of the
rule's thresholds. Notation: p target, q draft, u the uniforms of Streams.
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
from specbench.rules import batched
from specbench.rules.draft_path import DraftPathBatch
from specbench.rules.rule import LAST_SUCCESS, Rule, get_rule, rules_with_formulas

TOLERANCE = 1e-5  # float32: exp() of a logit near 40 is off by 40 * 6e-8, and sums over a vocabulary add little to it
_CHUNK = 16  # requests whose dense rows are in memory together


@dataclass(frozen=True)
class Differences:
    """The requests whose outcomes differ, in order.

    Attributes:
        requests: their indices.
        excess: the larger of the relative errors that the two outcomes need; inf if no error leads to one of them.
        tolerance: the largest excess that counts as rounding.
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
        """The requests whose difference rounding does not explain."""
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
        rule: the rule of both, or its name.

    Raises:
        ArgumentError: a rule whose formulas are not known, or an outcome whose shapes do not fit the draft.
    """
    rule = get_rule(rule)
    if not rule.has_law:
        known = ", ".join(rules_with_formulas())
        raise ArgumentError(f"rule: {rule.name!r}; outcomes can be explained for {known}, and rules with thresholds")
    shape = (len(draft.num_draft_tokens), draft.max_draft_tokens + 1)
    for name, outcome in (("first", first), ("second", second)):
        if outcome.token_ids.shape != shape or outcome.num_accepted.shape != shape[:1]:
            raise ArgumentError(f"{name}: token_ids of shape {tuple(outcome.token_ids.shape)}, expected {shape}")
    requests = first.differs(second).nonzero()[:, 0]
    needed = []
    for chunk in requests.split(_CHUNK):
        step = only(chunk, draft, target, streams)
        needed.append(torch.maximum(*(excess(rule, *step, outcome.select(chunk)) for outcome in (first, second))))
    none = torch.zeros(0, dtype=torch.float64, device=requests.device)
    return Differences(requests, torch.cat([none, *needed]), tolerance)


def excess(
    rule: Rule | str, draft: Draft, target: LogitRows, streams: Streams, outcome: Verification
) -> Float64[Tensor, " B"]:
    """The relative error of p and q from which the rule leads to each request's outcome; see the module.

    Args:
        rule: a rule whose formulas are known, or its name.
    """
    rule = get_rule(rule)
    form = well_formed(draft, target, outcome)
    # Numbers out of range are replaced, because they are used as indices below.
    accepted = outcome.num_accepted.clamp(min=0).minimum(draft.num_draft_tokens)
    emitted = outcome.token_ids.gather(1, accepted[:, None])[:, 0].clamp(0, target.logits.shape[1] - 1)
    path = DraftPathBatch(draft, target)
    decide = rule.decision_errors or partial(_threshold_errors, rule, path)
    needed = decide(draft, target, streams, accepted)
    p, q = batched.next_rows(draft, target, accepted)
    weighted = p
    if rule.prefix_weights is not None:
        pi = rule.prefix_weights(path).gather(1, accepted[:, None])
        weighted = torch.where(accepted[:, None] < draft.num_draft_tokens[:, None], pi, 1.0) * p
    # After a whole draft q is 0 and the bonus is drawn from p, whatever the residual.
    left = torch.where((accepted == draft.num_draft_tokens)[:, None], p, rule.residual(weighted, q))
    u = streams.uniform(Stream.EMIT)[:, :1]
    scale = (1 + accepted[:, None]) * weighted + q
    from_residual = _draw_excess(left, scale, u, emitted)
    # Rounding may make a small residual vanish; the rule then draws from p.
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


def _threshold_errors(
    rule: Rule, path: DraftPathBatch, draft: Draft, target: LogitRows, streams: Streams, accepted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """The largest relative error of a threshold that the accepted lengths need, for any rule."""
    u, limits = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens], rule.limits(path)
    if draft.max_draft_tokens == 0:
        return u.new_zeros(len(accepted))
    short = (u - limits) / torch.maximum(u, limits)  # relative distance by which u is too large to pass
    places, count = torch.arange(draft.max_draft_tokens, device=u.device), accepted[:, None]
    in_draft = places < draft.num_draft_tokens[:, None]
    if rule.decides == LAST_SUCCESS:
        passed, rejected = places == count - 1, (places >= count) & in_draft
    else:
        passed, rejected = places < count, (places == count) & in_draft
    # u equal to the threshold does not pass: passing needs an error, if only the smallest one.
    short = torch.where(short == 0, torch.finfo(torch.float64).eps, short) * passed - short * rejected
    return short.clamp(min=0).amax(dim=1)


def _draw_excess(
    weights: Float64[Tensor, "B V"],
    scale: Float64[Tensor, "B V"],
    u: Float64[Tensor, "B 1"],
    emitted: Int64[Tensor, " B"],
) -> Float64[Tensor, " B"]:
    """The distance of u times the total weight from the emitted token's step of the cumulative sum.

    It is relative to the sum of all p and q in the weights (``scale``), whose errors the cumulative sums carry. In the
    block rule p is multiplied by pi, and carries the errors of the accepted tokens too.
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
    """The error that leaves only the emitted token in the residual, whatever u is.

    If p equals q but for rounding, the residual is rounding noise and may hold any token. Float32 kernels reach this
    case about once in 1e7 tokens: p = q is rejected only if u rounds to 1.

    Args:
        apart: the residual, and p - q where the residual is 0.
        scale: the sum of p and q in each weight.
        emitted: the emitted tokens.
    """
    apart = torch.where(scale > 0, apart / torch.where(scale > 0, scale, 1.0), 0.0)
    own = -apart.gather(1, emitted[:, None])[:, 0]
    return apart.scatter(1, emitted[:, None], 0.0).amax(dim=1).maximum(own).clamp(min=0)
