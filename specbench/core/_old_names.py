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
_MACHINE = ("caches", "devices", "disk", "files", "journal", "progress", "provenance", "ranks")
_VERIFIERS = ("batched", "fused", "matching", "synthetic", "external")
MOVED = {
    **{name: f"core.{name}" for name in _CORE},
    **{name: f"core.machine.{name}" for name in _MACHINE},
    "batch": "sampling.batch",
    "between": "reports.between",
    "config": "runs.config",
    "decoding.engines.compiled": "extras.compiled.engine",
    "cost": "replay.cost",
    "drafters.strings": "extras.vocabularies.strings",
    "metrics.standing": "metrics.ranking",
    "models.engine": "models.cached_model",
    "plots": "reports.plots",
    "results": "metrics.results",
    "rules.along": "rules.draft_path",
    "rules.cards": "rules",
    "rules.reference": "rules.rule",
    "theory": "metrics.theory",
    "tracking": "reports.tracking",
    "varying": "metrics.run_settings",
    "verifiers": "rules",
    "verifiers.base": "rules.verifier",
    "verifiers.block": "rules.block.masked",
    "verifiers.external.base": "rules.external.adapter",
    **{f"verifiers.{name}": f"rules.{name}" for name in _VERIFIERS},
    **{f"verifiers.{name}": f"rules.token.{name}" for name in ("naive", "masked", "tree", "tree_naive")},
    "winner": "reports.winner",
    "workloads": "runs.workloads",
}
# Names of moved modules, by the module that has them now.
RENAMED = {
    "core.machine.files": {"foreign": "wrap_library_errors"},
    "metrics.ranking": {"standing": "ranking"},
    "models.cached_model": {"Engine": "CachedModel"},
    "rules": {"CARDS": "RULES", "Card": "RuleInfo", "card_of": "info_of", "floor_card": "floor_info"},
    "rules.draft_path": {"Along": "DraftPath", "AlongBatch": "DraftPathBatch", "AlongTables": "DraftPathTables"},
    "rules.verifier": {"Offers": "Capabilities", "offers": "capabilities"},
}


def moved_to(old: str) -> str | None:
    """The new name of a module; None if neither it nor a package that it was in has moved."""
    parts = old.split(".")
    for count in range(len(parts), 0, -1):
        if new := MOVED.get(".".join(parts[:count])):
            return ".".join([new, *parts[count:]])
    return None


class _OldNames(MetaPathFinder, Loader):
    """Finds the modules in MOVED and those inside of them."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == "specbench" and moved_to(old) else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.removeprefix("specbench.")
        new = moved_to(old)
        warnings.warn(f"specbench.{old} has moved: import specbench.{new}.", DeprecationWarning, stacklevel=2)
        current = importlib.import_module(f"specbench.{new}")
        for name, renamed in RENAMED.get(str(new), {}).items():
            setattr(current, name, getattr(current, renamed))
        if hasattr(current, "__path__"):  # a package: without a path of its own, its modules are looked for here too

            def attribute(name: str) -> object:
                if f"{old}.{name}" in MOVED:
                    return importlib.import_module(f"specbench.{old}.{name}")
                return getattr(current, name)

            vars(module).update(__path__=[], __getattr__=attribute)
        else:
            sys.modules[module.__name__] = current


sys.meta_path.append(_OldNames())  # asked last: nothing has these names any more
