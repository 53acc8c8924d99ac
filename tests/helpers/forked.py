"""Command lines in forked processes: each has everything imported, and can be killed like any other process."""

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# Imported once, for all children.
import pyarrow.dataset  # noqa: F401
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import specbench.drafters.model
import specbench.protocols.decode
import specbench.reports.writing
import specbench.rules.token.masked
import specbench.runs.ending
import specbench.runs.execute
import specbench.runs.summary
from specbench.__main__ import main
from specbench.core.conf import CONF
from specbench.runs import building
from specbench.runs.config import register
from tests.helpers.command_lines import Ended
from tests.helpers.processes import fork

BOX = {*"┏┃┡│└━"}  # of tables, which say nothing of what is asked here


def load_once() -> None:
    """Loads the embedded pair as a job does, for all children to come, and sets the threads that they begin with.

    A child that would load another one is refused: each would take half a second that no test shows.
    """
    torch.set_num_threads(1)
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        job: Any = compose("config")
    GlobalHydra.instance().clear()
    building.loaded_pair(job, torch.device("cpu"), specbench.drafters.model.ModelDrafter())
    building.load_pair = _refused
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, all that it shares with this process


def _refused(target: str, *_: object, **__: object) -> NoReturn:
    raise AssertionError(f"{target} is loaded in a child: load_once should have loaded the pair as the jobs do")


class Child:
    """A command line in a process of its own.

    Args:
        before: called in the child before it begins.
    """

    def __init__(self, folder: Path, *arguments: str, before: Callable[[], object] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.output, out = os.pipe()  # all that is printed fits into its buffer
        self.pid = fork(out, lambda: self._run(folder, arguments, before))
        os.close(out)

    def _run(self, folder: Path, arguments: tuple[str, ...], before: Callable[[], object] | None) -> None:
        os.chdir(folder)
        os.environ["HOME"] = str(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
        if before is not None:
            before()
        sys.argv = ["specbench", *arguments]
        main()

    def ended(self, seconds: float = 600.0) -> Ended:
        """Waits for the end; a process that takes longer is killed."""
        limit = threading.Timer(seconds, os.kill, (self.pid, signal.SIGKILL))
        limit.start()
        with os.fdopen(self.output, errors="backslashreplace") as read:
            text = read.read()
        _, number = os.waitpid(self.pid, 0)
        limit.cancel()
        lines = [line for line in text.splitlines() if not BOX & {*line}]
        return Ended(os.waitstatus_to_exitcode(number), "\n".join(lines))


def run(folder: Path, *arguments: str, before: Callable[[], object] | None = None) -> Ended:
    return Child(folder, *arguments, before=before).ended()


def put_through(folder: Path, *scenarios: Callable[[Path], object]) -> None:
    """Runs scenarios, each in a folder of its name, and leaves NAME.txt of each: what was wrong, or nothing."""
    for scenario in scenarios:
        (place := folder / scenario.__name__).mkdir()
        wrong = ""
        try:
            scenario(place)
        except Exception:
            wrong = traceback.format_exc()
        place.with_suffix(".txt").write_text(wrong)
