"""The yamls and schemas that jobs are composed of, each read once a command."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath


class Yamls(ConfigRepository):
    """Hydra's repository with a memory: reading and copying yamls is half of every composition."""

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.results: dict[str, bytes] = {}

    def __deepcopy__(self, _: object) -> Yamls:
        return copy.copy(self)  # Hydra gives each composition a copy, and replaces the copy's list of sources

    def load_config(self, config_path: str) -> Any:
        if config_path not in self.results:
            result = super().load_config(config_path)
            if result is None:  # hydra.searchpath may add its source
                return None
            try:
                self.results[config_path] = pickle.dumps(result)
            except (pickle.PicklingError, AttributeError, TypeError):  # a class that no module names, as of a schema
                return result
        return pickle.loads(self.results[config_path])  # noqa: S301  # of this process
