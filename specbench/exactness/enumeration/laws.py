"""The exact tier: a rule's joint distribution over a whole step, summed over all drafts. No Monte Carlo.

A step is described by where it ends: ``ends[i]`` holds the probability that it emits exactly a given sequence of i + 1
tokens. Completed with the target to gamma + 1 tokens it has a joint distribution over V^(gamma + 1) sequences, which
for a lossless rule is the target's own, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.exactness.fixtures import Fixture

Ends = list[Tensor]  # ends[i]: Float64 [V^(i + 1)], sequences in lexicographic order


@dataclass(frozen=True)
class StepLaw:
    """What a rule does with each of P drafts of g tokens, as probabilities.

    Attributes:
        accept: [P, g], the chance that the i-th uniform is below its threshold; thresholds of the rule's accept tests.
        length: [P, g + 1], probability that exactly 0..g tokens are accepted.
        emit: [P, g + 1, V], distribution of the token after them.
    """

    accept: Float64[Tensor, "P g"]
    length: Float64[Tensor, "P lengths"]
    emit: Float64[Tensor, "P lengths V"]


@dataclass(frozen=True)
class Drafts:
    """All drafts of g tokens that have positive probability.

    Attributes:
        tokens: [P, g].
        weight: [P], the probability of drafting them.
        p, q: [P, g + 1, V] and [P, g, V], the rows along each draft.
        rows: [P, g + 1], their indices in the fixture's tables.
    """

    tokens: Int64[Tensor, "P g"]
    weight: Float64[Tensor, " P"]
    p: Float64[Tensor, "P lengths V"]
    q: Float64[Tensor, "P g V"]
    rows: Int64[Tensor, "P lengths"]


def all_drafts(fixture: Fixture, num_draft_tokens: int) -> Drafts:
    """Every draft that the fixture's own rows can give; on the CPU, wherever the fixture is."""
    fixture_p, fixture_q = fixture.p.cpu(), fixture.q.cpu()
    vocabulary, g = fixture.vocabulary, num_draft_tokens
    index = torch.arange(vocabulary**g)
    tokens = (
        torch.stack([index // vocabulary ** (g - 1 - i) % vocabulary for i in range(g)], 1)
        if g
        else index[:, None][:, :0]
    )
    state = torch.zeros_like(index)
    rows, weight = [fixture.first_row[0] + state], torch.ones(len(index), dtype=torch.float64)
    for i in range(g):
        weight = weight * fixture_q[rows[-1], tokens[:, i]]
        state = fixture.advance(i, state, tokens[:, i])
        rows.append(fixture.first_row[i + 1] + state)
    table = torch.stack(rows, 1)
    keep = weight > 0
    table, tokens = table[keep], tokens[keep]
    q = fixture_q[table[:, :-1]] if g else fixture_p.new_zeros((len(tokens), 0, vocabulary))
    return Drafts(tokens, weight[keep], fixture_p[table], q, table)


def one_draft(fixture: Fixture, drafted: Int64[Tensor, " g"]) -> Drafts:
    """A single draft, whatever its probability, on the CPU."""
    state, rows = torch.zeros(1, dtype=torch.int64), []
    for i, token in enumerate(drafted):
        rows.append(fixture.first_row[i] + state)
        state = fixture.advance(i, state, token)
    rows.append(fixture.first_row[len(drafted)] + state)
    table = torch.stack(rows, 1)
    p, q = fixture.p.cpu(), fixture.q.cpu()
    one = torch.ones(1, dtype=torch.float64)
    along = q[table[:, :-1]] if len(drafted) else p.new_zeros((1, 0, p.shape[1]))
    return Drafts(drafted[None], one, p[table], along, table)


def token_law(drafts: Drafts) -> StepLaw:
    """Token verification: arXiv 2211.17192, algorithm 1."""
    accept = (_drafted(drafts.p, drafts.tokens) / _drafted(drafts.q, drafts.tokens)).clamp(max=1)
    reach = torch.cat([torch.ones_like(drafts.weight)[:, None], accept.cumprod(dim=1)], 1)
    refuse = torch.cat([1 - accept, torch.ones_like(drafts.weight)[:, None]], 1)
    return StepLaw(accept, reach * refuse, _residuals(drafts.p, drafts.q))


def block_law(drafts: Drafts) -> StepLaw:
    """Block verification: arXiv 2403.10444; the terms are those of verifiers/block.py."""
    g = drafts.tokens.shape[1]
    ratio = _drafted(drafts.p, drafts.tokens) / _drafted(drafts.q, drafts.tokens)
    pi = [torch.ones_like(drafts.weight)]
    for i in range(g):
        pi.append((pi[-1] * ratio[:, i]).clamp(max=1))
    weights = torch.stack(pi, 1)
    mass = (weights[:, :-1, None] * drafts.p[:, :-1] - drafts.q).clamp(min=0).sum(-1)
    total = mass + 1 - weights[:, :-1]
    h = torch.where(total > 0, mass / torch.where(total > 0, total, 1), 1.0)
    h = torch.cat([h, weights[:, -1:]], 1)  # h_g = pi_g; h_0 is not tested: zero tokens can always be accepted
    if g:
        h = torch.cat([torch.ones_like(h[:, :1]), h[:, 1:]], 1)
    none_later = torch.cat([(1 - h).flip(1).cumprod(1).flip(1)[:, 1:], torch.ones_like(h[:, :1])], 1)
    return StepLaw(h[:, 1:], h * none_later, _residuals(drafts.p, drafts.q, weights))


LAWS: dict[str, Callable[[Drafts], StepLaw]] = {"token": token_law, "block": block_law}


def accepted(rule: str, thresholds: Float64[Tensor, "P g"], u: Float64[Tensor, "P g"]) -> Int64[Tensor, " P"]:
    """How many tokens a rule of LAWS accepts: up to the first refusal (token), or to the last success (block)."""
    passed = (u < thresholds).long()
    if rule == "token" or passed.shape[1] == 0:
        return passed.cumprod(dim=1).sum(dim=1)
    return (passed * torch.arange(1, passed.shape[1] + 1, device=u.device)).amax(dim=1)


def law_of(rule: str) -> Callable[[Drafts], StepLaw]:
    """The closed form of a rule.

    Raises:
        ArgumentError: a rule that has none here.
    """
    if rule not in LAWS:
        raise ArgumentError(f"rule={rule}: no closed form; known are {', '.join(LAWS)}")
    return LAWS[rule]


def _drafted(rows: Float64[Tensor, "P n V"], tokens: Int64[Tensor, "P g"]) -> Float64[Tensor, "P g"]:
    return rows[:, : tokens.shape[1]].gather(2, tokens[:, :, None])[:, :, 0]


def _residuals(
    p: Float64[Tensor, "P lengths V"],
    q: Float64[Tensor, "P g V"],
    weights: Float64[Tensor, "P lengths"] | None = None,
) -> Float64[Tensor, "P lengths V"]:
    """Normalised max(pi p - q, 0) after each accepted prefix and p after the last; p where nothing is left."""
    scaled = p if weights is None else weights[:, :, None] * p
    left = torch.cat([(scaled[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p)
    return left / left.sum(-1, keepdim=True)


def prefixes(tokens: Int64[Tensor, "P n"], vocabulary: int) -> Int64[Tensor, "P lengths"]:
    """The number of each of the n + 1 prefixes of some sequences, in lexicographic order."""
    numbers = [torch.zeros_like(tokens[:, 0]) if tokens.shape[1] else tokens.new_zeros(len(tokens))]
    for i in range(tokens.shape[1]):
        numbers.append(numbers[-1] * vocabulary + tokens[:, i])
    return torch.stack(numbers, 1)


def law_ends(fixture: Fixture, drafts: Drafts, law: StepLaw) -> Ends:
    """Where a step ends, over all drafts of one length."""
    vocabulary = fixture.vocabulary
    prefix, ends = prefixes(drafts.tokens, vocabulary), []
    for i in range(drafts.tokens.shape[1] + 1):
        mass = (drafts.weight * law.length[:, i])[:, None] * law.emit[:, i]
        out = torch.zeros(vocabulary**i, vocabulary, dtype=torch.float64)
        ends.append(out.index_add_(0, prefix[:, i], mass).flatten())
    return ends


def completed(fixture: Fixture, ends: Ends) -> Float64[Tensor, " sequences"]:
    """The joint of steps completed with the target's own distribution to the length of the longest."""
    joint, p = ends[0], fixture.p.to(ends[0].device)
    for i in range(1, len(ends)):
        rows = p[fixture.prefix_rows(i).to(p.device)]
        joint = (joint[:, None] * rows).flatten() + ends[i]
    return joint


def target_joint(fixture: Fixture, length: int) -> Float64[Tensor, " sequences"]:
    """The target's joint over sequences of ``length`` tokens."""
    nothing = [fixture.p.new_zeros(fixture.vocabulary ** (i + 1)) for i in range(length)]
    return completed(fixture, [fixture.p[0], *nothing[1:]])


def sequence_of(number: int, vocabulary: int, length: int) -> list[int]:
    """The tokens of a sequence by its place among all of its length, in lexicographic order."""
    return [number // vocabulary**i % vocabulary for i in reversed(range(length))]


def joint_tv(fixture: Fixture, ends: Ends) -> float:
    """Total variation of completed steps from the target's joint; mass that the ends lack or have too much counts."""
    joint = completed(fixture, ends)
    return float(0.5 * (joint - target_joint(fixture, len(ends)).to(joint.device)).abs().sum())


def rule_error(rule: str, fixture: Fixture) -> float:
    """The largest total variation of a rule's joint from the target's, over draft lengths and variants."""
    errors = []
    for variant in map(fixture.variant, range(fixture.variants)):
        for count in sorted(set(fixture.counts)):
            drafts = all_drafts(variant, count)
            errors.append(joint_tv(variant, law_ends(variant, drafts, law_of(rule)(drafts))))
    return max(errors)


def rule_lengths(rule: str, fixture: Fixture) -> Float64[Tensor, "classes lengths"]:
    """The probability of accepting 0..gamma tokens, by num_draft_tokens."""
    lengths = torch.zeros(fixture.gamma + 1, fixture.gamma + 1, dtype=torch.float64)
    for variant in map(fixture.variant, range(fixture.variants)):
        for count in set(fixture.counts):
            drafts = all_drafts(variant, count)
            lengths[count, : count + 1] += drafts.weight @ law_of(rule)(drafts).length / fixture.variants
    return lengths


def counted_ends(fixture: Fixture, counts: Int64[Tensor, "rows V"]) -> Ends:
    """Where steps ended, from how often each token was emitted at each row: emitted there, and nothing after it.

    Only for a fixture whose states are whole prefixes.
    """
    shares = counts.double() / counts[0].sum().clamp(min=1)
    ends = []
    for i in range(fixture.gamma + 1):
        first = fixture.first_row[i]
        here = shares[first : first + fixture.states[i]].flatten()
        if i < fixture.gamma:
            after = fixture.first_row[i + 1]
            here = here - shares[after : after + fixture.states[i + 1]].sum(dim=1)
        ends.append(here)
    return ends
