"""Command lines on two ranks, and what has to become of each.

    python -m tests.helpers.parallel_scenarios FOLDER      # leaves NAME.txt there: what was wrong, or nothing

One process imports everything and forks the ranks, as in sweep_scenarios.py.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from specbench.decoding import Decoder
from specbench.metrics.results import read_results
from specbench.runs import execute, parallel
from specbench.runs.state import JobState, read_state
from tests.helpers.command_lines import Ended
from tests.helpers.forked import Child, put_through
from tests.helpers.forked_ranks import RANKS, environment, kept_store
from tests.helpers.small_sweeps import sweeps

SHORT = (
    *("workload.limit=1", "protocol.warmup=0", "protocol.rounds=1", "protocol.max_rounds=1", "tracking.mode=disabled"),
    *("protocol.check.prefixes=1", "protocol.check.draws=4", "device=cpu", "threads=1"),
)
TINY = ("pair=random", "pair.target=random:tiny", "pair.draft=random:tiny-draft", "max_new_tokens=6")


def torchrun(
    folder: Path, *arguments: str, on_one: Callable[[], object] = lambda: None
) -> tuple[list[Ended], list[JobState], pd.DataFrame]:
    """A sweep of two jobs on two ranks: how they ended, the jobs' states, and the rows.

    ``on_one`` is called on rank 1 before it begins.
    """
    store = kept_store()

    def begin(rank: int) -> None:
        os.environ |= environment(rank, store.port)
        parallel.PATIENCE = 0.5
        if rank == 1:
            on_one()

    command = (*SHORT, "parallel=tensor", *arguments)
    ranks = [Child(folder, *command, before=lambda rank=rank: begin(rank)) for rank in RANKS]
    ended = [child.ended(60) for child in ranks]
    (sweep,) = sweeps(folder)
    return ended, [read_state(sweep / str(number)) for number in range(2)], read_results(sweep)


def one_sweep(folder: Path) -> None:
    """Ranks make one sweep, and one of them speaks. Its first job cannot run: the second runs all the same."""
    (first, second), states, rows = torchrun(folder, *TINY[:-1], "max_new_tokens=5000,6", "gamma=3")
    assert (first.status, second.status, second.text) == (1, 0, "")
    assert "job 0 (max_new_tokens=5000) failed: max_new_tokens=5000: " in first.text
    assert [state.status for state in states] == ["failed", "done"]
    columns = ["job", "gamma", "device", "parallel", "ranks"]
    assert rows[columns].to_numpy().tolist() == [[1, 3, "cpu", "tensor", 2]]


def killed(folder: Path) -> None:
    """If a rank dies the others end."""
    second = ends_with_its_job(folder, die, -9, "another rank has ended, it seems (rank 0: RuntimeError: ")
    assert "rank 1: ValueError: not on this GPU" not in second.text


def failed(folder: Path) -> None:
    """If a rank fails the others end, with its words."""
    second = ends_with_its_job(folder, refuse, 1, "rank 1: ValueError: not on this GPU")
    assert "rank 1: ValueError: not on this GPU" in second.text


def ends_with_its_job(folder: Path, happens: Callable[[], object], status: int, says: str) -> Ended:
    """What is done stays. Without a word the first rank would wait for the second in the middle of a layer."""
    ended, states, rows = torchrun(folder, *TINY, "gamma=1,3", on_one=lambda: at_gamma_three(happens))
    assert [rank.status for rank in ended] == [1, status]
    assert [state.status for state in states] == ["done", "failed"]
    assert says in states[1].reason
    assert rows["gamma"].tolist() == [1]
    assert "resume=" in ended[0].text
    return ended[1]


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
    torch.set_num_threads(1)
    execute.draw_figures = lambda *_: None  # tests/cli/test_smoke.py has them
    put_through(Path(at), one_sweep, killed, failed)


if __name__ == "__main__":
    _main(sys.argv[1])
