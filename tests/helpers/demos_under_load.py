"""Demos on a busy machine against one on a quiet machine: do they name winners that the quiet one does not?

    python -m tests.helpers.demos_under_load FOLDER [--demos 10] [--busy 2] [key=value ...]

On a machine that is otherwise quiet. The sweep runs once by itself, then ``--demos`` times beside ``--busy`` processes
that compute without end, each into a folder of its own under FOLDER; a folder with results is not run again. Further
arguments go to every sweep. Prints what each says; the exit status is 1 if a demo under load names a setting that the
quiet run does not.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from specbench.metrics.ranking import ranking, seen
from specbench.metrics.results import RESULTS, read_results
from specbench.reports import winner
from specbench.reports.text import literal
from tests.helpers.command_lines import ROOT

EXPERIMENT = "gamma_sweep"


@contextlib.contextmanager
def busy(processes: int) -> Generator[None]:
    """So many processes that each keep a core busy, until the end."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def demo(folder: Path, arguments: Sequence[str]) -> None:
    """One sweep into a folder, unless it has its results already."""
    if (folder / RESULTS).exists():
        return
    settings = (f"+exp={EXPERIMENT}", f"hydra.sweep.dir={folder}", "tracking.mode=disabled", *arguments)
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{folder}: exit status {done.returncode}\n{done.stderr[-2000:]}")


def named(folder: Path) -> tuple[str | None, str]:
    """The setting that a sweep calls the fastest, or None; and all that it says, the machine included."""
    rows = read_results(folder)
    names = [f"gamma {row['gamma']} with {row['verifier']}" for _, row in rows.iterrows()]
    found = ranking(rows)
    loads = [f"{each.other_cores:.1f}" for each in seen(rows) if each.other_cores is not None]
    said = [
        f"other processes used {', '.join(loads)} cores in its runs, of {', '.join(map(str, rows['rounds']))} rounds;",
        f"speedups {', '.join(f'{value:.2f}' for value in rows['speedup'])}.",
        winner.machine(rows),
        literal(winner.fastest(rows, names)),
        "" if found.rivals or not found.disturbed else f"(Its numbers alone would name {names[found.best]}.)",
    ]
    return None if found.fastest is None else names[found.fastest], " ".join(filter(None, said))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.demos_under_load", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--demos", type=int, default=10)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("arguments", nargs="*", metavar="key=value")
    given = parser.parse_intermixed_args()
    folder = given.folder.resolve()
    demo(folder / "quiet", given.arguments)
    quiet, said = named(folder / "quiet")
    print(f"quiet: names {quiet or 'none'}: {said}", flush=True)
    wrong = 0
    for number in range(given.demos):
        with busy(given.busy):
            demo(folder / f"busy_{number}", given.arguments)
        found, said = named(folder / f"busy_{number}")
        wrong += found not in (None, quiet)
        verdict = "says that it cannot tell" if found is None else f"names {found}"
        print(f"busy {number}: {verdict}: {said}", flush=True)
    print(f"{wrong} of {given.demos} demos under load name a setting that the quiet run does not.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
