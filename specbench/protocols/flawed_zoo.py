"""The protocol ``flawed_zoo``: which test catches a flawed verifier, after how many draws, and which tests do not."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from specbench.exactness import tables
from specbench.exactness.bias import bias_rows
from specbench.exactness.certificate.verdict import verdict_of
from specbench.exactness.certificate.words import headline
from specbench.exactness.evidence import Evidence, Row, Settings, settings_of
from specbench.exactness.statistics.power import needed_noncentrality
from specbench.exactness.suite import LOOKS, examine
from specbench.exactness.zoo.elsewhere import elsewhere
from specbench.progress import say
from specbench.protocols.base import Conditions, Outcome, RunContext, Table
from specbench.protocols.settings import OF_FIXTURES
from specbench.rules.agreement import TOLERANCE

SEEN = 1e-4  # p-value from which the draws that a test needs are estimated
LOCATION = "location"  # the row of what was located, beside those of the tests


class FlawedZooProtocol:
    """See the module; the small fixtures show all of them, so no regimes are run.

    Args:
        draws: steps on each small fixture, at most: it stops at the look that catches the verifier.
        serial_draws: pairs of successive steps.
        false_alarm, power: as in exactness.evidence.Settings.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False
    own_conditions: ClassVar[Conditions] = dict.fromkeys(("gamma", "sampler", "batch_size", "dtype"), OF_FIXTURES)

    def __init__(self, draws: int, serial_draws: int, false_alarm: float, power: float):
        given = {"draws": draws, "serial_draws": serial_draws, "false_alarm": false_alarm, "power": power}
        self.settings = settings_of("default", **given, seconds=0, serial_seconds=0, vocabulary=0)

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        verifier, device = context.verifier, context.device
        evidence = examine(
            verifier,
            self.settings,
            context.seed,
            device,
            report=lambda text: say(f"{context.verifier_name}: {text}"),
        )
        others = {} if evidence.fault else elsewhere(verifier, context.seed, device)
        words = headline(verdict_of(evidence), evidence)
        if evidence.failure is not None and evidence.failure.cause:
            words += f" ({evidence.failure.cause})"
        return Outcome(
            words,
            {},
            {
                tables.SENSITIVITY: Table(sensitivity(evidence, self.settings), tables.SENSITIVITY_SCHEMA),
                tables.ELSEWHERE: Table(
                    [{"test": name, "caught": caught} for name, caught in others.items()], tables.ELSEWHERE_SCHEMA
                ),
                tables.BOUNDS: Table(evidence.bounds, tables.BOUNDS_SCHEMA),
                tables.BIAS: Table(bias_rows(evidence), tables.BIAS_SCHEMA),
            },
            failure=evidence.fault,
        )


def sensitivity(evidence: Evidence, settings: Settings) -> list[dict[str, Any]]:
    """The tests, with the draws after which each would catch the verifier with the power asked for.

    What was located comes first, fixture by fixture; it needs as many requests as bring what may hide below it.
    """
    rows = []
    for bound in evidence.bounds:
        if bound.located is None:
            continue
        caught = bound.least > TOLERANCE
        rows.append(
            {
                "fixture": bound.fixture,
                "test": LOCATION,
                "draws": bound.draws,
                "p_value": 0.0 if caught else 1.0,
                "rejected_at": bound.draws if caught else None,
                "needed": -math.log(settings.false_alarm) / bound.located if caught else None,
                "gates": True,
            }
        )
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
