"""The rules of this tree by name, and the one door from a verifier to its rule."""

from __future__ import annotations

from specbench.core.errors import ConfigError
from specbench.rules.block import BLOCK
from specbench.rules.rule import Rule
from specbench.rules.token import TOKEN
from specbench.verifiers import Verifier

KNOWN = {rule.name: rule for rule in (TOKEN, BLOCK)}


def of(verifier: Verifier) -> Rule:
    """The rule that a verifier follows; see ``rule_of``."""
    rule = verifier.rule
    return rule_of(rule if isinstance(rule, Rule) else str(rule))


def name_of(verifier: object) -> str:
    """The name of the rule of whatever somebody means to be a verifier; "-" if it has none."""
    rule = getattr(verifier, "rule", "-")
    return rule.name if isinstance(rule, Rule) else str(rule)


def rule_of(rule: Rule | str) -> Rule:
    """A rule by its name, or as it is.

    A name that is not known here makes a rule of which nothing else is known: randomness of its own, such as that of
    other projects' verifiers, has no formulas.

    Raises:
        ConfigError: another Rule by the name of one of this tree, whose rows could not be told apart.
    """
    if isinstance(rule, str):
        return KNOWN.get(rule) or Rule(name=rule, title=f"{rule} rule")
    if KNOWN.get(rule.name, rule) is not rule:
        raise ConfigError("verifier.rule", rule.name, "another rule has this name", "Give your rule a name of its own.")
    return rule
