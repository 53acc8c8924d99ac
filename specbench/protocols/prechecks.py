"""What protocols that record and replay need of a run, and can check before models are loaded."""

from __future__ import annotations

from collections.abc import Collection

from specbench.errors import ConfigError
from specbench.protocols.base import RunContext


def check_draft_model(context: RunContext) -> None:
    """Raises ConfigError for a drafter whose class says that it has no model (``engine = None``).

    Whether a drafter that is made later has one is for scoring.draft_engine to say.
    """
    made = context.drafter_class
    if made is not None and getattr(made, "engine", made) is None:
        raise ConfigError(
            "drafter",
            getattr(made, "__name__", made),
            "has no probabilities that could be recorded",
            "Use drafter=model.",
        )


def check_rule(context: RunContext, rules: Collection[str]) -> None:
    """Raises ConfigError for a verifier of another rule than those that are replayed."""
    rule = context.verifier.rule
    if rule not in rules:
        remedy = f"Use a verifier of rule {' or '.join(rules)}."
        raise ConfigError("verifier", context.verifier_name, f"its rule, {rule}, has no replay", remedy)
