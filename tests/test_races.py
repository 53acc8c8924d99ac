"""Kernels without races, and small ones with some, which tests/races.py finds in the interpreter's own order."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterError

from specbench.kernels import launch
from specbench.sampling import where
from specbench.types import Draft
from specbench.verifiers.fused import FusedVerifier
from tests.kernel_cases import CASES, RULES, assert_agrees, step
from tests.races import Race, no_races
from tests.schedules import Uniform
from tests.test_pending import EVERY, case_of
from tests.turns import scheduled

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.skipif(not launch.INTERPRETED, reason="compiled kernels are not watched"),
]


@triton.jit
def handing_kernel(done, found, LEAVES: tl.constexpr, TAKES: tl.constexpr):
    """Program 0 hands a number to program 1."""
    if tl.program_id(0) == 0:
        tl.store(found, 7)
        tl.atomic_xchg(done, 1, sem=LEAVES)
    else:
        while tl.atomic_add(done, 0, sem=TAKES) == 0:
            pass
        tl.store(found + 1, tl.load(found))


@triton.jit
def through_kernel(done, found):
    """Program 0 hands a number to program 2, by way of program 1, which does not look at it."""
    own = tl.program_id(0)
    if own == 0:
        tl.store(found, 7)
    else:
        while tl.atomic_add(done + own, 0, sem="acquire") == 0:
            pass
    if own == 2:
        tl.store(found + 1, tl.load(found))
    tl.atomic_xchg(done + own + 1, 1, sem="release")


@triton.jit
def counting_kernel(counter, ATOMIC: tl.constexpr, RESETS: tl.constexpr):
    """Each program adds 1; the last may set the counter back, though nothing says that the others are through."""
    if ATOMIC:
        tl.atomic_add(counter, 1, sem="relaxed")
    else:
        tl.store(counter, tl.load(counter) + 1)
    if RESETS & (tl.program_id(0) == tl.num_programs(0) - 1):
        tl.store(counter, 0)


@triton.jit
def own_kernel(found, SHARED: tl.constexpr):
    """Each program writes elements of its own; all but SHARED of them."""
    tl.store(found + tl.program_id(0) * (4 - SHARED) + tl.arange(0, 4), 1)


def zeros() -> torch.Tensor:
    return torch.zeros(16, dtype=torch.int32)


@pytest.mark.parametrize("leaves", ["release", "relaxed", "acq_rel"])
@pytest.mark.parametrize("takes", ["acquire", "relaxed", "acq_rel"])
def test_an_atomic_orders_what_release_and_acquire_say(leaves, takes):
    done, found = zeros(), zeros()
    if "relaxed" in (leaves, takes):
        refused = pytest.raises(Race, match="program 1 reads, and program 0 writes in the same place")
        with refused, no_races(), scheduled(Uniform(0), 2):
            handing_kernel[(2,)](done, found, LEAVES=leaves, TAKES=takes)
    else:
        with no_races():
            handing_kernel[(2,)](done, found, LEAVES=leaves, TAKES=takes)
        assert found[1] == 7


def test_an_order_is_handed_on():
    with no_races():
        through_kernel[(3,)](zeros(), zeros())


def test_counting_and_setting_back():
    """The second is what went wrong where nothing was drafted: right or wrong, as programs happen to run."""
    with no_races():
        counting_kernel[(3,)](zeros(), ATOMIC=True, RESETS=False)
    for atomic, resets in ((True, True), (False, False)):
        with pytest.raises(InterpreterError, match="Race"), no_races():
            counting_kernel[(3,)](zeros(), ATOMIC=atomic, RESETS=resets)


def test_elements_of_their_own():
    """Side by side, and where a vector begins in another's; and the next launch comes after this one."""
    with no_races():
        own_kernel[(4,)](found := zeros(), SHARED=0)
        own_kernel[(4,)](found, SHARED=0)
        own_kernel[(1,)](found, SHARED=0)
    with pytest.raises(InterpreterError, match="program 1 writes, and program 0 writes"), no_races():
        own_kernel[(4,)](zeros(), SHARED=1)


@RULES
@pytest.mark.parametrize("name", ["ragged", "mixed", "rows apart, not known", "one-hot"])
def test_verification(name, block, monkeypatch):
    """Also in the memory that an earlier launch left."""
    for constant, value in {"TILE": 512, "SCORE_CHUNK": 2, "EMIT_CHUNK": 1, "LAG": 1}.items():
        monkeypatch.setattr(launch, constant, value)
    verifier, arguments = FusedVerifier(block=block), step(CASES[name], 0)
    with no_races():
        verifier.verify(*arguments)
        got = verifier.verify(*arguments)
    assert_agrees(verifier.rule, arguments, got)


@RULES
@EVERY
def test_verification_of_rows_that_are_penalised_first(kind, block, monkeypatch):
    """Tallies, penalties and bans too: no two programs change a logit."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    monkeypatch.setattr(launch, "TILE", 256)
    case = case_of(kind)
    draft, target, streams = case.inputs()
    counts = torch.tensor([0, 2, 1])
    with no_races():
        FusedVerifier(block=block).verify(
            Draft(draft.token_ids, draft.rows, counts, draft.max_draft_tokens, padded=True), target, streams
        )
