"""What every room speaks: drafts, rows and verdicts, streams of noise, errors, and the checks of arguments.

The names below are for code outside the tree too. They are imported when they are first used, because ``types`` and
``rng`` need PyTorch and a sweep's command line does not.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.core.errors import ArgumentError, ConfigError, NotInstalledError, SpecbenchError
    from specbench.core.rng import Stream, Streams
    from specbench.core.types import Draft, LogitRows, Verification

__all__ = [
    "ArgumentError",
    "ConfigError",
    "Draft",
    "LogitRows",
    "NotInstalledError",
    "SpecbenchError",
    "Stream",
    "Streams",
    "Verification",
]

_TYPES, _RNG = ("Draft", "LogitRows", "Verification"), ("Stream", "Streams")


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "types" if name in _TYPES else "rng" if name in _RNG else "errors"
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
