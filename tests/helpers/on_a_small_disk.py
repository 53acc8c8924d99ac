"""A sweep on a disk of 2 MB, and again with room. Needs root, to mount the disk.

    python -m tests.helpers.on_a_small_disk

What must hold: no traceback, exit status 1, the jobs that fitted are in the table; with room resume=latest ends with 0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.command_lines import clean_environment

SWEEP = ("+exp=smoke", "max_new_tokens=4", "workload.limit=2", "protocol.check.draws=0", "gamma=1,2,3,4,5,6")


def _run(folder: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specbench", *arguments]
    together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=folder, env=clean_environment(home), check=False, **together)


def main() -> int:
    """Returns the exit status: 1 if something does not hold."""
    with tempfile.TemporaryDirectory() as name:
        disk, home = Path(name) / "disk", Path(name) / "home"
        disk.mkdir()
        home.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
        try:
            full = _run(disk, home, *SWEEP)
            print(full.stdout, f"exit status {full.returncode}\n", sep="")
            subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
            again = _run(disk, home, "resume=latest")
            print(again.stdout, f"exit status {again.returncode}", sep="")
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    holds = "Traceback" not in full.stdout + again.stdout and (full.returncode, again.returncode) == (1, 0)
    print("held" if holds else "did NOT hold")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
