"""Sweeps in trouble: no room, no rights, and what fails beside the numbers. sweep_scenarios.py runs these."""

import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specbench.core.machine.disk import WriteError
from specbench.runs import ending, execute, sweep
from specbench.runs.state import Status
from specbench.runs.tracking.run import TrackedRun
from tests.helpers.forked import run
from tests.helpers.small_sweeps import ONE, TWO


def full_disk(folder: Path) -> None:
    """No room for the plan; then files that cannot grow beyond 2 KiB; then there is room again."""

    def no_space(*_: object) -> None:
        raise WriteError(folder, os.strerror(errno.ENOSPC))

    says = "(No space left on device). Free space there, or choose another folder by hydra.sweep.dir."
    run(folder, *TWO, before=lambda: setattr(sweep, "claim", no_space)).check(2, says)

    def small_files() -> None:
        sys.dont_write_bytecode = True  # it would be left in the tree, cut off at 2 KiB, for all other tests
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    says = ("File too large). Free space there", "What was measured: ", "0 of 2 jobs done, 2 failed.")
    run(folder, *TWO, before=small_files).check(1, *says)
    run(folder, "resume=latest").check(0)


def read_only(folder: Path) -> None:
    """A folder that turns read-only after the first job."""

    def before() -> None:
        _obey_permissions()
        _after_first_row(lambda sweep: [path.chmod(0o555) for path in (sweep, *sweep.iterdir()) if path.is_dir()])

    says = ("Permission denied", "rows stay in the jobs' folders", "1 of 2 jobs done")
    ended = run(folder, *TWO, before=before).check(1, *says)
    assert "Results: " not in ended.text  # which would name a file that is not there


def moved(folder: Path) -> None:
    """The sweep's folder goes away."""
    move = lambda sweep: sweep.rename(sweep.with_name("moved"))  # noqa: E731
    run(folder, *TWO, before=lambda: _after_first_row(move)).check(1, "was the sweep moved?")


def _obey_permissions() -> None:
    """Takes from root what lets it write anywhere (CAP_DAC_OVERRIDE); others have not got it."""
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b110
    assert libc.capset(header, sets) == 0


def _after_first_row(action: Callable[[Path], object]) -> None:
    write, count = execute.write_tables, iter(range(100))

    def written(folder: Path, *rest: object) -> None:
        write(folder, *rest)
        if next(count) == 0:
            execute.write_state(folder, replace(execute.written_state(folder), status=Status.DONE))
            action(folder.parent)

    execute.write_tables = written


# What goes wrong beside the numbers costs nothing of them; but a report that fails is no success.


def no_figures(folder: Path) -> None:
    """Figures that cannot be drawn."""
    says = ("figures are missing (RuntimeError: broken on purpose)", "Results: ")
    run(folder, *ONE, before=lambda: setattr(execute, "draw_figures", _raise)).check(0, *says)


def no_tracking(folder: Path) -> None:
    """A run that W&B does not take."""
    broken = lambda _: "not tracked in W&B (broken on purpose)"  # noqa: E731
    run(folder, *ONE, before=lambda: setattr(TrackedRun, "end", broken)).check(0, "not tracked in W&B", "Results: ")


def killed_tracking(folder: Path) -> None:
    """A process that is killed while it tracks rows, which stand."""
    kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    assert run(folder, *ONE, before=lambda: setattr(TrackedRun, "end", kill)).status == -9
    cause = "its process ended before its figures and its tracking were finished"
    run(folder, "report").check(0, "Results: ", "warning: gamma=1,verifier=masked", cause)


def no_report(folder: Path) -> None:
    """A report that cannot be made hides no number."""
    says = ("tokens a step", "report: RuntimeError: broken on purpose")  # a smoke sweep has no report to build
    run(folder, *ONE, before=lambda: setattr(ending, "find_analysis", _raise)).check(1, *says)


def no_links(folder: Path) -> None:
    """A file system without links."""
    run(folder, *ONE, before=lambda: setattr(Path, "symlink_to", _raise_os_error)).check(0)
    run(folder, "report").check(0, "Results: ")


def file_named_latest(folder: Path) -> None:
    """A user's file where the link to the newest sweep would be."""
    latest = folder / "outputs" / "smoke" / "latest"
    latest.parent.mkdir(parents=True)
    latest.write_text("mine")
    run(folder, *ONE).check(0)
    assert latest.read_text() == "mine"


def exits(folder: Path) -> None:
    """A component of a job calls sys.exit; a sweep without rows is not the newest."""
    run(folder, *ONE, before=_exiting).check(1, "failed: SystemExit: 0")
    assert not (folder / "outputs" / "smoke" / "latest").exists()


def _raise(*_: object, **__: object) -> None:
    raise RuntimeError("broken on purpose")


def _raise_os_error(*_: object, **__: object) -> None:
    raise OSError(1, "Operation not permitted")


def _exiting() -> None:
    execute.choose_device = lambda _: sys.exit(0)
