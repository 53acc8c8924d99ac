"""Rules of accepting drafted tokens, and the verifiers that follow them.

A rule is mathematics: the probability that each drafted token is accepted, and the distribution of the token after the
accepted ones. A verifier is code that follows a rule. Each rule of this tree is a folder, and `register` is called once
for it, in the folder's ``__init__``. That part, a :class:`RuleInfo`, needs no PyTorch, so that analyses can read it.

``token/``, ``block/``  one rule each: ``__init__`` (what is known of it), ``formulas`` (the rule in a step), verifiers
``fused``               verifiers of both rules in one Triton launch
``matching``, ``synthetic``, ``external/``  verifiers of other rules: controls, given rates, other projects' functions
``info``                RuleInfo and the registry
``verifier``            what a verifier is, and its optional attributes (``Limits``, ``Capabilities``)
``rule``                Rule: a RuleInfo with formulas; the rule of a verifier
``formula``, ``forms``  what formulas return, and messages that name the formula that is wrong
``draft_path``          p and q of drafted tokens, as formulas read them
``recorded``            rules of a user's module in a job's folder, for later reports
``batched``             tensor operations that verifiers share
``law``, ``agreement``  what follows from formulas: probabilities of a step; whether rounding explains a difference
"""

import importlib
from typing import TYPE_CHECKING

from specbench.rules.info import (
    RULES,
    RuleInfo,
    SeriesLook,
    floor_info,
    info_of,
    register,
    replayable,
    rules_by_verifier,
    rules_followed,
)
from specbench.rules.token import TOKEN

# isort: split
from specbench.rules.block import BLOCK  # after the token rule: tables and figures have rules in this order

if TYPE_CHECKING:  # these need PyTorch, and are imported when they are first used
    from specbench.rules.rule import Rule
    from specbench.rules.verifier import Capabilities, Limits, Verifier, capabilities

__all__ = [
    "BLOCK",
    "RULES",
    "TOKEN",
    "Capabilities",
    "Limits",
    "Rule",
    "RuleInfo",
    "SeriesLook",
    "Verifier",
    "capabilities",
    "floor_info",
    "info_of",
    "register",
    "replayable",
    "rules_by_verifier",
    "rules_followed",
]

_WITH_TORCH = {"Rule": "rule", **dict.fromkeys(("Capabilities", "Limits", "Verifier", "capabilities"), "verifier")}


def __getattr__(name: str) -> object:
    """Imports a name that needs PyTorch when it is first used."""
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
