"""Calls shared among processes: the same results as in one, whatever happens to a process."""

import copy
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specbench.exactness import suite
from specbench.exactness.guard import VerifierFault
from specbench.exactness.settings import Settings
from specbench.exactness.trials import worker_pool
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import run_trials
from specbench.exactness.trials.worker_pool import in_order
from specbench.exactness.zoo import accept
from specbench.rules.token.masked import MaskedVerifier
from tests.exactness.test_inputs import BY_NAME
from tests.helpers.cases import CPU, examined
from tests.helpers.made_up_verifiers import LENIENT, changed, made_up_rule

pytestmark = pytest.mark.usefixtures("unchecked")
SMALL = BY_NAME["small"], BY_NAME["large batches"]


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize(
    "verifier",
    [
        MaskedVerifier(), accept.AcceptsEverything(), changed(MaskedVerifier, rule=LENIENT),
        changed(accept.AcceptsEverything, rule=made_up_rule("unknown", None)),
    ],
)  # fmt: skip
def test_three_processes_show_what_one_shows(verifier):
    def shown(share: int):
        with torch.inference_mode():
            trials = run_trials(copy.deepcopy(verifier), CallsToDraw(7, CPU, 40, strata=SMALL), share=share)
        example, unfit = trials.example, trials.unfit
        return (
            trials.rows,
            trials.tests,
            trials.census,
            trials.refusals,
            example and (example[0].number, example[1]),
            unfit and (unfit[0].number, *unfit[1:]),
        )

    assert shown(3) == shown(1)


@pytest.mark.usefixtures("few_enumerated", "little_effort")
def test_a_suite_takes_one_thread_and_shares_calls_by_the_threads_set(monkeypatch):
    """On a busy machine two threads that wait for each other took eight times as long."""
    threads, shares, before = set(), [], torch.get_num_threads()

    class Recording(MaskedVerifier):
        def verify(self, *args, **options):
            threads.add(torch.get_num_threads())
            return super().verify(*args, **options)

    def shared(*args, share, **options):
        shares.append(share)
        return run_trials(*args, share=share, **options)

    monkeypatch.setattr(suite, "run_trials", shared)
    monkeypatch.setitem(worker_pool.FEWEST_EACH, "cpu", 10)
    torch.set_num_threads(2)
    try:
        examined(Recording(), Settings(draws=100, calls=20, serial_draws=0, use_calls=10))
        assert (threads, shares, torch.get_num_threads()) == ({1}, [2], 2)
    finally:
        torch.set_num_threads(before)


def test_results_come_in_order_and_from_the_processes_asked_for():
    results = list(in_order(lambda i: (i, os.getpid()), 11, 3, 0))
    assert [i for i, _ in results] == list(range(11))
    assert [len({pid for i, pid in results if i % 3 == k}) for k in range(3)] == [1, 1, 1]
    assert len({pid for _, pid in results}) == 3


def test_processes_draw_numbers_of_their_own_from_global_generators():
    """A verifier may, and its calls count as independent. Forked processes would begin with the same numbers."""
    draws = (lambda: float(torch.rand((), dtype=torch.float64)), np.random.random, random.random)
    for draw in draws:
        assert len(set(in_order(lambda _, draw=draw: draw(), 12, 3, 0))) == 12


def test_a_fault_keeps_its_words_and_its_place():
    def work(i: int) -> int:
        if i == 5:
            raise VerifierFault("a fixture", "a problem", "a request")
        return i

    results = []
    with pytest.raises(VerifierFault, match="a fixture.*a problem.*a request") as raised:
        results.extend(in_order(work, 8, 2, 0))
    assert (raised.value.fixture, raised.value.problem, raised.value.request) == ("a fixture", "a problem", "a request")


@pytest.mark.parametrize("end", ["dies", "raises", "hangs"])
def test_the_share_of_a_process_that_ends_is_done_here(end):
    here = os.getpid()

    def work(i: int) -> int:
        if i == 5 and os.getpid() != here:
            if end == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if end == "raises":
                raise SystemExit(3)
            time.sleep(600)
        return i

    assert list(in_order(work, 12, 2, 0.5 if end == "hangs" else 0)) == list(range(12))


ABANDONED = r"""
import os, sys, time
from specbench.exactness.trials.worker_pool import in_order
def work(i):
    os.write(1, b"%d\n" % os.getpid())  # in one piece: the lines of three processes must not mix
    time.sleep(600 if i else 0)
results = in_order(work, 3, 3, 0)  # ends its processes when it is collected
next(results)
time.sleep(600)
"""


@pytest.mark.thorough
def test_no_process_outlives_the_one_that_forked_it():
    with subprocess.Popen([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE, text=True) as parent:
        pids = {int(parent.stdout.readline()) for _ in range(3)}
        parent.kill()
    waited = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < waited:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_as_many_processes_as_threads_where_that_is_worth_it(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    fewest = worker_pool.FEWEST_EACH["cpu"]
    assert [worker_pool.processes(count * fewest, CPU) for count in (100, 2, 1)] == [4, 2, 1]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert worker_pool.processes(100 * fewest, CPU) == 1


def test_on_a_gpu_the_command_line_takes_processes_for_few_calls(monkeypatch):
    """Every third call of D compiles a kernel there, so that the quick suite has processes too, as memory allows."""
    gpu, memory = torch.device("cuda"), [80 * 2**30]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (memory[0], memory[0]))
    assert worker_pool.processes(1600, gpu) == 1  # a script would be imported anew
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="specbench.__main__"))
    assert worker_pool.processes(1600, gpu) == 16
    memory[0] = 2 * worker_pool.MEMORY_EACH
    assert worker_pool.processes(1600, gpu) == 2


def squared(i: int) -> tuple[int, int]:
    return i * i, os.getpid()


@pytest.mark.thorough
def test_spawned_processes_do_their_shares_and_what_cannot_be_pickled_is_done_here():
    results = list(in_order(squared, 7, 3, 0, spawned=squared))
    assert [square for square, _ in results] == [i * i for i in range(7)]
    assert len({pid for _, pid in results}) == 3

    def unknown_elsewhere(i: int) -> tuple[int, int]:
        return squared(i)

    results = list(in_order(squared, 5, 3, 0, spawned=unknown_elsewhere))
    assert {pid for _, pid in results} == {os.getpid()}
