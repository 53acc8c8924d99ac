"""A GPU a job: jobs that run beside each other on one machine take GPUs that no other job of their sweep has."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

PAUSE = 0.5  # seconds between two looks for a free GPU


@contextmanager
def pinned(device: str, sweep: Path, beside: bool) -> Generator[str]:
    """The device that a job is to use: ``auto`` and ``cuda`` become a GPU of its own, for as long as it runs.

    A job waits while other jobs have all of them. Ray and Slurm show each job its GPUs alone, so that there is nothing
    to choose.

    Args:
        device: as configured.
        sweep: where the locks are.
        beside: whether other jobs of the sweep may run on this machine at the same time.
    """
    gpus = torch.cuda.device_count() if beside and device in ("auto", "cuda") else 0
    if gpus < 2:
        yield device
        return
    while True:
        for number in range(gpus):
            lock = FileLock(sweep / f"gpu-{socket.gethostname()}-{number}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                yield f"cuda:{number}"
            finally:
                lock.release()
            return
        time.sleep(PAUSE)
