"""Two verifiers on the same streams: where they part first, what stood at the fork, whether rounding explains it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from specbench.core.rng import Stream
from specbench.exactness.enumeration.laws import law_of, one_draft
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import Steps, draw, verified
from specbench.exactness.streams import COMPARED, request_streams
from specbench.metrics.exactness_rows import ComparisonRow
from specbench.rules.agreement import classify
from specbench.rules.rule import Rule, rule_of
from specbench.rules.verifier import Verifier

LARGEST = 4096  # requests in one batch
ROUNDING, STRUCTURAL, ANOTHER_RULE = "rounding", "structural", "another rule"
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
        cause: ROUNDING if small errors of p and q explain both outcomes (rules.agreement), else STRUCTURAL;
            ANOTHER_RULE if the rule has no formulas that say so.
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

    def row(self) -> ComparisonRow:
        """The counts."""
        causes = (self.count(cause) for cause in (ROUNDING, STRUCTURAL, ANOTHER_RULE))
        return ComparisonRow(self.fixture, self.requests, *causes)


def compare(
    first: Verifier, second: Verifier, fixture: Fixture, requests: int, seed: int, device: torch.device
) -> Comparison:
    """Puts the same requests before both and explains every difference by the thresholds of the first one's rule."""
    comparison = Comparison(fixture.name)
    fixture = fixture.to(device)
    batch = max(1, min(LARGEST, _DENSE // fixture.vocabulary // (fixture.gamma + 1)))
    for start in range(0, requests, batch):
        size = min(batch, requests - start)
        streams = request_streams(seed, COMPARED + start, size, fixture.gamma + 1, device)
        drawn = draw(first, fixture, streams)
        one, two = (verified(verifier, drawn) for verifier in (first, second))
        comparison.divergences += divergences(rule_of(first), one, two)
        comparison.requests += size
    return comparison


def divergences(rule: Rule, one: Steps, two: Steps) -> list[Divergence]:
    """The requests on which two outcomes of the same call differ, explained by a rule."""
    differ, call, wrong = (one.visible != two.visible).any(dim=1).nonzero()[:, 0].tolist(), one.drawn, set[int]()
    if differ and rule.has_law:
        outcomes = one.verification, two.verification
        wrong |= set(classify(rule, call.draft, call.target, call.streams, *outcomes).wrong.tolist())
    known = ROUNDING if rule.has_law else ANOTHER_RULE
    return [_explained(rule, one, two, b, STRUCTURAL if b in wrong else known) for b in differ]


def _explained(rule: Rule, one: Steps, two: Steps, b: int, cause: str) -> Divergence:
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
    return Divergence(*where, offset, kind, drafted.tolist(), *emitted, uniform, threshold, margin, cause)
