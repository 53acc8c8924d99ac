"""What protocols that record and replay need of a run, and can check before models are loaded."""

from __future__ import annotations

from collections.abc import Collection

from specbench.errors import ConfigError
from specbench.protocols.base import RunContext


def check_draft_model(context: RunContext) -> None:
    """Raises ConfigError for a drafter that says that its drafts have no probabilities."""
    drafter = context.drafter
    if drafter is not None and not drafter.has_probabilities:
        raise ConfigError(
            "drafter", type(drafter).__name__, "has no probabilities that could be recorded", "Use drafter=model."
        )


def check_rule(context: RunContext, rules: Collection[str]) -> None:
    """Raises ConfigError for a verifier of another rule than those that are replayed."""
    rule = context.verifier.rule
    if rule not in rules:
        remedy = f"Use a verifier of rule {' or '.join(rules)}."
        raise ConfigError("verifier", context.verifier_name, f"its rule, {rule}, has no replay", remedy)
