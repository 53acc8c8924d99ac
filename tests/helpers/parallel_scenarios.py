"""Command lines on two ranks, and what became of each.

    python -m tests.helpers.parallel_scenarios FOLDER      # leaves found.json there

One process imports everything and forks the ranks, as in sweep_scenarios.py.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from specbench.decoding import Decoder
from specbench.metrics.results import read_results
from specbench.runs import execute, parallel
from specbench.runs.state import read_state
from tests.helpers.forked import Child
from tests.helpers.forked_ranks import environment, kept_store
from tests.helpers.small_sweeps import sweeps

SHORT = (
    *("workload.limit=1", "protocol.warmup=0", "protocol.rounds=1", "protocol.max_rounds=1", "tracking.mode=disabled"),
    *("protocol.check.prefixes=1", "protocol.check.draws=4", "device=cpu", "threads=1"),
)
TINY = ("pair=random", "pair.target=random:tiny", "pair.draft=random:tiny-draft", "max_new_tokens=6")


def torchrun(folder: Path, *arguments: str, on_one: Callable[[], object] = lambda: None) -> dict[str, object]:
    """A sweep of two jobs on two ranks, and what it left. ``on_one`` is called on rank 1 before it begins."""
    store, size = kept_store(), 2

    def begin(rank: int) -> None:
        os.environ |= environment(rank, size, store.port)
        parallel.PATIENCE = 0.5
        if rank == 1:
            on_one()

    command = (*SHORT, "parallel=tensor", *arguments)
    ranks = [Child(folder, *command, before=lambda rank=rank: begin(rank)) for rank in range(size)]
    return {"ended": [asdict(child.ended(60)) for child in ranks], **left(folder)}


def left(folder: Path) -> dict[str, object]:
    (sweep,) = sweeps(folder)
    columns = ["job", "gamma", "parallel", "ranks", "device"]
    return {
        "states": [asdict(state) for number in range(2) if (state := read_state(sweep / str(number)))],
        "rows": json.loads(read_results(sweep)[columns].to_json(orient="records")),
    }


def at_gamma_three(happens: Callable[[], object]) -> None:
    """Has it happen in the second step of the job with gamma=3."""
    step, count = Decoder.step, []

    def stepped(self: Decoder) -> None:
        count.append(self.components.gamma)
        if count.count(3) == 2:
            happens()
        step(self)

    Decoder.step = stepped


def refuse() -> None:
    raise ValueError("not on this GPU")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _main(at: str) -> None:
    folder = Path(at)
    torch.set_num_threads(1)
    execute.draw_figures = lambda *_: None  # tests/cli/test_smoke.py has them
    outcomes = {
        "sweep": torchrun(folder / "sweep", *TINY[:-1], "max_new_tokens=5000,6", "gamma=3"),
        "killed": torchrun(folder / "killed", *TINY, "gamma=1,3", on_one=lambda: at_gamma_three(die)),
        "failed": torchrun(folder / "failed", *TINY, "gamma=1,3", on_one=lambda: at_gamma_three(refuse)),
    }
    (folder / "found.json").write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    _main(sys.argv[1])
