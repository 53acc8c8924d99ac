"""``structured_outputs``: texts that keep to a JSON schema, a regular expression, a grammar or a choice (xgrammar)."""

from specbench.extras.structured.constraint import Constraint, constrain
from specbench.extras.structured.grammars import grammar_of as check

__all__ = ["Constraint", "check", "constrain"]
