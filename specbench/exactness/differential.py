"""Two verifiers on the same streams: where they part first, what stood at the fork, whether rounding explains it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream
from specbench.exactness.enumeration.laws import law_of, one_draft
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import Steps, draw, verified
from specbench.exactness.streams import COMPARED, request_streams
from specbench.rules.rule import Rule, rule_of, rules_with_formulas
from specbench.rules.verifier import Verifier

ROUNDING = 1e-6  # a float32 computation places a threshold this well; a wrong rule misses it by more, almost always
LARGEST = 4096  # requests in one batch
STRUCTURAL, ANOTHER_RULE = "structural", "another rule"
_REQUESTS = 64, 512, 4096  # of each fixture, one after the other
_DENSE = 2**22  # logits of a batch


@dataclass(frozen=True)
class Divergence:
    """One request on which two verifiers part.

    Attributes:
        fixture, seed, position: the request.
        offset: of the accept test that went both ways, or of the emitted token.
        kind: "accept", "emit", or "form" if either emitted what no rule can give.
        drafted: the drafted tokens.
        first, second: what each emitted.
        uniform: the uniform at the fork.
        threshold: what the rule compares it with; for an emitted token the nearest edge of the distribution function.
        margin: their distance.
        cause: "rounding", "structural", or "another rule" where thresholds of the rule are not known.
    """

    fixture: str
    seed: int
    position: int
    offset: int
    kind: str
    drafted: list[int]
    first: list[int]
    second: list[int]
    uniform: float
    threshold: float | None
    margin: float | None
    cause: str

    def described(self, other: str) -> str:
        """The fork in a line.

        Args:
            other: what the second verifier is called.
        """
        decision = {
            "accept": f"the accept test of drafted token {self.offset + 1}",
            "emit": f"the draw of token {self.offset + 1}",
            "form": "the form of the result",
        }[self.kind]
        if self.threshold is not None:
            decision += f", uniform {self.uniform:.17g} against threshold {self.threshold:.17g}"
        return (
            f"{self.fixture}, seed {self.seed}, position {self.position}: {decision} ({self.cause}); of the draft "
            f"{self.drafted} it emits {self.first}, {other} {self.second}"
        )


@dataclass
class Comparison:
    """Requests of one fixture put before two verifiers."""

    fixture: str
    requests: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def count(self, cause: str) -> int:
        """How many divergences have a cause."""
        return sum(divergence.cause == cause for divergence in self.divergences)


def compare(
    first: Verifier,
    second: Verifier,
    fixture: Fixture,
    requests: int,
    seed: int,
    device: torch.device,
    rule: Rule | None = None,
    begin: int = 0,
) -> Comparison:
    """Puts the same requests before both and explains every difference.

    Args:
        rule: gives the thresholds; the first one's own if None.
        begin: number of the first request, of those that the seed makes.
    """
    comparison = Comparison(fixture.name)
    fixture = fixture.to(device)
    batch = max(1, min(LARGEST, _DENSE // fixture.vocabulary // (fixture.gamma + 1)))
    for start in range(0, requests, batch):
        size = min(batch, requests - start)
        streams = request_streams(seed, COMPARED + begin + start, size, fixture.gamma + 1, device)
        drawn = draw(first, fixture, streams)
        one, two = (verified(verifier, drawn) for verifier in (first, second))
        for b in (one.visible != two.visible).any(dim=1).nonzero()[:, 0].tolist():
            comparison.divergences.append(explain(rule or rule_of(first), one, two, b))
        comparison.requests += size
    return comparison


def first_divergence(verifier: Verifier, fixtures: Sequence[Fixture], seed: int, most: int = LARGEST) -> str | None:
    """Returns the first fork of a verifier and its rule that rounding does not explain, in a line.

    Args:
        verifier: of a rule whose formulas are known.
        fixtures: on the device.
        most: requests of a fixture that are compared at once, for slow code; 64 are in any case.

    Returns:
        None if there is none in the requests that were compared.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    rule = rule_of(verifier)
    for comparison in _with_rule(verifier, rule, fixtures, seed, most):
        for divergence in comparison.divergences:
            if divergence.cause == STRUCTURAL:
                return f"The two part first at {divergence.described(f'the {rule.title}')}."
    return None


def followed_rule(
    verifier: Verifier, fixtures: Sequence[Fixture], seed: int, most: int = LARGEST
) -> tuple[str, int] | None:
    """Returns the known rule, other than the verifier's own, that has all of its tokens but for rounding.

    Args:
        fixtures, most: as in first_divergence.

    Returns:
        The rule's name and how many requests were compared; None if no known rule has all of the tokens.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    for rule in rules_with_formulas().values():
        if rule is rule_of(verifier):
            continue
        requests = 0
        for comparison in _with_rule(verifier, rule, fixtures, seed, most):
            if comparison.count(STRUCTURAL):
                break
            requests += comparison.requests
        else:
            if requests:
                return rule.name, requests
    return None


def _with_rule(
    verifier: Verifier, rule: Rule, fixtures: Sequence[Fixture], seed: int, most: int
) -> Iterator[Comparison]:
    """Comparisons with the plain code of a rule, short ones of all fixtures first; refused fixtures are left out."""
    assert rule.reference is not None
    refused = set()
    for requests, fixture in itertools.product(_REQUESTS, fixtures):
        if requests > max(most, _REQUESTS[0]):
            return
        if fixture.name not in refused:
            begin = sum(_REQUESTS[: _REQUESTS.index(requests)])
            try:
                yield compare(verifier, rule.reference, fixture, requests, seed, fixture.p.device, rule, begin)
            except ArgumentError:
                refused.add(fixture.name)


def explain(rule: Rule, one: Steps, two: Steps, b: int) -> Divergence:
    """What stood at the fork of request b."""
    drawn, streams = one.drawn, one.drawn.streams
    fixture = drawn.fixture.classes()[int(drawn.classes[b])]
    drafted = drawn.tokens[b, : fixture.count].cpu()
    a, c = (int(steps.verification.num_accepted[b]) for steps in (one, two))
    where = (fixture.name, int(streams.seeds[b]), int(streams.positions[b]))
    if bool(one.malformed[b]) or bool(two.malformed[b]):
        emitted = [steps.verification.token_ids[b].tolist() for steps in (one, two)]
        return Divergence(*where, 0, "form", drafted.tolist(), *emitted, 0.0, None, None, STRUCTURAL)
    emitted = [steps.visible[b][: n + 1].tolist() for steps, n in ((one, a), (two, c))]
    law = law_of(rule, one_draft(fixture, drafted)) if rule.has_law else None
    threshold = None
    if a != c:
        kind, offset = "accept", rule.deciding_offset(a, c)
        uniform = float(streams.uniform(Stream.ACCEPT)[b, offset])
        threshold = None if law is None else float(law.accept[0, offset])
    else:
        kind, offset = "emit", a
        uniform = float(streams.uniform(Stream.EMIT)[b, 0])
        if law is not None:
            edges = law.emit[0, a].cumsum(0)[:-1]
            threshold = float(edges[(edges - uniform).abs().argmin()]) if len(edges) else 1.0
    margin = None if threshold is None else abs(uniform - threshold)
    cause = ANOTHER_RULE if margin is None else "rounding" if margin <= ROUNDING else STRUCTURAL
    return Divergence(*where, offset, kind, drafted.tolist(), *emitted, uniform, threshold, margin, cause)
