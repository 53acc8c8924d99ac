"""The exact tier: a rule's joint distribution over a whole step, summed over all drafts. No Monte Carlo.

A step is described by where it ends: ``ends[i]`` holds the probability that it emits exactly a given sequence of i + 1
tokens. Completed with the target to gamma + 1 tokens it has a joint distribution over V^(gamma + 1) sequences, which
for a lossless rule is the target's own, to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.fixtures import Fixture
from specbench.exactness.fixtures.table import all_sequences
from specbench.rules.draft_path import DraftPathTables
from specbench.rules.law import StepLaw, step_law
from specbench.rules.rule import Rule, get_rule

Ends = list[Tensor]  # ends[i]: Float64 [V^(i + 1)], sequences in lexicographic order


@dataclass(frozen=True)
class Drafts:
    """P drafts of g tokens, on the CPU.

    Attributes:
        tokens: [P, g].
        p, q: [P, g + 1, V] and [P, g, V], the rows along each draft.
    """

    tokens: Int64[Tensor, "P g"]
    p: Float64[Tensor, "P lengths V"]
    q: Float64[Tensor, "P g V"]

    @cached_property
    def drafted_q(self) -> Float64[Tensor, "P g"]:
        """The probability of each drafted token."""
        return self.q.gather(2, self.tokens[:, :, None])[:, :, 0]

    @cached_property
    def weight(self) -> Float64[Tensor, " P"]:
        """The probability of each draft."""
        return self.drafted_q.prod(dim=1)


def drafts_of(fixture: Fixture, tokens: Int64[Tensor, "P g"]) -> Drafts:
    """The drafts of these tokens, whatever their probability."""
    rows = fixture.rows_along(tokens)
    return Drafts(tokens, fixture.p.cpu()[rows], fixture.q.cpu()[rows[:, :-1]])


def all_drafts(fixture: Fixture, num_draft_tokens: int) -> Drafts:
    """The drafts of positive probability, by the fixture's own rows."""
    drafts = drafts_of(fixture, all_sequences(fixture.vocabulary, num_draft_tokens))
    possible = drafts.weight > 0
    return Drafts(drafts.tokens[possible], drafts.p[possible], drafts.q[possible])


def law_of(rule: Rule | str, drafts: Drafts) -> StepLaw:
    """What a rule, or the one of that name, does with each of the drafts.

    Raises:
        ArgumentError: a rule whose formulas are not known.
    """
    count, places, vocabulary = drafts.p.shape
    at = torch.arange(count * places).view(count, places)
    into = torch.arange(count * (places - 1)).view(count, places - 1)
    counts = torch.full((count,), places - 1)
    p, q = (rows.reshape(-1, vocabulary) for rows in (drafts.p, drafts.q))
    return step_law(get_rule(rule), DraftPathTables(p, q, at, into, drafts.tokens, counts))


def prefixes(tokens: Int64[Tensor, "P n"], vocabulary: int) -> Int64[Tensor, "P lengths"]:
    """The number of each of the n + 1 prefixes of some sequences, in lexicographic order."""
    numbers = [tokens.new_zeros(len(tokens))]
    for token in tokens.unbind(1):
        numbers.append(numbers[-1] * vocabulary + token)
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
    nothing = [fixture.p.new_zeros(fixture.vocabulary**i) for i in range(2, length + 1)]
    return completed(fixture, [fixture.p[0], *nothing])


def joint_tv(fixture: Fixture, ends: Ends) -> float:
    """Total variation of completed steps from the target's joint; mass that the ends lack or have too much counts."""
    joint = completed(fixture, ends)
    return float(0.5 * (joint - target_joint(fixture, len(ends)).to(joint.device)).abs().sum())


def rule_error(rule: Rule | str, fixture: Fixture) -> float:
    """The largest total variation of a rule's joint from the target's, over draft lengths and variants."""
    by_class = [(own, all_drafts(own, own.count)) for own in fixture.classes()]
    return max(joint_tv(own, law_ends(own, drafts, law_of(rule, drafts))) for own, drafts in by_class)


def rule_lengths(rule: Rule | str, fixture: Fixture) -> Float64[Tensor, "classes lengths"]:
    """The probability of accepting 0..gamma tokens, by num_draft_tokens."""
    lengths = torch.zeros(fixture.gamma + 1, fixture.gamma + 1, dtype=torch.float64)
    for own in fixture.classes():
        drafts = all_drafts(own, own.count)
        lengths[own.count, : own.count + 1] += drafts.weight @ law_of(rule, drafts).length / fixture.variants
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
