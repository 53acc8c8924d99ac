"""How many CPU threads a run gets: the faster number for a large target, the number that is given, one for a small."""

from pathlib import Path

import pytest
import torch

from specbench.metrics import results
from specbench.models import CachedModel, Pair, threads
from specbench.models.threads import Threads, choose_threads
from tests.helpers.command_lines import new_process
from tests.helpers.small_sweeps import TWO, sweeps
from tests.helpers.toy import toy_pair


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def large(pair: Pair, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> CachedModel:
    """The pair's target, taken for a large one, on a machine of two cores; passes seem to take the seconds given."""
    monkeypatch.setattr(threads, "PYTORCH_THREADS", 2)
    monkeypatch.setattr(threads, "SMALL_MODEL", 0)
    if seconds:
        took = {1: seconds["one"], 2: seconds["two"]}
        monkeypatch.setattr(threads, "_pass_seconds", lambda *_: took[torch.get_num_threads()])
    return CachedModel(pair.target, pair.vocab_size, "target")


@pytest.mark.parametrize(("one", "two", "count"), [(0.2, 1.4, 1), (0.2, 0.1, 2)])
def test_a_large_target_gets_the_faster_number_and_says_so(pair, monkeypatch, capfd, one, two, count):
    chosen = choose_threads(0, large(pair, monkeypatch, one=one, two=two), requests=1, width=5)
    times = f"{1000 * one:.0f} ms with one thread and {1000 * two:.0f} ms with 2"
    assert chosen == Threads(count, f"a pass over 5 tokens took {times}")
    assert torch.get_num_threads() == count
    assert f"threads={count}: {chosen.reason}" in capfd.readouterr().err


def test_passes_are_timed_in_turns_and_the_first_is_left_out(pair, monkeypatch):
    target, order = large(pair, monkeypatch), []
    seconds = iter([9.0, 9.0, *[0.1] * 20])
    monkeypatch.setattr(threads, "_pass_seconds", lambda *_: (order.append(torch.get_num_threads()), next(seconds))[1])
    assert choose_threads(0, target, 1, 5).count == 1  # no faster with two
    assert order == [1, 2, 2, 1] * 3


def test_slow_passes_are_timed_once(pair, monkeypatch):
    """A pass took 13 s with one thread and 117 s with two beside six busy processes: ten of each are 13 minutes."""
    target, order = large(pair, monkeypatch), []
    monkeypatch.setattr(threads, "_pass_seconds", lambda *_: order.append(torch.get_num_threads()) or 13.0)
    choose_threads(0, target, requests=1, width=5)
    assert order == [1, 2, 2, 1]


def test_real_passes_are_timed_and_leave_no_text(pair, monkeypatch):
    target = large(toy_pair(pair), monkeypatch)
    assert choose_threads(0, target, requests=8, width=5).reason.startswith("a pass over 15 tokens took ")
    target.start([[1, 2]], 8)
    assert target.lengths.tolist() == [1]


def test_what_is_given_or_known_is_not_timed(pair, monkeypatch):
    small = CachedModel(pair.target, pair.vocab_size, "target")
    monkeypatch.setattr(threads, "_faster", None)
    monkeypatch.setattr(threads, "PYTORCH_THREADS", 16)
    assert choose_threads(0, small, 1, 5).count == 1
    assert choose_threads(2, small, 1, 5) == Threads(2, "as given")
    target = large(pair, monkeypatch)
    assert choose_threads(2, target, 1, 5) == Threads(2, "as given")
    assert choose_threads(0, target, 1, 5, Threads(2, "as before")) == Threads(2, "as before")
    monkeypatch.setattr(threads, "PYTORCH_THREADS", 1)
    assert choose_threads(0, target, 1, 5).count == 1
    monkeypatch.setattr(threads, "PYTORCH_THREADS", 16)
    target.device = torch.device("cuda")
    assert choose_threads(0, target, 1, 5) == Threads(16, "PyTorch's default")


BUSY_AT_FIRST = """
import sys
from specbench.__main__ import main
from specbench.models import threads

took = iter([*[0.1, 0.7, 0.7, 0.1] * 3, *[0.7, 0.1, 0.1, 0.7] * 3])
threads.PYTORCH_THREADS, threads.SMALL_MODEL = 2, 0
threads._pass_seconds = lambda *_: next(took)
main()
"""


@pytest.mark.thorough
def test_all_jobs_of_a_sweep_have_the_threads_that_its_first_found(tmp_path: Path):
    ended = new_process(tmp_path, "-c", BUSY_AT_FIRST, *TWO)
    rows = results.read_results(sweeps(tmp_path)[0])
    assert rows["threads"].tolist() == [1, 1]
    assert set(rows["threads_reason"]) == {"a pass over 4 tokens took 100 ms with one thread and 700 ms with 2"}
    assert ended.stderr.count("threads=1: a pass over") == 1
