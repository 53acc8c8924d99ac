"""Modules under the names that they had in 0.1.0: importing one warns, and gives the module under its new name.

For one release. Remove this file and its import in specbench/__init__.py after it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_CORE = ("types", "rng", "trees", "errors", "arguments", "checks", "draft_lengths", "sampling_params", "rounding")
MOVED = {name: f"core.{name}" for name in _CORE} | {
    "batch": "sampling.batch",
    "between": "reports.between",
    "config": "runs.config",
    "cost": "replay.cost",
    "drafters.strings": "extras.vocabularies.strings",
    "journal": "core.machine.journal",
    "plots": "reports.plots",
    "results": "metrics.results",
    "varying": "reports.varying",
    "winner": "reports.winner",
}


def _new_name(fullname: str) -> str:
    """Returns where a module of ``specbench`` is now; empty for one that has not moved."""
    for old, new in MOVED.items():
        if f"{fullname}.".startswith(f"specbench.{old}."):
            return f"specbench.{new}{fullname.removeprefix(f'specbench.{old}')}"
    return ""


class _OldNames(MetaPathFinder, Loader):
    """Finds the modules in MOVED and those inside of them."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _new_name(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = _new_name(old)
        warnings.warn(f"{old} has moved: import {new}.", DeprecationWarning, stacklevel=2)
        current = importlib.import_module(new)
        if hasattr(current, "__path__"):  # a package: without a path of its own, its modules are looked for here too
            vars(module).update(__path__=[], __getattr__=lambda name: getattr(current, name))
        else:
            sys.modules[old] = current


sys.meta_path.append(_OldNames())  # asked last: nothing has these names any more
