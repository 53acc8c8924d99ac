"""Where a run's numbers come from: commit, machine, versions."""

import functools
import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from specbench import __version__
from specbench.core.rng import MAX_SEED


def request_seed(seed: int, name: str) -> int:
    """The seed of one request: depends on the run's seed and the request's name, not on its place in the workload."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & MAX_SEED


def sample_name(prompt: str, sample: int) -> str:
    """Returns the name of a further continuation of a prompt."""
    return f"{prompt}#{sample}"


@functools.cache
def commit() -> str:
    """The commit this package runs from, with ``-dirty`` behind it where files changed.

    An installed package has the commit it was built from; ``unknown`` where neither is known.
    """
    here = Path(__file__).resolve().parent
    try:
        _git(here, "ls-files", "--error-unmatch", "provenance.py")
        dirty = "-dirty" if _git(here, "status", "--porcelain", "--untracked-files=no") else ""
        return _git(here, "rev-parse", "HEAD") + dirty
    except (OSError, subprocess.SubprocessError):
        built = here.parents[1] / "commit.txt"  # by hatch_build.py
        return built.read_text().strip() if built.is_file() else "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        # Without optional locks git only reads: a status would else write its index anew.
        ["git", "--no-optional-locks", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()


@functools.cache
def processor() -> str:
    """The CPU's name and how many of its cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def environment(device: torch.device) -> dict[str, str | int]:
    """What a row says about where it was made."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": commit(),
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
