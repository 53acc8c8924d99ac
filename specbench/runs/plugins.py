"""Makes our sweeper and launcher known to Hydra.

Hydra takes plugins from packages below ``hydra_plugins`` only; so these classes are put into a module of such a name,
which has no file, and registered by hand. conf/hydra has their settings.
"""

from __future__ import annotations

import importlib
import sys
import types

from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins

from specbench.runs.ray_launcher import RayLauncher
from specbench.runs.sweeper import PlannedSweeper

MODULE = "hydra_plugins.specbench"
CLASSES = (PlannedSweeper, RayLauncher)


def register() -> None:
    """Makes ``hydra/sweeper=planned`` and ``hydra/launcher=ray`` choices of Hydra's."""
    try:
        parent = importlib.import_module("hydra_plugins")
    except ImportError:  # no plugin is installed
        parent = sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        parent.__path__ = []
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    vars(parent)["specbench"] = module
    for each in CLASSES:
        setattr(module, each.__name__, each)
        each.__module__ = MODULE
        Plugins.instance().register(each)


def always_sweep() -> None:
    """Every command is a sweep: Hydra does not compose a whole configuration to ask it for ``hydra.mode``."""
    Hydra.get_mode = lambda *_, **__: None  # as where a configuration does not say: --multirun decides


def unregister() -> None:
    """Launchers send Hydra's tables to their workers, which could not import what is in none of their files."""
    plugins = Plugins.instance()
    for each in CLASSES:
        plugins.class_name_to_class.pop(f"{MODULE}.{each.__name__}", None)
        for kinds in plugins.plugin_type_to_subclass_list.values():
            if each in kinds:
                kinds.remove(each)
