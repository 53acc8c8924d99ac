"""The certificate: what was tested, what could have been seen, and how far from the target it can still be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specbench.exactness.evidence import ACCEPTANCE, JOINT, PIT, Evidence, Settings
from specbench.exactness.exact import EXACT, ExactRow
from specbench.exactness.power import CONFIDENCE

LOSSLESS, NOT_LOSSLESS, NOT_REJECTED = "lossless", "not lossless", "not rejected"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """All that one run can say about one verifier.

    Attributes:
        verdict: LOSSLESS (nothing is rejected or refused, and on every fixture its steps are enumerated or it emits the
            tokens of its rule's reference), NOT_LOSSLESS (a test or enumeration rejects it), or NOT_REJECTED.
        words: the verdict in sentences.
        tv_upper_bound: the largest of the bounds on the small fixtures; None where none was drawn on.
        detectable_tv: the largest of the biases a step that the draws show with the power asked for.
        environment: commit, hardware, versions.
        bias: total variation a step and accepted tokens a step by fixture, for what is not lossless.
    """

    verifier: str
    rule: str
    declared_lossless: bool
    verdict: str
    words: str
    command: str
    seed: int
    settings: dict[str, Any]
    environment: dict[str, Any]
    draws: int
    seconds: float
    tv_upper_bound: float | None
    detectable_tv: float | None
    exact: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    unsupported: dict[str, str]
    bias: list[dict[str, Any]]

    def json(self) -> str:
        """The certificate for machines."""
        return json.dumps(asdict(self), indent=1)


def certify(
    *,
    verifier: str,
    rule: str,
    declared_lossless: bool,
    evidence: Evidence,
    exact: list[ExactRow],
    settings: Settings,
    seed: int,
    command: str,
    environment: Mapping[str, Any],
    bias: list[dict[str, Any]],
) -> Certificate:
    """Draws the conclusion from the two tiers."""
    joint = [row for row in evidence.rows if row.test == JOINT]
    bound = max((row.upper_bound for row in joint if row.upper_bound is not None), default=None)
    detectable = max((row.detectable for row in joint if row.detectable is not None), default=None)
    errors = [row.error for row in exact if row.error is not None]
    verdict, words = _verdict(evidence, exact, errors, settings, bound, detectable)
    return Certificate(
        verifier=verifier,
        rule=rule,
        declared_lossless=declared_lossless,
        verdict=verdict,
        words=words,
        command=command,
        seed=seed,
        settings=asdict(settings),
        environment=dict(environment),
        draws=sum(row.draws for row in joint),
        seconds=evidence.seconds,
        tv_upper_bound=bound,
        detectable_tv=detectable,
        exact=[{**asdict(row), "error": row.error} for row in exact],
        tests=[asdict(row) for row in evidence.rows],
        unsupported=evidence.unsupported,
        bias=bias,
    )


def _verdict(
    evidence: Evidence,
    exact: list[ExactRow],
    errors: list[float],
    settings: Settings,
    bound: float | None,
    detectable: float | None,
) -> tuple[str, str]:
    fault = _fault(evidence, exact, errors, settings)
    if fault:
        return NOT_LOSSLESS, fault
    if bound is None or detectable is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in evidence.unsupported.items())
        return NOT_REJECTED, f"No small fixture could be drawn on, so that nothing is known of it. {reasons}".strip()
    words = _what_remains(evidence, settings, bound, detectable)
    structural, agreed = (
        sum(getattr(row, name) or 0 for row in exact) for name in ("structural", "agreement_requests")
    )
    if structural:
        lead = f"It emits other tokens than its rule's reference on the same streams, in {structural:,} of {agreed:,} "
        lead += "requests, so it is of another rule or draws otherwise: give it a rule of its own."
        return NOT_REJECTED, f"No sign of a bias. {lead} {words}"
    enumerated = [row.fixture for row in exact if row.lossless]
    known = [row.fixture for row in exact if row.lossless or row.agreement_requests]
    if len(known) < len(exact) or evidence.unsupported or not exact:
        lead = f"Steps were enumerated on {len(enumerated)} of {len(exact)} fixtures"
        lead += f" ({', '.join(enumerated)})." if enumerated else "."
        return NOT_REJECTED, f"No sign of a bias. {lead} {words}"
    if agreed:
        rounding = sum(row.rounding or 0 for row in exact)
        lead = f"It agrees with its rule's reference in {agreed:,} requests but for {rounding} of rounding."
        return LOSSLESS, f"Lossless as far as could be seen. {lead} {words}"
    margin = max((row.margin or 0.0 for row in exact if row.searched_tv is None), default=0.0)
    placed = f", its thresholds placed to within {margin:.0e}" if margin > EXACT else ""
    lead = f"Lossless: a step's joint, enumerated on {len(exact)} fixtures, is within {max(errors):.1g} of the target's"
    return LOSSLESS, f"{lead}{placed}. {words}"


def _fault(evidence: Evidence, exact: list[ExactRow], errors: list[float], settings: Settings) -> str:
    """Why it is not lossless; empty where nothing says so."""
    caught = evidence.first_caught
    if caught is not None:
        words = f"Not lossless: the test {caught.test!r} on the fixture {caught.fixture!r} rejects it after"
        words += f" {caught.rejected_at:,} draws (p = {caught.p_value:.2g}, false alarm {settings.false_alarm:g})."
        if any(row.lossless is False for row in exact):
            words += f" Largest bias a step by enumeration: TV {max(errors):.4g}."
        return words
    if any(row.lossless is False for row in exact):
        return f"Not lossless by enumeration: a step's joint is TV {max(errors):.4g} from the target's."
    return ""


def _what_remains(evidence: Evidence, settings: Settings, bound: float, detectable: float) -> str:
    """What would have been seen, and what can still be there."""
    words = f"Nothing was rejected. A bias of {detectable:.2g} a step (total variation) would have been seen on any"
    words += f" small fixture with probability {settings.power:g}; what remains on them is at most {bound:.2g} at"
    words += f" {CONFIDENCE:.0%} confidence on all together."
    for row in evidence.rows:
        if row.test == PIT and row.upper_bound is not None:
            words += f" On {row.fixture} the distance along log p/q is at most {row.upper_bound:.2g} after"
            words += f" {row.draws:,} draws."
    other = [row.fixture for row in evidence.rows if row.test == ACCEPTANCE and row.rejected_at is not None]
    if other:
        words += f" But it does not accept as its rule does (on {', '.join(other)})."
    if evidence.unsupported:
        words += f" Refused and so not tested: {', '.join(evidence.unsupported)}."
    return words


def markdown(certificate: Certificate) -> str:
    """The certificate for people."""
    c = certificate
    lines = [
        f"# Exactness certificate: {c.verifier}",
        f"**{c.verdict}** (declared {'lossless' if c.declared_lossless else 'not lossless'}; rule {c.rule})",
        c.words,
        f"- replay: `{c.command}`",
        "- " + ", ".join(f"{key} {value}" for key, value in c.environment.items()),
        f"- {c.draws:,} draws on small fixtures, {c.seconds:.0f} s, seed {c.seed}",
        "## Statistical tier",
        _table(
            c.tests,
            [
                "fixture",
                "test",
                "draws",
                "statistic",
                "dof",
                "p_value",
                "rejected_at",
                "distance",
                "detectable",
                "upper_bound",
            ],
        ),
        f"detectable: smallest distance shown with probability {c.settings['power']:g} at the run's false alarm of "
        f"{c.settings['false_alarm']:g}; upper_bound: {CONFIDENCE:.0%} upper confidence bound; tv: total variation of "
        "a whole step's joint distribution, averaged over the fixture's requests where they differ (the bound holds "
        "on all small fixtures together), ks: Kolmogorov's distance along log p/q, no bound on total variation.",
        "## Exact tier",
        _table(c.exact, list(c.exact[0]) if c.exact else []),
        "Total variation of a step's joint from the target's: rule_error by the closed form, injected_error of the "
        "code on the grid of its rule's thresholds (margin: how near to them it still decides right), searched_tv of "
        "the code with its thresholds found by search, which may be off by searched_missed; error the one that counts.",
    ]
    if c.bias:
        lines += ["## Bias and what it bought", _table(c.bias, list(c.bias[0]))]
    for name, reason in c.unsupported.items():
        lines.append(f"- {name}: {reason}")
    return "\n\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    def text(value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, float):
            return f"{value:.3g}"
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(text(row[name]) for name in columns) + " |" for row in rows)])
