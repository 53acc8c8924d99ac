"""Sweeps that are killed, interrupted, run twice at once or out of disk: nothing is lost, and what is said is true.

tests/helpers/sweep_scenarios.py puts them through it, each scenario once, those of one tuple below in one process.
"""

import importlib.util
from pathlib import Path

import pytest

from tests.helpers.command_lines import clean_environment, new_process, once
from tests.helpers.processes import apart

pytest.register_assert_rewrite(*(f"tests.helpers.{name}" for name in ("sweep_scenarios", "sweep_troubles", "forked")))
TOGETHER = (
    ("killed", "one_second", "shared", "widened", "interrupted"),
    ("full_disk", "read_only", "moved", "no_figures", "no_tracking", "killed_tracking", "no_report", "no_links",
     "file_named_latest", "exits"),
    ("joblib", "lost"),
    ("submitit_local", "ray"),
    ("killed_often",),
)  # fmt: skip
LAUNCHERS = TOGETHER[2:4]
NEEDS_RAY = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs Ray: pip install 'specbench[ray]'")
MARKS = {
    **{name: [pytest.mark.thorough] for name in (*TOGETHER[1], *TOGETHER[2])},
    **{name: [pytest.mark.long] for name in (*TOGETHER[3], *TOGETHER[4])},
    "lost": [pytest.mark.thorough, NEEDS_RAY],
    "ray": [pytest.mark.long, NEEDS_RAY],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for names in TOGETHER for name in names]
)
def test_scenario(tmp_path_factory, name):
    """What has to be stands in the function of its name."""
    (names,) = (group for group in TOGETHER if name in group)

    def make(folder: Path) -> None:
        environment = clean_environment(folder, hide_gpus=True)
        anew = names in LAUNCHERS  # they start processes that import the main module
        apart("tests.helpers.sweep_scenarios", (str(folder), *names), environment, anew)

    wrong = (once(tmp_path_factory, f"sweep_{names[0]}", make) / f"{name}.txt").read_text()
    assert not wrong, wrong


INTERRUPTED_IMPORT = """
import os, signal, sys

class Sends:
    def find_spec(self, name, *_):
        if name == "torch.nn.functional":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Sends())
sys.argv = ["specbench", "gamma=1,2"]
from specbench.__main__ import main
main()
"""


@pytest.mark.thorough
def test_a_signal_while_pytorch_is_imported_ends_a_sweep_in_order(tmp_path):
    """A half of PyTorch cannot be imported again, and the end of a sweep needs it."""
    done = new_process(tmp_path, "-c", INTERRUPTED_IMPORT, status=143)
    assert "Traceback" not in done.stderr
    assert "interrupted (SIGTERM)" in done.stderr
    assert "0 of 2 jobs done, 2 not started." in done.stderr


COUNTING = """
import sys
from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader
from specbench.__main__ import run

compose, composed = Loader.load_configuration, []
Loader.load_configuration = lambda *args, **kwargs: composed.append(1) or compose(*args, **kwargs)
sys.argv = ["specbench"]
run(["gamma=-1"])
print(len(composed))
"""


def test_a_refused_command_is_composed_no_oftener_than_it_must(tmp_path):
    """Once, for the sweep and its only job: a fifth of a second, most of what such a command takes."""
    assert new_process(tmp_path, "-c", COUNTING).stdout.splitlines()[-1] == "1"
