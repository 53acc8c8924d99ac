"""The analysis of an experiment, by the experiment's name."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def analysis_module(exp: str) -> ModuleType | None:
    """The module of specbench.analysis that reports on an experiment, with ``build(run_dir) -> Report``.

    Args:
        exp: the experiment's name, as a sweep's rows have it.

    Returns:
        None where there is none: an experiment of a user's own, or one that has no report.
    """
    name = f"specbench.analysis.{exp}"
    if not exp.isidentifier() or importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    return module if hasattr(module, "build") else None
