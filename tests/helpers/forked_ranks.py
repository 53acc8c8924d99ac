"""Ranks as torchrun starts them, but forked: each has everything imported already, and computes on the CPU."""

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import TCPStore

LIMIT = 100.0  # seconds


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process. The store is kept by the process that started the ranks, as torchrun's is."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {
        **{name: str(number) for name, number in numbers.items()},
        **{"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    }


def kept_store() -> TCPStore:
    """A store for ranks; its ``port`` is the environment's."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def on_ranks(work: Callable[[int], Any], size: int = 2) -> list[Any]:
    """What ``work`` returns or raises on each rank, all of them side by side."""
    store = kept_store()
    children = [_child(work, rank, size, store.port) for rank in range(size)]
    results = []
    for pid, output in children:
        limit = threading.Timer(LIMIT, os.kill, (pid, signal.SIGKILL))
        limit.start()
        with os.fdopen(output, "rb") as read:
            written = read.read()
        os.waitpid(pid, 0)
        limit.cancel()
        results.append(pickle.loads(written) if written else RuntimeError("the process ended"))  # noqa: S301
    return results


def returned(results: list[Any]) -> list[Any]:
    """The results of on_ranks(); raises what a rank has raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _child(work: Callable[[int], Any], rank: int, size: int, port: int) -> tuple[int, int]:
    output, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, output
    try:
        os.environ |= environment(rank, size, port)
        torch.set_num_threads(1)
        try:
            result = work(rank)
        except Exception as error:
            traceback.print_exc()
            result = error
        with os.fdopen(into, "wb") as write:
            pickle.dump(result, write)
    finally:
        os._exit(0)
