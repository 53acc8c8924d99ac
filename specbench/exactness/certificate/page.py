"""The certificate for people: a page of Markdown."""

from __future__ import annotations

from typing import Any

from specbench.exactness.certificate.certify import Certificate
from specbench.exactness.certificate.tests import EXPLAINED
from specbench.exactness.certificate.verdict import ROUNDING
from specbench.exactness.statistics.power import CONFIDENCE

_BOUNDS = f"""\
What is known of each small fixture, all together at {CONFIDENCE:.0%} confidence. method: located (the code's own
thresholds were found, and every request was compared with what they foresee), rule (every request was compared with the
formulas of the rule that it names), counted (only counts speak). rule_error: total variation of a step by the rule's
formulas. located: that of the code, if it does between its thresholds what it does in the middle; proved: whether that
was shown by running its operations over whole intervals. draws: requests with seeds of their own; differing: those that
came out otherwise, rounding: how many of them rounding explains; explained: those that an earlier model had not
foreseen. hidden: how much probability requests that come out otherwise can still have. tv: located + hidden, or
what counts say if that is less, an upper bound on the bias a step; least: a lower bound, with the run's false alarm.
Where requests differ in their parameters, these are averages over them. A bias of up to {ROUNDING:g} counts as
rounding."""
_REGIMES = f"""\
least_logit, largest_logit: divided by the temperature. tv: upper bound on the bias a step from the requests that were
not the rule's, all together at {CONFIDENCE:.0%} confidence. along: upper bound on the bias of a token over classes of
ids; few: on one that lies on at most 100 ids of a row; anywhere: on any (1 is no bound)."""
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
        "\n".join(f"- {each}" for each in c.words),
    ]
    if c.failure is not None:
        sections += ["## The simplest failing example", _failure(c.failure)]
    sections += [
        "## What was covered",
        "\n".join(f"- {each}" for each in c.covered),
        "What was not:",
        "\n".join(f"- {each}" for each in c.not_covered),
    ]
    if c.bounds:
        sections += ["## Small fixtures", _table(c.bounds, list(c.bounds[0])), _BOUNDS]
    if c.regimes:
        columns = [name for name in c.regimes[0] if name != "refused" or any(row["refused"] for row in c.regimes)]
        sections += ["## Regimes", _table(c.regimes, columns), _REGIMES]
    if c.tests:
        named = dict.fromkeys(row["test"] for row in c.tests)
        explained = [f"- **{name}** compares {EXPLAINED[name].compares}. Usual causes: {EXPLAINED[name].usual_cause}."
                     for name in named]  # fmt: skip
        columns = [name for name in c.tests[0] if name != "gates"]
        sections += ["## Tests", "\n".join(explained), _table(c.tests, columns), _TESTS]
    if c.habits:
        sections += ["## What its tokens depend on", _table(c.habits, list(c.habits[0]))]
    if c.bias:
        sections += ["## Bias and what it bought", _table(c.bias, list(c.bias[0]))]
    sections += ["## How to repeat it", f"    {c.command}", _where(c)]
    return "\n\n".join(sections) + "\n"


def _where(c: Certificate) -> str:
    settings = ", ".join(
        f"{key} {value:,}" if type(value) is int else f"{key} {value}" for key, value in c.settings.items()
    )
    return "\n".join(
        [
            f"- {c.draws:,} requests on small fixtures, {c.seconds:.0f} s in all, seed {c.seed}",
            f"- suite {c.suite}: {settings}",
            "- " + ", ".join(f"{key} {value}" for key, value in c.environment.items()),
        ]
    )


def _failure(failure: dict[str, Any]) -> str:
    lines = [f"On the fixture {failure['fixture']!r} ({failure['reason']}):", ""]
    lines += [f"    {line}" for line in failure["lines"]]
    if failure["cause"]:
        lines += ["", f"Likely cause: {failure['cause']}"]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> str:
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
