"""What protocols that record and replay need of a run, and can check before models are loaded."""

from __future__ import annotations

from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.protocols.protocol import RunContext
from specbench.rules import replayable
from specbench.rules.rule import rule_of


def check_draft_model(context: RunContext) -> None:
    """Raises ConfigError for a drafter that says that its drafts have no probabilities."""
    if context.drafter is not None and not context.drafter.has_probabilities:
        raise no_probabilities(context.drafter)


def no_probabilities(drafter: object) -> ConfigError:
    """Of a drafter without a model."""
    problem = "has no probabilities that could be recorded"
    return ConfigError("drafter", config_name("drafter", drafter), problem, "Use drafter=model or drafter=layer_skip.")


def check_chains(context: RunContext) -> None:
    """Raises ConfigError for a drafter of trees, if what is measured is known of chains alone."""
    if context.drafter is not None and context.drafter.drafts_trees:
        name = config_name("drafter", context.drafter)
        raise ConfigError("drafter", name, "drafts trees, and this protocol knows chains alone", "Use drafter=model.")


def check_fixed_lengths(context: RunContext) -> None:
    """Raises ConfigError for a drafter that ends drafts by a policy, if what is measured is known of gamma tokens."""
    if context.drafter is not None and context.drafter.policy.kind != "fixed":
        problem = "this protocol knows drafts of gamma tokens alone"
        remedy = "Use drafter.policy=fixed; protocol=replay tells what policies would accept, from a trace."
        raise ConfigError("drafter.policy", context.drafter.policy.kind, problem, remedy)


def check_no_history(context: RunContext) -> None:
    """Raises ConfigError for processors, penalties and bans if steps are made up, without a text before any token."""
    for name, value in context.sampling.shaping.items():
        remedy = "Leave it out: only decoded and recorded texts have it."
        raise ConfigError(f"sampler.{name}", value, "steps are made up, without texts", remedy)
    check_no_processors(context)


def check_no_processors(context: RunContext) -> None:
    """Raises ConfigError for processors if steps are made up."""
    if context.processors:
        remedy = "Leave them out: only decoded and recorded texts have them."
        raise ConfigError("sampler.processors", context.processors, "steps are made up, without texts", remedy)


def check_survival(context: RunContext) -> None:
    """Raises ConfigError for a verifier whose rule has no replay, or a drafter of trees or of lengths of its own."""
    check_chains(context)
    check_fixed_lengths(context)
    rule = rule_of(context.verifier)
    if rule.token_cost is None:
        remedy = (
            f"Use a verifier of rule {' or '.join(info.name for info in replayable())}, or give its Rule a token_cost."
        )
        raise ConfigError("verifier", context.verifier_name, f"its rule, {rule.name}, has no replay", remedy)
