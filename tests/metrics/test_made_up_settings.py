"""A setting that is made up in one place is found in all: rows, tables, the report, and the check of a resumed sweep.

One sweep of an engine of a user's own with a key that no other has, by a schema with a key that conf lacks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.metrics.results import read_results
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.runs.identity import identity
from specbench.runs.plan import read_plan
from tests.helpers.command_lines import clean_environment
from tests.helpers.made_up_rows import table_of

pytestmark = pytest.mark.thorough  # test_run_settings.py has it for rows that are made up

ENGINE = """\
from specbench.decoding import EagerEngine


class Deep(EagerEngine):
    def __init__(self, depth, width):
        super().__init__()
        self.depth, self.width = depth, width
"""
MAIN = """\
import dataclasses

from specbench.runs import config

config.Config = dataclasses.make_dataclass("Config", [("made_up", str, "a")], bases=(config.Config,))

from specbench.__main__ import main  # which reads the schema

main()
"""
SWEEP = (
    *("engine=deep", "engine.depth=1,2", "made_up=a,b", "gamma=1", "workload.limit=2", "max_new_tokens=4", "threads=1"),
    *("protocol.rounds=1", "protocol.max_rounds=1", "protocol.check.draws=0", "tracking.mode=disabled"),
)
SETTINGS = ["engine.depth", "made_up"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(folder)
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
    command = [sys.executable, "main.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder: an engine, its yaml, and the schema with one more key."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "conf" / "engine").mkdir(parents=True)
    (folder / "deep.py").write_text(ENGINE)
    (folder / "main.py").write_text(MAIN)
    (folder / "conf" / "engine" / "deep.yaml").write_text("_target_: deep.Deep\ndepth: 1\nwidth: 1\n")
    return folder


@pytest.fixture(scope="module")
def sweep(folder) -> Path:
    """The sweep, run once; its table on the console shows both."""
    ended = run(folder, "--config-dir", "conf", *SWEEP)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "┃ engine.depth ┃ made_up ┃" in ended.stderr
    return (folder / "outputs" / "adhoc" / "latest").resolve()


def test_rows_and_tables_have_it(sweep):
    rows = with_settings(read_results(sweep))
    configs = [json.loads(text) for text in rows["config"]]
    settings = [(config["engine"]["depth"], config["made_up"]) for config in configs]
    assert settings == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert distinguishing_columns(rows) == SETTINGS
    assert rows[SETTINGS].to_numpy().tolist() == [["1", "a"], ["1", "b"], ["2", "a"], ["2", "b"]]
    lines = table_of(sweep / "report" / "report.md")
    assert [line["engine.depth"] + line["made_up"] for line in lines] == ["1a", "1b", "2a", "2b"]


def test_a_changed_value_is_another_job(sweep):
    """The id of a job is the id of the settings in its row."""
    plan = read_plan(sweep)
    assert plan is not None
    for text, job in zip(read_results(sweep)["config"], plan.jobs, strict=True):
        settings = json.loads(text)
        choices = settings.pop("choices")
        assert identity(settings, choices)[0] == job.id
        assert identity({**settings, "made_up": "c"}, choices)[0] != job.id
        assert identity({**settings, "engine": {**settings["engine"], "depth": 3}}, choices)[0] != job.id


def test_a_sweep_is_not_resumed_with_another_value(folder, sweep):
    path = folder / "conf" / "engine" / "deep.yaml"
    path.write_text(path.read_text().replace("width: 1", "width: 2"))
    again = run(folder, "--config-dir", "conf", f"resume={sweep}")
    assert again.returncode == 2
    assert "engine.width changed from 1 to 2 since job 0" in again.stdout + again.stderr
