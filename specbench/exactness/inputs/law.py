"""Does a rule give the target's distribution on a call of D? In closed form along the drafted path, O(V) a token.

Let f_i be the probability that the first i draft tokens are kept, given that they were drafted; f_0 = 1. A rule is
lossless exactly if, after every prefix that it keeps, the next token is the target's (field criterion: P(next = v |
emitted prefix) = p(v)). With the rows p and q after the i-th token of the path that reads, for every token v,

    q(v) f_{i+1}(v) + (f_i - sum_w q(w) f_{i+1}(w)) r_i(v) = f_i p(v)

where r_i is the normalised residual after i tokens. Of a rule that stops at its first refusal f_{i+1}(v) is f_i times
the threshold of v at that place. Of a rule that keeps the longest prefix that succeeds (block verification) it is its
prefix weight, and that those weights are the chances is part of the check: with threshold h_i,

    f_i = h_i + (1 - h_i) sum_w q(w) f_{i+1}(w),   and f_g = h_g.

Half the sum of the absolute differences over v and i is, in the mean over drafts, at least the total variation of a
whole step from the target's (the chain rule of total variation). That of i = 0 alone is the total variation of the
step's first token, whatever was drafted, and so a lower bound.

Candidates that are siblings in a tree are tried one after the other, each against what the refusals before it left.
That is the same equation at i = 0 with this rest in the place of p, so it is checked too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.inputs.call import Call
from specbench.rules.agreement import TOLERANCE
from specbench.rules.draft_path import DraftPath, DraftPathTables
from specbench.rules.formula import UnknownRowsError
from specbench.rules.rule import FIRST_REFUSAL, Rule

LARGEST_DENSE = 2048  # tokens up to which a threshold may read whole rows of each of V alternatives
_REACHED = 1e-9  # a place that is reached more rarely adds nothing


class NoClosedFormError(UnknownRowsError):
    """A threshold that needs what the rows along one path do not say."""


@dataclass(frozen=True)
class LawError:
    """How far a rule's formulas are from the target on one request.

    Attributes:
        step: in the mean over drafts at least the total variation of a step, and of a second candidate of a tree.
        first: total variation of the step's first token, a lower bound on that of the step.
    """

    step: float
    first: float


class _Alternatives(DraftPath):
    """The path of one request with each token of the vocabulary at one place of it: V drafts."""

    def __init__(self, path: _Path, place: int):
        self.path, self.place, vocabulary = path, place, path.p.shape[1]
        self.counts = torch.full((vocabulary,), path.tokens.shape[1], device=path.p.device)
        self.drafted_p = path.drafted_p.repeat(vocabulary, 1)
        self.drafted_q = path.drafted_q.repeat(vocabulary, 1)
        self.drafted_p[:, place], self.drafted_q[:, place] = path.p[place], path.q[place]

    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """The rows that all alternatives share."""
        place = int(num_tokens[0])
        if place > self.place or len(self.counts) > LARGEST_DENSE or bool((num_tokens != place).any()):
            raise NoClosedFormError
        return self.path.p[place].expand(len(self.counts), -1), self.path.q[place].expand(len(self.counts), -1)


class _Path(DraftPathTables):
    """One request's path as one draft."""

    def __init__(self, p: Float64[Tensor, "g1 V"], q: Float64[Tensor, "g V"], tokens: Int64[Tensor, " g"]):
        places = torch.arange(len(p), device=p.device)[None]
        super().__init__(p, q, places, places[:, :-1], tokens[None], places[:, -1])


def law_error(rule: Rule, call: Call, request: int) -> LawError | None:
    """The error of a rule's formulas on one request.

    Args:
        rule: one whose formulas are known.
        request: its place in the call.

    Returns:
        None if the formulas have no closed form along one path of this vocabulary, as where they look ahead.
    """
    p, q, tokens = _rows(call, request)
    path = _Path(p, q, tokens)
    if len(tokens) > 1 and _looks_ahead(rule, path, 1 + call.number % (len(tokens) - 1)):
        return None
    try:
        errors = _errors(rule, path)
        siblings = _of_siblings(rule, path) if len(tokens) else 0.0
    except NoClosedFormError:
        return None
    return LawError(max(sum(errors), siblings), errors[0])


