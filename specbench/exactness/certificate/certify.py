"""All that one run can say about one verifier: as a value, as JSON, and as a page of Markdown."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from specbench.core.machine.provenance import environment
from specbench.exactness.certificate.words import page_of, say
from specbench.exactness.evidence import Evidence
from specbench.exactness.settings import Settings
from specbench.exactness.suite import Examination
from specbench.exactness.tables import bias_rows
from specbench.exactness.verdict import NOT_LOSSLESS, verdict_of
from specbench.rules.rule import rule_name


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """See verdict.py for what ``verdict`` may be.

    Attributes:
        headline, words: the verdict in a line, and in sentences.
        suite, settings: by name, and what it stands for.
        draws: requests on the small fixtures, together.
        tv_upper_bound: of the total variation a step on the small fixtures that were tried.
        inputs_upper_bound, large_upper_bound: likewise in the mean over D, and over its large vocabularies; each at 99%
            confidence, None where there is none.
        tv_lower_bound: the largest bias that is known, with the run's false alarm; 0 where none is.
        bounds, inputs, census, tests, habits, long_use: the rows of the evidence (evidence.py), as dictionaries.
        refusals, failure, interrupted: likewise of the evidence.
        covered, not_covered: the scope, in words.
        bias: total variation a step and accepted tokens a step by fixture, for what is not lossless.
        seed, inputs_seed: of the requests on small fixtures, and of the calls drawn from D.
        command: what repeats this run: a command line, or statements of Python.
    """

    verifier: str
    rule: str
    declared_lossless: bool
    verdict: str
    headline: str
    words: list[str]
    command: str
    seed: int
    inputs_seed: int
    suite: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    draws: int
    seconds: float
    tv_upper_bound: float | None
    inputs_upper_bound: float | None
    large_upper_bound: float | None
    tv_lower_bound: float
    covered: list[str]
    not_covered: list[str]
    bounds: list[dict[str, Any]]
    inputs: list[dict[str, Any]]
    census: list[dict[str, Any]]
    refusals: dict[str, int]
    long_use: dict[str, Any] | None
    tests: list[dict[str, Any]]
    habits: list[dict[str, Any]]
    failure: dict[str, Any] | None
    interrupted: str | None
    bias: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"Certificate({self.verifier}: {self.headline})"

    @property
    def page(self) -> str:
        """The certificate for people, in Markdown."""
        return page_of(self)

    def json(self) -> str:
        """The certificate for machines."""
        return json.dumps(asdict(self), indent=1)


def certificate_of(examination: Examination, verifier: str, suite: str, command: str) -> Certificate:
    """What follows from the evidence that an examination has left so far; ``command`` repeats the run."""
    examined = examination.verifier
    return certify(
        examination.evidence,
        examination.settings,
        verifier=verifier,
        rule=rule_name(examined),
        declared_lossless=getattr(examined, "lossless", None) is True,
        suite=suite,
        seed=examination.seed,
        command=command,
        environment=environment(examination.device),
    )


def certify(evidence: Evidence, settings: Settings, **about: Any) -> Certificate:
    """Draws the conclusion.

    Args:
        about: what was examined, and how: ``verifier``, ``rule``, ``declared_lossless``, ``suite``, ``seed``,
            ``command`` and ``environment`` of the certificate.
    """
    verdict = verdict_of(evidence)
    return Certificate(
        **about,
        verdict=verdict.kind,
        headline=say("headline", verdict, evidence)[0],
        words=say("sentences", verdict, evidence, settings),
        inputs_seed=evidence.inputs_seed,
        settings=asdict(settings),
        draws=sum(tally.draws for tally in evidence.tallies.values()),
        seconds=evidence.seconds,
        tv_upper_bound=verdict.tv,
        inputs_upper_bound=verdict.inputs_tv,
        large_upper_bound=verdict.large_tv,
        tv_lower_bound=max((bound.least for bound in evidence.bounds), default=0.0),
        covered=say("covered", evidence),
        not_covered=say("not_covered", evidence),
        bounds=[asdict(bound) for bound in evidence.bounds],
        inputs=[asdict(row) for row in evidence.inputs],
        census=[asdict(row) for row in evidence.census],
        refusals=dict(evidence.refusals),
        long_use=None if evidence.long_use is None else asdict(evidence.long_use),
        tests=[asdict(row) for row in evidence.rows],
        habits=[asdict(habit) for habit in evidence.habits],
        failure=None if evidence.failure is None else asdict(evidence.failure),
        interrupted=evidence.interrupted,
        bias=[asdict(row) for row in bias_rows(evidence)] if verdict.kind == NOT_LOSSLESS else [],
    )
