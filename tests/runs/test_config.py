"""What Hydra composed as a job's settings, the file that has them, and the pair that is loaded by them."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.drafters import Drafter
from specbench.runs import building, execute
from specbench.runs.config import Config, PairConfig, as_config, read_settings, write_settings
from specbench.runs.job import JobInfo
from specbench.runs.state import JobState, Status, read_state
from tests.helpers.small_sweeps import planned_sweep
from tests.tree.test_conf import composed

CODE = ["${", "${x}", "$${{x}", "\\${", "\\\\${x}", "a\\", "$", "{}", "1e3", "null", "é\n"]


def test_texts_that_look_like_interpolations_are_kept(tmp_path: Path) -> None:
    """A stop string or a system prompt may be code; on the command line it has a backslash before its ``${``."""
    config = as_config(composed('sampler.stop=["\\${"]', 'pair.system="Write \\${x}"'))
    assert isinstance(config, Config)
    assert (config.sampler.stop, config.pair.system) == (["${"], "Write ${x}")
    config.verifier |= {"texts": CODE, "by_name": {"a": CODE[0]}}
    write_settings(tmp_path, config)
    assert read_settings(tmp_path) == asdict(config)


def test_a_configuration_that_leads_nowhere_where_the_job_runs_fails_the_job(tmp_path: Path) -> None:
    """A variable may be set where a sweep is planned, and not where its jobs run."""
    folder = planned_sweep(tmp_path / "sweep", JobState("a")) / "0"
    execute.run_job(
        composed("tracking.project=${oc.env:NOT_SET_HERE}"),
        JobInfo(0, "", folder, "adhoc", {}, "", (), None, beside=False, in_turn=True),
    )
    state = read_state(folder)
    assert state is not None
    assert state.status is Status.FAILED
    assert "NOT_SET_HERE" in str(state.reason)


def test_a_job_whose_state_is_damaged_is_named_with_what_to_delete(tmp_path: Path, monkeypatch) -> None:
    folder = planned_sweep(tmp_path / "sweep", JobState("a")) / "0"
    (folder / "job.json").write_text("[]")
    job = JobInfo(0, "", folder, "adhoc", {}, "", (), None, beside=False, in_turn=True)
    sentences: list[str] = []
    monkeypatch.setattr(execute, "say", lambda sentence, **_: sentences.append(sentence))
    execute.run_job(composed(), job)
    remedy = f"Delete {folder}, and resume={folder.parent} runs the job again."
    assert sentences == [f"job 0 failed: no job.json in its folder that can be read. {remedy}"]


@pytest.mark.parametrize("written", [None, "", "[", "a: [", "3", "a: ${nothing}"])
def test_settings_that_cannot_be_read_are_none(tmp_path: Path, written: str | None) -> None:
    if written is not None:
        (tmp_path / "config.yaml").write_text(written)
    assert read_settings(tmp_path) == {}


# --- The pair of a job ---


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
