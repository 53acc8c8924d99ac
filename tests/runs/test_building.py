"""The pair of a job: loaded once for the jobs of a process, and held against each job's drafter."""

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.drafters import Drafter
from specbench.runs import building
from specbench.runs.config import Config, PairConfig


class Refusing(Drafter):
    """Of a user's."""

    def check(self, has_draft=None, target_config=None):
        if target_config is not None:
            raise ConfigError("drafter", "refusing", "not for this target", "Use another.")


def test_a_drafter_may_refuse_the_pair_that_an_earlier_job_has_loaded(pair, monkeypatch):
    monkeypatch.setattr(building, "_pairs", {})
    monkeypatch.setattr(building, "load_pair", lambda *_, **__: pair)
    config = Config(pair=PairConfig(target="embedded:target", draft="embedded:draft"))
    assert building.loaded_pair(config, torch.device("cpu"), Drafter()) is pair
    with pytest.raises(ConfigError, match="not for this target"):
        building.loaded_pair(config, torch.device("cpu"), Refusing())
