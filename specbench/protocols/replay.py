"""The protocol ``replay``: every gamma, rule and policy from a trace. It loads no model.

What was replayed is kept beside the tables, in trace.json: the identity that the trace has, its file and its size. The
row's dtype is the trace's.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd

from specbench.core.checks import check_chance, check_path
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import say
from specbench.protocols.protocol import Conditions, Outcome, ParquetTable, RunContext
from specbench.protocols.settings import check_drafting, check_gammas
from specbench.replay.imports import read_any
from specbench.replay.planning import PLAN, PlanRow, plan, rules_compared
from specbench.replay.plausible import warning
from specbench.replay.policies import frontier
from specbench.replay.renewal import replay
from specbench.replay.summary import POLICIES, REPLAY, PolicyRow, ReplayRow, policy_rows, replay_rows
from specbench.replay.survival import ARGMAX
from specbench.replay.trace import Trace
from specbench.replay.values import SAMPLER, sampler_of
from specbench.reports.plots import replay as plots
from specbench.rules import RuleInfo, replayable
from specbench.rules.rule import rule_of
from specbench.rules.verifier import Verifier

DOCUMENT = "trace.json"


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
    own_conditions: ClassVar[Conditions] = {
        "pair": None,  # check_pair
        "gamma": "Use protocol.gammas.",
        "batch_size": "Nothing is decoded; leave it out.",
        "verifier": None,  # rules_of
        "seed": "Nothing is drawn; leave it out.",
        "dtype": "It is the trace's; leave it out.",
    }

    def __init__(
        self,
        trace: object,
        gammas: Sequence[int],
        policies: Sequence[int],
        planned: Sequence[int],
        alpha: float,
        power: float,
    ):
        self.path = check_path("protocol.trace", trace)
        self.gammas = check_gammas("protocol.gammas", gammas, least=1)
        self.policies = check_drafting("protocol.policies", check_gammas("protocol.policies", policies))
        self.planned = check_drafting("protocol.planned", check_gammas("protocol.planned", planned))
        self.alpha, self.power = (
            check_chance(f"protocol.{name}", value, "Use 0.05 for alpha, 0.9 for power.")
            for name, value in (("alpha", alpha), ("power", power))
        )

    def run(self, context: RunContext) -> Outcome:
        """Raises ConfigError for a trace that cannot be read, or of another sampler or pair than was asked for, and
        for a verifier whose rule is replayed without it, or cannot be replayed."""
        rules = rules_of(context.verifier if context.names_verifier else None, context.verifier_name)
        trace = read_any(self.path)
        check_pair(trace, context.asked_pair, self.path)
        check_sampler(trace, context.sampling.numbers, self.path, context.processors, context.sampling.shaping_text)
        if doubt := warning(trace):
            say(f"{self.path}: {doubt}", style="yellow")
        shown = [*rules, *([ARGMAX] if "draft_argmax" in trace.columns else [])]
        rows = [row for rule in shown for row in replay_rows(trace, replay(trace, rule, self.gammas))]
        tried = [
            row
            for rule in rules
            if self.policies
            for row in policy_rows(trace, rule.name, frontier(trace, rule, self.policies))
        ]
        planned = plan(trace, rules, self.planned, self.alpha, self.power) if self.planned else []
        figures = {"acceptance_length": plots.replayed_lengths(pd.DataFrame(rows))}
        if tried:
            figures["policies"] = plots.policy_frontier(pd.DataFrame(tried))
        best = max(rows, key=lambda row: row["acceptance_length"])
        headline = (
            f"{len(trace)} tokens of {len(trace.prompts)} texts replayed at {len(rows)} settings "
            f"(target {trace.identity.target}, draft {trace.identity.draft}); up to "
            f"{best['acceptance_length']:.2f} tokens a step at gamma {best['gamma']} by rule {best['rule']}"
        )
        return Outcome(
            "; ".join(filter(None, [headline, rules_compared(planned)])),
            measured={"dtype": trace.identity.dtype},
            tables={
                REPLAY: ParquetTable(rows, ReplayRow),
                POLICIES: ParquetTable(tried, PolicyRow),
                PLAN: ParquetTable(planned, PlanRow),
            },
            figures=figures,
            documents={DOCUMENT: described(trace, self.path, doubt)},
        )


def rules_of(verifier: Verifier | None, name: str) -> list[RuleInfo]:
    """Returns the rules to replay: the registered ones, and that of a verifier of a user's own.

    Args:
        verifier: the one that the command line names; None if it names none.
        name: the verifier's, in messages.

    Raises:
        ConfigError: a verifier of specbench, or one whose rule has no token_cost.
    """
    rules = replayable()
    if verifier is None:
        return rules
    rule = rule_of(verifier)
    if rule.token_cost is None:
        problem = f"protocol=replay cannot replay the {rule.title}, which has no token_cost"
        raise ConfigError("verifier", name, problem, "Give its Rule one, or leave the verifier out.")
    if rule.of_this_tree:
        remedy = "Every rule of specbench is replayed; leave it out, or name a verifier of a rule of your own."
        raise ConfigError("verifier", name, "protocol=replay would ignore it", remedy)
    return [*(info for info in rules if info.name != rule.name), rule]


def check_pair(trace: Trace, pair: tuple[str, str] | None, path: Path) -> None:
    """Raises ConfigError where a pair was asked for and the trace names another; None: no pair was asked for."""
    target, draft = trace.identity.target, trace.identity.draft
    if pair is not None and pair != (target, draft):
        problem = f"a replay loads no models, and the trace {path} is of target {target} and draft {draft}"
        raise ConfigError("pair", " and ".join(pair), problem, "Leave pair out, or give a trace of that pair.")


def check_sampler(
    trace: Trace, wanted: Mapping[str, float | int], path: str | Path, processors: str = "", shaping: str = ""
) -> None:
    """Raises ConfigError where the trace was sampled with another sampler than the one asked for."""
    if trace.identity.shaping != shaping:
        recorded, other = (json.loads(text or "{}") for text in (trace.identity.shaping, shaping))
        name = next(name for name in sorted({*recorded, *other}) if recorded.get(name) != other.get(name))
        raise ConfigError(
            f"sampler.{name}",
            other.get(name, "off"),
            f"the trace {path} was sampled with {name} {recorded.get(name, 'off')}",
            "Give the same to replay it, or record another trace.",
        )
    if trace.identity.processors != processors:
        raise ConfigError(
            "sampler.processors",
            processors or "[]",
            f"the trace {path} was sampled with {trace.identity.processors or 'none'}",
            "Name the same ones to replay it, or record another trace.",
        )
    recorded, other = trace.identity.sampler, sampler_of(wanted)
    if recorded["temperature"] == other["temperature"] == 0:
        return  # greedy, whatever else is said
    for name in SAMPLER:
        if recorded[name] != other[name]:
            raise ConfigError(
                f"sampler.{name}",
                wanted[name],
                f"the trace {path} was sampled with {name} {recorded[name]:g}, and one sampler's acceptance is not "
                "another's",
                f"Add sampler.{name}={recorded[name]:g} to replay it, or record another trace.",
            )


def described(trace: Trace, path: Path, doubt: str | None) -> str:
    """The document: what was replayed, as JSON; ``warning`` is null where the trace raised none."""
    document = {
        "path": str(path.resolve()),
        **dataclasses.asdict(trace.identity),
        "prompts": len(set(trace.prompts)),
        "texts": len(trace.prompts),
        "tokens": len(trace),
        "stopped": int((trace.lengths < trace.limits).sum()),
        "warning": doubt,
    }
    return json.dumps(document, indent=1)
