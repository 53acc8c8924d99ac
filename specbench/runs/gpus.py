"""A GPU a job: jobs that run beside each other on one machine take GPUs that no other job of their sweep has.

A process that runs several jobs, one after the other, stays with its GPU: the models that it keeps are there, and
memory that PyTorch does not give back. So there are never more such processes than GPUs.
"""

import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

PAUSE = 0.5  # seconds between two looks for a free GPU
_before: list[int] = []  # GPUs that this process has had, the last one first


def jobs_at_once(jobs: int, device: str) -> int:
    """How many jobs joblib is to run at once on this machine: as asked, but on GPUs no more than there are.

    Args:
        jobs: as in joblib: -1 is one a core, -2 one less, and so on.
    """
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus < 2:
        return jobs
    return min(gpus, jobs if jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + jobs))


@contextmanager
def pinned(device: str, sweep: Path, beside: bool) -> Generator[str]:
    """The device that a job is to use: ``auto`` and ``cuda`` become a GPU of its own, for as long as it runs.

    A job waits while other jobs have all of them. Ray and Slurm show each job its GPUs alone, so that there is nothing
    to choose.

    Args:
        sweep: where the locks are.
        beside: whether other jobs of the sweep may run on this machine at the same time.
    """
    gpus = torch.cuda.device_count() if beside and device in ("auto", "cuda") else 0
    if gpus < 2:
        yield device
        return
    while True:
        for number in sorted(range(gpus), key=lambda gpu: _before.index(gpu) if gpu in _before else len(_before)):
            lock = FileLock(sweep / f"gpu-{socket.gethostname()}-{number}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            _before[:] = [number, *(gpu for gpu in _before if gpu != number)]
            try:
                yield f"cuda:{number}"
            finally:
                lock.release()
            return
        time.sleep(PAUSE)