def same_in_batch(rule: Rule, call: Call, request: int) -> bool:
    """Whether the formulas give a request the same in its batch as alone, but for rounding.

    :func:`law_error` judges a request alone, which says nothing of formulas that read other requests or the batch's
    width.
    """
    batch, path = call.path, _Path(*_rows(call, request))
    count = int(batch.counts[request])
    there, alone = rule.limits(batch)[request, :count].clamp(0, 1), rule.limits(path)[0, :count].clamp(0, 1)
    if bool(((there - alone).abs() > TOLERANCE).any()):
        return False
    place = call.number // len(batch.counts) % (count + 1)
    weights = rule.weights_after(batch, batch.counts.clamp(max=place))[request]
    return _difference(weights / weights.sum(), _drawn(rule, path, place)) <= TOLERANCE


def _rows(call: Call, request: int) -> tuple[Tensor, Tensor, Tensor]:
    """p, q and tokens along the draft of one request."""
    one = call.alone(request)
    return one.p, one.path.q[: len(one.draft.token_ids)], one.draft.token_ids


def _looks_ahead(rule: Rule, path: _Path, place: int) -> bool:
    """Whether thresholds before a place change with the tokens that are drafted there and later.

    Then whether a token is kept tells of later ones, which the sums along one path do not show.
    """
    others = path.q[place:].scatter(1, path.tokens[0, place:, None], 0.0)
    tokens = torch.cat([path.tokens[0, :place], others.argmax(dim=1)])
    there = bool(others.any(dim=1).all())  # or no other draft is possible
    chances = [rule.chances(one)[0, :place] for one in (path, _Path(path.p, path.q, tokens))]
    return there and bool(((chances[0] - chances[1]).abs() > TOLERANCE).any())


def _errors(rule: Rule, path: _Path) -> list[float]:
    """The difference at each place, in the order of the path."""
    gamma = path.tokens.shape[1]
    if gamma == 0:
        return [_difference(_drawn(rule, path, 0), path.p[0])]
    stops = rule.decides == FIRST_REFUSAL
    if not stops and rule.prefix_weights is None:
        raise NoClosedFormError
    chances, kept, errors = rule.chances(path)[0], 1.0, []
    for i in range(gamma):
        q = path.q[i]
        others = _Alternatives(path, i)
        if stops:
            longer = kept * rule.limits(others)[:, i].clamp(0, 1)
        else:
            assert rule.prefix_weights is not None
            longer = rule.prefix_weights(others)[:, i + 1]
        drafted = torch.where(q > 0, q * longer, 0.0)
        kept_on = float(drafted.sum())
        emitted = drafted + (kept - kept_on) * _drawn(rule, path, i)
        error = 0.5 * float((emitted - kept * path.p[i]).abs().sum())
        if not stops and i > 0:
            h = float(chances[i - 1])
            error += abs(kept - (h + (1 - h) * kept_on))
        errors.append(error)
        kept = float(longer[path.tokens[0, i]])
        if kept < _REACHED:
            return errors
    end = 0.0 if stops else abs(kept - float(chances[-1]))
    return [*errors, end + kept * _difference(_drawn(rule, path, gamma), path.p[gamma])]


def _drawn(rule: Rule, path: _Path, accepted: int) -> Float64[Tensor, " V"]:
    """What the token after some accepted ones is drawn from."""
    weights = rule.weights_after(path, torch.tensor([accepted], device=path.p.device))[0]
    return weights / weights.sum()


def _difference(one: Tensor, other: Tensor) -> float:
    return 0.5 * float((one - other).abs().sum())


def _of_siblings(rule: Rule, path: _Path) -> float:
    """The error at a second candidate, drawn without replacement, against what refusing the first one leaves."""
    if rule.decides != FIRST_REFUSAL or rule.prefix_weights is not None:
        return 0.0
    rest, again = rule.residual(path.p[:1], path.q[:1])[0], path.q[0].clone()
    again[path.tokens[0, 0]] = 0.0
    if not (float(rest.sum()) >= _REACHED and float(again.sum()) >= _REACHED):  # a rest of 0 may be normalised to NaN
        return 0.0
    rest, again = rest / rest.sum(), again / again.sum()
    second = _Path(torch.stack([rest, rest]), again[None], again.argmax()[None])
    limits = rule.limits(_Alternatives(second, 0))[:, 0]
    accepted = torch.where(again > 0, again * limits.clamp(0, 1), 0.0)
    left = rule.residual(rest[None], again[None])[0]
    left = left / left.sum() if float(left.sum()) > 0 else rest
    return _difference(accepted + (1 - accepted.sum()) * left, rest)
