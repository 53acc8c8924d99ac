"""What protocols that record and replay need of a run, and can check before models are loaded."""

from __future__ import annotations

from specbench.errors import ConfigError
from specbench.protocols.base import RunContext
from specbench.rules import known
from specbench.rules.cards import CARDS, Card


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


def check_survival(context: RunContext) -> Card:
    """The card of the verifier's rule, whose survival in texts is known.

    Raises:
        ConfigError: a verifier of a rule that cannot be replayed.
    """
    rule = known.of(context.verifier)
    if rule.token_cost is None:
        remedy = f"Use a verifier of rule {' or '.join(CARDS)}, or give its Rule a token_cost."
        raise ConfigError("verifier", context.verifier_name, f"its rule, {rule.name}, has no replay", remedy)
    return rule
