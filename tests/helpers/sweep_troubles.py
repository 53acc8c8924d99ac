"""Sweeps in trouble: no room, no rights, and what fails beside the numbers. sweep_scenarios.py runs these."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from specbench.runs import execute
from specbench.runs.state import Status
from specbench.runs.tracking.run import TrackedRun
from tests.helpers.forked import run
from tests.helpers.small_sweeps import ONE, TWO


def no_room(folder: Path) -> dict[str, object]:
    """Files that cannot grow beyond 2 KiB, as on a full disk; a folder that turns read-only; one that goes away."""

    def small_files() -> None:
        sys.dont_write_bytecode = True  # it would be left in the tree, cut off at 2 KiB, for all other tests
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    outcome: dict[str, object] = {"full": asdict(run(folder / "full", *TWO, before=small_files))}
    outcome["full again"] = run(folder / "full", "resume=latest").status

    def read_only() -> None:
        _obey_permissions()
        _after_first_row(lambda sweep: [path.chmod(0o555) for path in (sweep, *sweep.iterdir()) if path.is_dir()])

    outcome["read-only"] = asdict(run(folder / "ro", *TWO, before=read_only))
    outcome["gone"] = asdict(run(folder / "gone", *TWO, before=lambda: _after_first_row(_remove)))
    return outcome


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


def _remove(sweep: Path) -> None:
    sweep.rename(sweep.with_name("moved"))


def beside_numbers(folder: Path) -> dict[str, object]:
    """What goes wrong beside the numbers costs nothing of them: figures, tracking, reports, links."""

    def broken_figures() -> None:
        execute.draw_figures = _raise

    def broken_tracking() -> None:
        TrackedRun.end = lambda _: "not tracked in W&B (broken on purpose)"

    def killed_tracking() -> None:
        TrackedRun.end = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)

    def broken_report() -> None:
        from specbench.runs import ending

        ending.find_analysis = _raise  # a smoke sweep has no report to build

    def no_links() -> None:
        Path.symlink_to = _raise_os_error  # ty: ignore

    (folder / "file" / "outputs" / "smoke").mkdir(parents=True)
    (folder / "file" / "outputs" / "smoke" / "latest").write_text("mine")
    return {
        "figures": asdict(run(folder / "figures", *ONE, before=broken_figures)),
        "tracking": asdict(run(folder / "tracking", *ONE, before=broken_tracking)),
        "killed tracking": run(folder / "untracked", *ONE, before=killed_tracking).status,
        "untracked": asdict(run(folder / "untracked", "report")),
        "report": asdict(run(folder / "report", *ONE, before=broken_report)),
        "links": asdict(run(folder / "links", *ONE, before=no_links)),
        "links report": asdict(run(folder / "links", "report")),
        "a file named latest": asdict(run(folder / "file", *ONE)),
        "its content": (folder / "file" / "outputs" / "smoke" / "latest").read_text(),
        "exits": asdict(run(folder / "exits", *ONE, before=_exiting)),
        "latest of a failure": (folder / "exits" / "outputs" / "smoke" / "latest").exists(),
    }


def _raise(*_: object, **__: object) -> None:
    raise RuntimeError("broken on purpose")


def _raise_os_error(*_: object, **__: object) -> None:
    raise OSError(1, "Operation not permitted")


def _exiting() -> None:
    execute.choose_device = lambda _: sys.exit(0)
