"""Two verifiers on the same streams: where they part first, what stood at the fork, whether rounding explains it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from specbench.exactness.enumeration.laws import law_of, one_draft
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import Steps, draw, variant_of, verified
from specbench.exactness.streams import COMPARED, request_streams
from specbench.rng import Stream, Streams
from specbench.rules import known
from specbench.rules.law import StepLaw
from specbench.rules.rule import Rule
from specbench.verifiers import Verifier

ROUNDING = 1e-6  # a float32 computation places a threshold this well; a wrong rule misses it by more, almost always
LARGEST = 4096  # requests in one batch
_DENSE = 2**22  # logits of a batch


@dataclass(frozen=True)
class Divergence:
    """One request on which two verifiers part.

    Attributes:
        fixture, seed: the request.
        offset: of the accept test that went both ways, or of the emitted token.
        kind: "accept" or "emit".
        drafted: the drafted tokens.
        first, second: what each emitted.
        uniform: the uniform at the fork.
        threshold: what the rule compares it with; for an emitted token the nearest edge of the distribution function.
        margin: their distance.
        cause: "rounding", "structural", or "another rule" where thresholds of the rule are not known.
    """

    fixture: str
    seed: int
    offset: int
    kind: str
    drafted: list[int]
    first: list[int]
    second: list[int]
    uniform: float
    threshold: float | None
    margin: float | None
    cause: str


@dataclass(frozen=True)
class ComparisonRow:
    """How many requests of a fixture two verifiers were given, and on how many they part, by cause."""

    fixture: str
    requests: int
    rounding: int
    structural: int
    another_rule: int


@dataclass
class Comparison:
    """Requests of one fixture put before two verifiers."""

    fixture: str
    requests: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def count(self, cause: str) -> int:
        """How many divergences have a cause."""
        return sum(each.cause == cause for each in self.divergences)

    def row(self) -> ComparisonRow:
        """The counts."""
        causes = (self.count(cause) for cause in ("rounding", "structural", "another rule"))
        return ComparisonRow(self.fixture, self.requests, *causes)


def compare(
    first: Verifier, second: Verifier, fixture: Fixture, requests: int, seed: int, device: torch.device
) -> Comparison:
    """Puts the same requests before both and explains every difference. The first one's rule gives the thresholds."""
    comparison = Comparison(fixture.name)
    fixture = fixture.to(device)
    batch = max(1, min(LARGEST, _DENSE // fixture.vocabulary // (fixture.gamma + 1)))
    for start in range(0, requests, batch):
        size = min(batch, requests - start)
        streams = request_streams(seed, COMPARED + start, size, fixture.gamma + 1, device)
        drawn = draw(first, fixture, streams)
        one, two = (verified(verifier, fixture, drawn, streams) for verifier in (first, second))
        variants = variant_of(fixture, streams).tolist()
        for b in (one.visible != two.visible).any(dim=1).nonzero()[:, 0].tolist():
            variant = fixture.variant(variants[b])
            comparison.divergences.append(explain(variant, known.of(first), one, two, streams, b))
        comparison.requests += size
    return comparison


def explain(fixture: Fixture, rule: Rule, one: Steps, two: Steps, streams: Streams, b: int) -> Divergence:
    """What stood at the fork of request b."""
    drafted = one.drawn.tokens[b, : int(one.drawn.counts[b])].cpu()
    a, c = (int(each.verification.num_accepted[b]) for each in (one, two))
    emitted = [each.visible[b][: n + 1].tolist() for each, n in ((one, a), (two, c))]
    law = law_of(rule, one_draft(fixture, drafted)) if rule.has_law else None
    threshold = None
    if a != c:
        kind, offset = "accept", rule.deciding_offset(a, c)
        uniform = float(streams.uniform(Stream.ACCEPT)[b, offset])
        threshold = None if law is None else float(law.accept[0, offset])
    else:
        kind, offset = "emit", a
        uniform = float(streams.uniform(Stream.EMIT)[b, 0])
        threshold = None if law is None else _nearest_edge(law, a, uniform)
    margin = None if threshold is None else abs(uniform - threshold)
    cause = "another rule" if margin is None else "rounding" if margin <= ROUNDING else "structural"
    where = (fixture.name, int(streams.seeds[b]), offset, kind, drafted.tolist())
    return Divergence(*where, emitted[0], emitted[1], uniform, threshold, margin, cause)


def _nearest_edge(law: StepLaw, accepted: int, uniform: float) -> float:
    edges = law.emit[0, accepted].cumsum(0)[:-1]
    return float(edges[(edges - uniform).abs().argmin()]) if len(edges) else 1.0
