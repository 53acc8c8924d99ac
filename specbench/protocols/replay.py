"""The protocol ``replay``: every gamma, rule and policy from a trace. It loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.errors import ConfigError
from specbench.plots import replay as plots
from specbench.protocols.base import Outcome, RunContext, Table
from specbench.protocols.settings import check_gammas
from specbench.replay.imports import read_any
from specbench.replay.planning import PLAN, PLAN_SCHEMA, plan
from specbench.replay.policies import frontier
from specbench.replay.renewal import replay
from specbench.replay.summary import POLICIES, POLICY_SCHEMA, REPLAY, REPLAY_SCHEMA, policy_rows, replay_rows
from specbench.replay.survival import RULES
from specbench.replay.trace import SAMPLER, check_sampler


class ReplayProtocol:
    """See the module.

    Args:
        trace: a trace.parquet, or JSON lines from a serving engine (replay/imports.py).
        gammas: draft lengths to replay.
        policies: the draft lengths whose frontier adaptive policies are held against; empty: no policies.
        planned: the gammas that are compared two by two; empty: no plan.
        alpha, power: of the comparisons.
    """

    needs_models = False

    def __init__(
        self,
        trace: str,
        gammas: Sequence[int],
        policies: Sequence[int],
        planned: Sequence[int],
        alpha: float,
        power: float,
    ):
        self.path = Path(trace).expanduser()
        self.gammas = check_gammas("protocol.gammas", gammas, least=1)
        self.policies = check_gammas("protocol.policies", policies)
        self.planned = check_gammas("protocol.planned", planned)
        for name, value in (("alpha", alpha), ("power", power)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ConfigError(f"protocol.{name}", value, "not inside (0, 1)", "Use 0.05 for alpha, 0.9 for power.")
        self.alpha, self.power = float(alpha), float(power)

    def run(self, context: RunContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`.

        Raises:
            ConfigError: a trace that cannot be read, or of another sampler than the run's.
        """
        trace = read_any(self.path)
        check_sampler(trace, {name: getattr(context.sampling, name) for name in SAMPLER}, self.path)
        rules = [rule for rule in RULES if rule != "argmax" or "draft_argmax" in trace.columns]
        rows = [row for rule in rules for row in replay_rows(trace, replay(trace, rule, self.gammas))]
        tried = [
            row
            for rule in ("token", "block")
            if self.policies
            for row in policy_rows(trace, rule, frontier(trace, rule, self.policies))
        ]
        planned = plan(trace, self.planned, self.alpha, self.power) if self.planned else []
        figures = {"acceptance_length": plots.replayed_lengths(pd.DataFrame(rows))}
        if tried:
            figures["policies"] = plots.policy_frontier(pd.DataFrame(tried))
        best = max(rows, key=lambda row: row["acceptance_length"])
        return Outcome(
            f"{len(trace)} tokens of {len(trace.prompts)} texts replayed at {len(rows)} settings; up to "
            f"{best['acceptance_length']:.2f} tokens a step at gamma {best['gamma']} by rule {best['rule']}",
            tables={
                REPLAY: Table(rows, REPLAY_SCHEMA),
                POLICIES: Table(tried, POLICY_SCHEMA),
                PLAN: Table(planned, PLAN_SCHEMA),
            },
            figures=figures,
        )
