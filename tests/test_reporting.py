"""Which module reports on an experiment."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.runs.reporting import analysis_module
from tests.command_lines import ROOT, clean_environment

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/exp").glob("*.yaml"))


@pytest.mark.parametrize("exp", EXPERIMENTS)
def test_every_experiment_but_smoke_has_one(exp):
    module = analysis_module(exp)
    if exp == "smoke":
        assert module is None
    else:
        assert module is not None
        assert Path(str(module.__file__)) == ROOT / f"analysis/{exp}.py"
        assert module.__name__ == f"specbench.analysis.{exp}"
        assert callable(module.build)


@pytest.mark.parametrize("exp", ["adhoc", "command", "folder", "my/sweep", "a.b", "..", "", "os"])
def test_what_is_no_experiment_has_none(exp):
    assert analysis_module(exp) is None


def test_a_users_own_analysis_is_left_alone(tmp_path):
    """The command, in a folder that has a package of that name."""
    (tmp_path / "analysis").mkdir()
    for name in ("__init__", "metrics"):
        (tmp_path / f"analysis/{name}.py").write_text("raise RuntimeError('not this one')")
    command = [sys.executable, "-m", "specbench.analysis.metrics", "gone"]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("RUN_DIR=gone: ")
