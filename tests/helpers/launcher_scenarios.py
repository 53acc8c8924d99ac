"""Sweeps by launchers, in processes without anything imported: launchers start their own from these.

tests/helpers/sweep_scenarios.py runs these.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.command_lines import Ended
from tests.helpers.forked import run
from tests.helpers.small_sweeps import SWEEP, numbers, sweeps

MANY = (*SWEEP, "share_machine=true", "gamma=1,3", "verifier=masked")


def joblib(folder: Path) -> None:
    """Two processes of joblib."""
    _beside_basic(folder, "joblib", "hydra.launcher.n_jobs=2")


def submitit_local(folder: Path) -> None:
    """Submitit's processes, as under Slurm."""
    _beside_basic(folder, "submitit_local")


def ray(folder: Path) -> None:
    """Two workers of Ray."""
    _beside_basic(folder, "ray", "hydra.launcher.workers=2")


def _beside_basic(folder: Path, name: str, *settings: str) -> None:
    """A sweep by a launcher leaves what the same one leaves in a single process."""
    basic, place = folder / "basic", folder / name
    run(basic, *MANY).check(0)
    place.mkdir()
    _process(place, *MANY, f"hydra/launcher={name}", *settings).check(0, "2 of 2 jobs done.")
    assert [numbers(sweep) for sweep in sweeps(place)] == [numbers(sweep) for sweep in sweeps(basic)]
    left = {path.name for path in place.iterdir()}
    assert left <= {"outputs", ".cache", ".config"}  # in the user's home only matplotlib's fonts


def lost(folder: Path) -> None:
    """A job that fails and one that takes its process with it, on two workers of Ray."""
    (folder / "mine.py").write_text(DEADLY)
    bad = ("verifier._target_=specbench.rules.token.naive.NaiveVerifier,mine.Deadly", "gamma=1,99")
    workers = ("hydra/launcher=ray", "hydra.launcher.workers=2", "verifier=naive")
    says = ("died: job ", "failed: job ", "gamma=99", "1 of 4 jobs done, 2 failed, 1 died.")
    _process(folder, *SWEEP, "share_machine=true", *bad, *workers).check(1, *says)


DEADLY = """\
import os

class Deadly:
    rule, lossless = "token", True

    def verify(self, draft, target, streams):
        os._exit(9)
"""


def _process(folder: Path, *arguments: str) -> Ended:
    """A process without anything imported: launchers start their own from it."""
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout + done.stderr)
