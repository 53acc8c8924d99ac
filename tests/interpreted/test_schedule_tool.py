"""Orders of programs (turns.py) of small kernels: they are what was asked for, and find what they should."""

import threading

import pytest
import torch
import triton
import triton.language as tl

from specbench.kernels import launch
from tests.interpreted.schedules import Delayed, Held, InOrder, Priorities, Uniform, orders
from tests.interpreted.test_races import handing_kernel
from tests.interpreted.turns import Schedule, Stuck, scheduled

pytestmark = pytest.mark.skipif(not launch.INTERPRETED, reason="a GPU chooses the order by itself")
PROGRAMS = 4
EVERY = pytest.mark.parametrize(
    "schedule",
    [InOrder(), Uniform(0), Delayed(0, 1, 1), Held(0, True), Held(0, False), Priorities(12, 2, 0)],
    ids=lambda schedule: type(schedule).__name__,
)


@triton.jit
def counting_kernel(counter, ATOMIC: tl.constexpr):
    """Each program adds 1. The sum is the number of programs if none comes between the read and write of another."""
    if ATOMIC:
        tl.atomic_add(counter, 1)
    else:
        tl.store(counter, tl.load(counter) + 1)


@triton.jit
def chain_kernel(done, FORWARD: tl.constexpr):
    """Each program waits for the one before it, or for the one behind it, and then lets others go on."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    other = program - 1 if FORWARD else program + 1
    if (other >= 0) & (other < programs):
        while tl.atomic_add(done + other, 0) == 0:
            pass
    tl.atomic_xchg(done + program, 1)


@triton.jit
def resetting_kernel(counter):
    """All but the last program add 1, and that one sets the counter to 0."""
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(counter, 0)
    else:
        tl.atomic_add(counter, 1)


@triton.jit
def rereading_kernel(number, out):
    """Program 0 reads twice what program 1 writes."""
    if tl.program_id(0) == 0:
        first = tl.load(number)
        tl.store(out, tl.load(number) - first)
    else:
        tl.store(number, 1)


@triton.jit
def ticket_kernel(counter, tickets):
    """Who takes its ticket when."""
    tl.store(tickets + tl.program_id(0), tl.atomic_add(counter, 1))


def zeros() -> torch.Tensor:
    return torch.zeros(PROGRAMS, dtype=torch.int32)


def tickets(schedule: Schedule, resident: int = PROGRAMS) -> list[int]:
    counter, out = zeros(), zeros()
    with scheduled(schedule, resident):
        ticket_kernel[(PROGRAMS,)](counter, out)
    return out.tolist()


def counted(schedule: Schedule, atomic: bool) -> int:
    counter = zeros()
    with scheduled(schedule, PROGRAMS):
        counting_kernel[(PROGRAMS,)](counter, ATOMIC=atomic)
    return int(counter[0])


def handed_over(schedule: Schedule, early: bool) -> int:
    done, out = zeros(), zeros()
    with scheduled(schedule, 2):
        handing_kernel[(2,)](done, out, LEAVES="release", TAKES="acquire", EARLY=early)
    return int(out[1])


@EVERY
def test_all_programs_run_whole(schedule):
    assert sorted(tickets(schedule)) == list(range(PROGRAMS))


def test_an_order_is_of_its_seed():
    assert tickets(Uniform(3)) == tickets(Uniform(3))
    assert len({tuple(tickets(Uniform(seed))) for seed in range(8)}) > 2


def test_a_program_begins_when_a_place_is_free():
    """With two resident, program i begins once i - 1 others have ended, all of which have tickets."""
    assert tickets(Uniform(0), resident=1) == list(range(PROGRAMS))
    met = [tickets(Uniform(seed), resident=2) for seed in range(8)]
    assert all(ticket >= i - 1 for order in met for i, ticket in enumerate(order))
    assert any(ticket < i for order in met for i, ticket in enumerate(order))


def test_one_that_is_delayed_comes_last():
    for index in range(PROGRAMS):
        assert tickets(Delayed(0, index, 0))[index] == PROGRAMS - 1


@pytest.mark.parametrize("falls", [None, 1, 2])
def test_a_count_that_is_read_and_then_written_is_lost(falls):
    """By some of a few orders, one after another aside; an atomic's never is."""
    counts = {}
    for atomic in (True, False):
        schedules = [Uniform(seed) if falls is None else Priorities(2 * PROGRAMS, falls, seed) for seed in range(8)]
        counts[atomic] = {counted(schedule, atomic) for schedule in schedules}
    assert counted(InOrder(), atomic=False) == PROGRAMS
    assert counts[True] == {PROGRAMS}
    assert min(counts[False]) < PROGRAMS


def test_what_is_published_too_early_is_read_too_early():
    """In the order of indices it is not, and one access is all there is between."""
    assert handed_over(InOrder(), early=True) == 7
    assert not any(handed_over(Held(seed, False), early=True) for seed in range(8))
    for schedule in (InOrder(), Held(0, True), Held(0, False), *map(Uniform, range(8))):
        assert handed_over(schedule, early=False) == 7


def test_what_is_counted_too_late_comes_last():
    """A reset does not wait for it, whatever the seed."""
    for seed in range(8):
        counter = zeros()
        with scheduled(Held(seed, True), PROGRAMS):
            resetting_kernel[(PROGRAMS,)](counter)
        assert counter[0] == PROGRAMS - 1


def test_who_is_delayed_after_an_access_has_made_it():
    """It read 0 before all others counted, and writes 1 after. Delayed before it reads, it finds what they counted."""
    assert min(counted(Delayed(seed, 0, 1), atomic=False) for seed in range(8)) == 1
    assert min(counted(Delayed(seed, 0, 0), atomic=False) for seed in range(8)) > 1


def test_a_load_is_a_turn_too():
    changes = set()
    for seed in range(8):
        out = zeros()
        with scheduled(Uniform(seed), 2):
            rereading_kernel[(2,)](zeros(), out)
        changes.add(int(out[0]))
    assert changes == {0, 1}


@EVERY
def test_who_waits_does_not_keep_others_from_going_on(schedule):
    """Whether for a lower index or a higher one, as long as all are resident."""
    for forward in (True, False):
        done = zeros()
        with scheduled(schedule, PROGRAMS):
            chain_kernel[(PROGRAMS,)](done, FORWARD=forward)
        assert done.all()


@EVERY
def test_a_launch_that_never_ends_is_an_error(schedule):
    """Waiting for a higher index, where not all are resident; no thread stays behind."""
    threads, done = threading.active_count(), zeros()
    with pytest.raises(Stuck, match=r"programs \[0, 1\] wait") as caught, scheduled(schedule, 2):
        chain_kernel[(PROGRAMS,)](done, FORWARD=False)
    assert f"Under {schedule}, 2 resident." in caught.value.__notes__
    assert threading.active_count() == threads
    with scheduled(schedule, 2):
        chain_kernel[(PROGRAMS,)](done, FORWARD=True)
    assert done.all()


def test_orders_are_of_every_kind_and_fit_the_launch():
    with scheduled(InOrder(), 1) as launches:
        ticket_kernel[(PROGRAMS,)](zeros(), zeros())
    kinds = {type(schedule) for schedule, _ in orders(launches, 0, 1)}
    assert kinds == {Uniform, Delayed, Held, Priorities}
