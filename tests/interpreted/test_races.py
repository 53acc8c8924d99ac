"""Kernels without races, and small ones with some, which races.py finds in the interpreter's own order."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterError

from specbench.core.types import Draft
from specbench.kernels import launch, launch_tally
from specbench.rules.fused import FusedVerifier
from specbench.sampling import where
from tests.helpers.kernel_cases import CASES, RULES, assert_agrees, step
from tests.helpers.shaped_cases import EVERY, case_of
from tests.interpreted.races import PAGE, no_races

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.skipif(not launch.INTERPRETED, reason="compiled kernels are not watched"),
]


@triton.jit
def handing_kernel(done, out, LEAVES: tl.constexpr, TAKES: tl.constexpr, EARLY: tl.constexpr):
    """Program 0 hands a number to program 1, and says so once it is there; or before, if EARLY."""
    if tl.program_id(0) == 0:
        if EARLY:
            tl.atomic_xchg(done, 1, sem=LEAVES)
        tl.store(out, 7)
        if not EARLY:
            tl.atomic_xchg(done, 1, sem=LEAVES)
    else:
        while tl.atomic_add(done, 0, sem=TAKES) == 0:
            pass
        tl.store(out + 1, tl.load(out))


@triton.jit
def through_kernel(done, out):
    """Program 0 hands a number to program 2, by way of program 1, which does not look at it."""
    program = tl.program_id(0)
    if program == 0:
        tl.store(out, 7)
    else:
        while tl.atomic_add(done + program, 0, sem="acquire") == 0:
            pass
    if program == 2:
        tl.store(out + 1, tl.load(out))
    tl.atomic_xchg(done + program + 1, 1, sem="release")


@triton.jit
def go(memory, KIND: tl.constexpr):
    if KIND == "load":
        tl.load(memory)
    elif KIND == "store":
        tl.store(memory, 0)
    else:
        tl.atomic_add(memory, 1, sem="relaxed")


@triton.jit
def pair_kernel(memory, FIRST: tl.constexpr, SECOND: tl.constexpr, APART: tl.constexpr):
    """Two programs go to memory, and say nothing to one another."""
    if tl.program_id(0) == 0:
        go(memory, FIRST)
    else:
        go(memory + APART, SECOND)


@triton.jit
def own_kernel(out, SHARED: tl.constexpr):
    """Each program writes elements of its own; all but SHARED of them."""
    tl.store(out + tl.program_id(0) * (4 - SHARED) + tl.arange(0, 4), 1)


def zeros() -> torch.Tensor:
    return torch.zeros(PAGE, dtype=torch.int32)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("leaves", ["release", "relaxed", "acq_rel"])
@pytest.mark.parametrize("takes", ["acquire", "relaxed", "acq_rel"])
def test_an_atomic_orders_what_release_and_acquire_say(leaves, takes, early):
    """What comes before the one and after the other; in the order of indices all of these go well."""
    out, how = zeros(), {"LEAVES": leaves, "TAKES": takes, "EARLY": early}
    if early or "relaxed" in (leaves, takes):
        refused = pytest.raises(InterpreterError, match="program 1 reads, and program 0 writes in the same place")
        with refused, no_races():
            handing_kernel[(2,)](zeros(), out, **how)
    else:
        with no_races():
            handing_kernel[(2,)](zeros(), out, **how)
        assert out[1] == 7


def test_an_order_is_handed_on():
    with no_races():
        through_kernel[(3,)](zeros(), zeros())


@pytest.mark.parametrize("first", ["load", "store", "atomic"])
@pytest.mark.parametrize("second", ["load", "store", "atomic"])
def test_one_of_two_writes_and_one_is_no_atomic(first, second):
    """A store beside an atomic is what went wrong where nothing was drafted. A page further on there is no conflict."""
    with no_races():
        pair_kernel[(2,)](zeros(), FIRST=first, SECOND=second, APART=PAGE // 4)
    if first == second != "store":
        with no_races():
            pair_kernel[(2,)](zeros(), FIRST=first, SECOND=second, APART=0)
    else:
        with pytest.raises(InterpreterError, match=r"Race\('program 1 .*, and program 0 "), no_races():
            pair_kernel[(2,)](zeros(), FIRST=first, SECOND=second, APART=0)


def test_elements_of_their_own():
    """Side by side, and where a vector begins in another's; and the next launch comes after this one."""
    with no_races():
        own_kernel[(4,)](out := zeros(), SHARED=0)
        own_kernel[(3,)](out[4:], SHARED=0)
    with pytest.raises(InterpreterError, match="program 1 writes, and program 0 writes"), no_races():
        own_kernel[(4,)](zeros(), SHARED=1)


@pytest.mark.cases(2, 4)
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


@EVERY
def test_verification_of_rows_that_are_penalised_first(kind, monkeypatch):
    """Tallies, penalties and bans too: no two programs change a logit."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    monkeypatch.setattr(launch, "TILE", 256)
    monkeypatch.setattr(launch_tally, "MAX_PARTS", 2)
    case = case_of(kind)
    draft, target, streams = case.inputs()
    counts = torch.tensor([0, 2, 1])
    padded = Draft(draft.token_ids, draft.rows, counts, draft.max_draft_tokens, padded=True)
    with no_races():
        FusedVerifier(block=True).verify(padded, target, streams)
