"""Verifiers with one real bug each, by name, to show which tests see it. None is for use.

They are grouped by where the bug is, a file a group. Every class names the thread or file its bug is taken from, and
differs from the sound rule in the bug alone. If none is known the docstring says "a mutant". If a bug is imitated by
other means than in its source, it says how. What no verifier can express (wrong metrics, penalties and masks by
another text, a stop token that is not the end) is not here.
"""

import functools
import inspect
import re
from types import MappingProxyType
from typing import Any

from specbench.core.errors import ConfigError
from specbench.exactness.zoo import accept, residual, rng, state, wrong_q
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps


@functools.cache
def bugs() -> MappingProxyType[str, type[TokenSteps | BlockSteps]]:
    """The classes by the names of their bugs: AcceptsEverything has ``accepts_everything``."""
    kinds: dict[str, type[TokenSteps | BlockSteps]] = {}
    for module in (accept, residual, wrong_q, rng, state):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, TokenSteps | BlockSteps) and kind.__module__ == module.__name__ and name[0] != "_":
                kinds[re.sub("(?<!^)(?=[A-Z])", "_", name).lower()] = kind
    return MappingProxyType(dict(sorted(kinds.items())))


def flawed(bug: str, **settings: Any) -> TokenSteps | BlockSteps:
    """The verifier with a bug, what ``verifier=flawed verifier.bug=NAME`` stands for.

    Args:
        bug: its name; results and pages write ``flawed/NAME``.
        settings: of its class, in the place of the default ones.

    Raises:
        ConfigError: no such bug; the message lists those that there are.
    """
    if bug not in bugs():
        raise ConfigError("verifier.bug", bug, "no such bug", f"Use one of {', '.join(bugs())}.")
    return bugs()[bug](**settings)


def card(bug: str) -> str:
    """What is wrong in a sentence or two: the first paragraph of its class' docstring."""
    first, *_ = (inspect.getdoc(bugs()[bug]) or "").split("\n\n")
    return " ".join(first.split())
