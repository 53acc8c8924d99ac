"""Two ranks as torchrun starts them, but forked: each has everything imported already, and computes on the CPU."""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import TCPStore

FORK = multiprocessing.get_context("fork")
LIMIT = 100.0  # seconds
RANKS = range(2)


def environment(rank: int, port: int) -> dict[str, str]:
    """What torchrun tells a process. The store is kept by the process that started the ranks, as torchrun's is."""
    size = len(RANKS)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {
        **{name: str(number) for name, number in numbers.items()},
        **{"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    }


def kept_store() -> TCPStore:
    """A store for ranks; its ``port`` is the environment's."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def on_ranks(work: Callable[[int], Any]) -> list[Any]:
    """What ``work`` returns on each rank, all of them side by side. Raises what it raises on one of them."""
    store, children, results = kept_store(), [], []
    for rank in RANKS:
        read, write = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_on_rank, args=(work, rank, store.port, write), daemon=True)
        process.start()
        write.close()  # so that the pipe ends with the process
        children.append((process, read))
    for process, read in children:
        # Pickled by pickle: torch would pass tensors in memory that goes with the process.
        results.append(pickle.loads(read.recv_bytes()) if read.poll(LIMIT) else TimeoutError())  # noqa: S301
        process.kill()
        process.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _on_rank(work: Callable[[int], Any], rank: int, port: int, write: Connection) -> None:
    os.environ |= environment(rank, port)
    torch.set_num_threads(1)
    try:
        result = work(rank)
    except Exception as error:
        traceback.print_exc()
        result = error
    write.send_bytes(pickle.dumps(result))
