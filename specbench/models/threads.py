"""How many CPU threads a pair gets where nobody says."""

from __future__ import annotations

from specbench.core.machine.devices import PYTORCH_THREADS
from specbench.models.loading import Pair

SMALL_MODEL = 50_000_000  # parameters


def default_threads(pair: Pair) -> int:
    """PyTorch's default, but one for a small target.

    Its matrices gain little from a second thread, and where other work has the second core, each of its many short
    products waits for that core: times grow tenfold, and differ from run to run.
    """
    return 1 if pair.target.num_parameters() < SMALL_MODEL else PYTORCH_THREADS
