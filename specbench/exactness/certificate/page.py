"""The certificate for people: a page of Markdown."""

from __future__ import annotations

import textwrap
from typing import Any

from specbench.exactness.certificate.certify import Certificate
from specbench.exactness.certificate.verdict import ROUNDING
from specbench.exactness.evidence import COMPARES
from specbench.exactness.failures.call_failure import DRAWN
from specbench.exactness.inputs import published
from specbench.exactness.statistics.power import CONFIDENCE

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


def markdown(certificate: Certificate) -> str:
    """The certificate for people."""
    c = certificate
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
