"""The protocol ``flawed_zoo``: which test catches a flawed verifier, after how many draws, and which tests do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specbench.errors import ConfigError
from specbench.exactness import tables
from specbench.exactness.bias import bias_rows
from specbench.exactness.elsewhere import elsewhere
from specbench.exactness.evidence import Evidence, Row, Settings
from specbench.exactness.exact import ExactRow, exact_tier
from specbench.exactness.power import needed_noncentrality
from specbench.exactness.suite import LOOKS, examine
from specbench.progress import say
from specbench.protocols.base import Outcome, RunContext, Table

SEEN = 1e-4  # p-value from which the draws that a test needs are estimated


class FlawedZooProtocol:
    """See the module.

    Args:
        suite: fields of exactness.evidence.Settings; it stops at the look that catches the verifier.
        agreement_requests: as in the protocol exactness.
    """

    needs_models = False

    def __init__(self, suite: Mapping[str, Any], agreement_requests: int):
        self.settings = Settings(**suite)
        if agreement_requests < 0:
            raise ConfigError("protocol.agreement_requests", agreement_requests, "below 0", "Use 0 to skip it.")
        self.agreement_requests = agreement_requests

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        verifier, device = context.verifier, context.device
        evidence = examine(
            verifier, self.settings, context.seed, device, lambda text: say(f"{context.verifier_name}: {text}")
        )
        exact = exact_tier(verifier, self.agreement_requests, context.seed, device)
        others = elsewhere(verifier, context.seed, device)
        return Outcome(
            _headline(evidence, exact),
            {},
            {
                tables.SENSITIVITY: Table(sensitivity(evidence, exact, self.settings), tables.SENSITIVITY_SCHEMA),
                tables.ELSEWHERE: Table(
                    [{"test": name, "caught": caught} for name, caught in others.items()], tables.ELSEWHERE_SCHEMA
                ),
                tables.EXACT: Table(exact, tables.EXACT_SCHEMA),
                tables.BIAS: Table(bias_rows(evidence, exact), tables.BIAS_SCHEMA),
            },
        )


def _headline(evidence: Evidence, exact: list[ExactRow]) -> str:
    caught = [row for row in evidence.rows if row.rejected_at is not None]
    if not caught:
        return "caught by enumeration alone" if any(row.lossless is False for row in exact) else "not caught"
    first = evidence.first_caught or min(caught, key=lambda row: row.rejected_at or 0)
    return f"caught by {first.test} on {first.fixture} after {first.rejected_at:,} draws"


def sensitivity(evidence: Evidence, exact: list[ExactRow], settings: Settings) -> list[dict[str, Any]]:
    """The tests, with the draws after which each would catch the verifier with the power asked for.

    Enumeration is the last of them, needs no draws, and rejects at a total variation above what it may miss.
    """
    known = [row for row in exact if row.lossless is not None]
    wrong = max((row.error or 0.0 for row in known if not row.lossless), default=None)
    rows = [
        {
            "fixture": "all",
            "test": "enumeration",
            "draws": 0,
            "p_value": 1.0 if wrong is None else 0.0,
            "rejected_at": None if wrong is None else 0,
            "needed": None if wrong is None else 0.0,
            "gates": True,
        }
    ] * bool(known)
    for row in evidence.rows:
        kept = {name: getattr(row, name) for name in ("fixture", "test", "draws", "p_value", "rejected_at", "gates")}
        rows.append({**kept, "needed": _needed(row, settings, len(evidence.rows))})
    return rows


def _needed(row: Row, settings: Settings, tests: int) -> float | None:
    """From the excess of the statistic over its degrees of freedom, which grows with the draws in proportion."""
    if row.dof == 0:
        return float(row.draws) if row.rejected_at is not None else None
    if row.p_value > SEEN or row.statistic <= row.dof:
        return None
    wanted = needed_noncentrality(row.dof, settings.power, settings.false_alarm * LOOKS[-1][1] / tests)
    return row.draws * wanted / (row.statistic - row.dof)
