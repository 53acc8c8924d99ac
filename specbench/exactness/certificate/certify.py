"""All that one run can say about one verifier: as a value, as JSON, and as a page of Markdown."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from specbench.core.machine.provenance import environment
from specbench.exactness.certificate.caveats import covered, not_covered
from specbench.exactness.certificate.words import headline, sentences
from specbench.exactness.evidence import Evidence
from specbench.exactness.failures.call_failure import DRAWN
from specbench.exactness.inputs import published
from specbench.exactness.results import COMPARES
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.suite import Examination
from specbench.exactness.tables import bias_rows
from specbench.exactness.verdict import NOT_LOSSLESS, ROUNDING, verdict_of
from specbench.rules.rule import rule_name

_TERMS = f"""\
The bias of a step is the total variation between the joint distribution of its tokens and the target's. A small pair is
a target and a draft over two to four tokens, of which every step is enumerated. D is the published distribution of
calls of `verify` whose tables stand below. Each bound holds with {CONFIDENCE:.0%} confidence."""
_BOUNDS = f"""\
What is known of each small fixture, all together at {CONFIDENCE:.0%} confidence. method: located (the code's own
thresholds were found, and every request was compared with what they foresee), rule (every request was compared with the
formulas of the rule that it names), counted (only counts speak). rule_error: total variation of a step by the rule's
formulas. located: that of the code, if it does between its thresholds what it does in the middle; proved: whether that
was shown by running its operations over whole intervals. draws: requests with seeds of their own; differing: those that
came out otherwise, rounding: how many of them rounding explains; explained: those that an earlier model had not
foreseen. hidden: how much probability requests that come out otherwise can still have. tv: located + hidden, or
what counts say if that is less, an upper bound on the bias a step. hidden and tv take requests to come out otherwise
one by one, whatever their call; the sentence on calls above does not. structural: of those that differ, requests whose
tokens are not those of the rule that it names, beyond rounding. least: a lower bound, with the run's false alarm.
Where requests differ in their parameters, these are averages over them. A bias of up to {ROUNDING:g} counts as
rounding."""
_INPUTS = f"""\
rows: of the target, drawn anew for every request. differing_calls: calls with a request whose tokens are
not the rule's; differing: such requests; rounding: of them, how many rounding explains; structural: the others. code:
upper bound on the probability that a request's tokens are not the rule's, by rounding or otherwise (a call of the
stratum, then one of its requests); rule: on the total variation of the rule itself, 0 of one that is registered as
proved; tv: their sum. Each bound holds at {CONFIDENCE:.0%} by itself. The stratum "as configured" has the conditions of
the run and is no part of D."""
_CENSUS = "Calls with at least one such request, and requests, of those drawn from D."
_D = "The input distribution D: what is drawn for each call or request, and with which probability."
_TESTS = """\
statistic, dof: G and its degrees of freedom, or the number of failures; p_value: of a failure 0, of bets 1 / the
largest wealth. untested: tokens whose cells are too rare to be tested one by one. detectable: the bias a step (total
variation, averaged over the fixture's requests) that would have been seen with the power asked for; upper_bound: what
counts alone leave."""


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
        bounds, inputs, census, tests, habits, long_use, row: as in results.py.
        refusals, failure, interrupted: as in evidence.py.
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
    row: dict[str, Any] | None
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
        return _page(self)

    def json(self) -> str:
        """The certificate for machines."""
        return json.dumps(asdict(self), indent=1)


def certificate_of(examination: Examination, verifier: str, suite: str, command: str) -> Certificate:
    """What follows from the evidence that an examination has left so far.

    Args:
        verifier, suite: the names of the verifier and of the settings.
        command: what repeats the run.
    """
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
        headline=headline(verdict, evidence),
        words=sentences(verdict, evidence, settings),
        inputs_seed=evidence.inputs_seed,
        settings=asdict(settings),
        draws=sum(tally.draws for tally in evidence.tallies.values()),
        seconds=evidence.seconds,
        tv_upper_bound=verdict.tv,
        inputs_upper_bound=verdict.inputs_tv,
        large_upper_bound=verdict.large_tv,
        tv_lower_bound=max((bound.least for bound in evidence.bounds), default=0.0),
        covered=covered(evidence),
        not_covered=not_covered(evidence),
        bounds=[asdict(bound) for bound in evidence.bounds],
        inputs=[asdict(row) for row in evidence.inputs],
        census=[asdict(row) for row in evidence.census],
        refusals=dict(evidence.refusals),
        long_use=None if evidence.long_use is None else asdict(evidence.long_use),
        row=None if evidence.row is None else asdict(evidence.row),
        tests=[asdict(row) for row in evidence.rows],
        habits=[asdict(habit) for habit in evidence.habits],
        failure=None if evidence.failure is None else asdict(evidence.failure),
        interrupted=evidence.interrupted,
        bias=[asdict(row) for row in bias_rows(evidence)] if verdict.kind == NOT_LOSSLESS else [],
    )


def _page(c: Certificate) -> str:
    sections = [
        f"# Exactness certificate: {c.verifier}",
        f"**{c.headline}** (declared {'lossless' if c.declared_lossless else 'not lossless'}; rule {c.rule})",
        _TERMS,
        "\n".join(f"- {line}" for line in c.words),
    ]
    if c.failure is not None:
        sections += ["## The simplest failing example", _failure(c.failure)]
    sections += [
        "## What was covered",
        "\n".join(f"- {line}" for line in c.covered),
        "What was not:",
        "\n".join(f"- {line}" for line in c.not_covered),
    ]
    if c.inputs:
        sections += [
            "## Calls drawn from D",
            _table(c.inputs, leave_out="reason"),
            _INPUTS,
        ]
    if c.bounds:
        sections += ["## Small fixtures", _table(c.bounds), _BOUNDS]
    if c.tests:
        named = dict.fromkeys(row["test"] for row in c.tests)
        explained = [f"- **{name}** compares {COMPARES[name]}." for name in named]
        sections += ["## Tests", "\n".join(explained), _table(c.tests, leave_out="gates"), _TESTS]
    if c.habits:
        sections += ["## What its tokens depend on", _table(c.habits)]
    if c.bias:
        sections += ["## Bias and what it bought", _table(c.bias)]
    if c.census:
        drawn = [dict(zip(("choice", "of each", "options", "meaning"), row, strict=True)) for row in published()]
        sections += [
            "## What was drawn",
            _CENSUS,
            _table(c.census),
            _D,
            _table(drawn),
        ]
    sections += ["## How to repeat it", textwrap.indent(c.command, "    "), _where(c)]
    return "\n\n".join(sections) + "\n"


def _where(c: Certificate) -> str:
    settings = ", ".join(
        f"{key} {value:,}" if type(value) is int else f"{key} {value}" for key, value in c.settings.items()
    )
    return "\n".join(
        [
            f"- {c.draws:,} requests on small pairs, seed {c.seed}; calls of D, inputs_seed {c.inputs_seed}; "
            f"{c.seconds:.0f} s in all",
            f"- suite {c.suite}: {settings}",
            "- " + ", ".join(f"{key} {value}" for key, value in c.environment.items()),
        ]
    )


def _failure(failure: dict[str, Any]) -> str:
    where = failure["fixture"]
    place = where if where.startswith(DRAWN) else f"the fixture {where!r}"
    lines = [f"On {place} ({failure['reason']}):", ""]
    lines += [f"    {line}" for line in failure["lines"]]
    if failure["cause"]:
        lines += ["", f"Likely cause: {failure['cause']}"]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]], leave_out: str = "") -> str:
    columns = [name for name in rows[0] if name != leave_out]

    def text(value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.3g}"
        return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")

    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(text(row[name]) for name in columns) + " |" for row in rows)])
