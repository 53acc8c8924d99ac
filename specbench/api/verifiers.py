"""What may stand for a verifier in the Python API: a name of conf/verifier, an object, or a plain function."""

from collections.abc import Callable
from typing import Any

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import RuleInfo
from specbench.rules.verifier import Verifier
from specbench.runs.choices import chosen

VerifyFunction = Callable[[Draft, LogitRows, Streams], Verification]


class FunctionVerifier:
    """A plain function as a verifier.

    Args:
        function: called as ``function(draft, target, streams)``.
        takes_padded: see :class:`specbench.rules.verifier.Capabilities`.
    """

    def __init__(self, function: VerifyFunction, rule: str | RuleInfo, lossless: bool, takes_padded: bool = False):
        self.function, self.rule, self.lossless, self.takes_padded = function, rule, lossless, takes_padded

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Any:
        """What the function returns, right or wrong: the caller checks it."""
        return self.function(draft, target, streams)


def verifier_of(verifier: str | Verifier) -> Verifier:
    """The verifier that a name or an object stands for.

    Raises:
        ArgumentError: an unknown name, or an object without ``verify``.
        ConfigError: a verifier whose package is not installed.
    """
    if isinstance(verifier, str):
        return chosen("verifier", verifier)
    if isinstance(verifier, type):
        raise ArgumentError(f"verifier: a class, {verifier.__name__}; give an object of it, {verifier.__name__}()")
    if not callable(getattr(verifier, "verify", None)):
        raise ArgumentError(
            f"verifier: a {type(verifier).__name__} without a method verify(draft, target, streams). Give a name of "
            'conf/verifier such as "block", or an object with rule, lossless and verify.'
        )
    return verifier


def name_of(verifier: str | Verifier | VerifyFunction) -> str:
    """What pages call it: its name in conf/verifier, the function's, or the class's."""
    return verifier if isinstance(verifier, str) else getattr(verifier, "__name__", type(verifier).__name__)
