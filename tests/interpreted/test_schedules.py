"""Kernels whose programs wait for one another, or elect a last one, in orders that a GPU may run their programs in.

Through the interpreter alone; turns.py says what it cannot show. Uninitialised memory is poisoned throughout.
"""

from collections.abc import Callable

import pytest
import torch

from specbench.core.types import Draft, Verification
from specbench.kernels import launch, launch_rows, launch_tally
from specbench.kernels.launch_product import counters, linear
from specbench.kernels.product_tiles import Tiles
from specbench.rules.fused import FusedVerifier
from specbench.sampling import RowParams, logit_rows, where
from tests.helpers.kernel_cases import GREEDY, RULES, WARM, Case, assert_agrees, step
from tests.helpers.shaped_cases import case_of
from tests.helpers.surroundings import Guarded
from tests.interpreted.races import no_races
from tests.interpreted.schedules import InOrder, orders
from tests.interpreted.turns import scheduled

pytestmark = [
    pytest.mark.usefixtures("poison", "many_programs"),
    pytest.mark.skipif(not launch.INTERPRETED, reason="a GPU chooses the order by itself"),
]
V = 300  # two tiles
# Two steps of the same requests each, with seeds by which some tokens are refused.
FEW = [
    (Case([2, 0], V, "the second drafts nothing"), 4),
    (Case([0, 1], V, "nor does the first, a step later", slack=1), 0),
]
MORE = [(Case([2, 0, 1], V, "as above"), 2), (Case([0, 2, 1], V, "among others"), 2)]


@pytest.fixture
def many_programs(monkeypatch):
    """Small tiles, one a program; requests are emitted one place apart from where they are scored."""
    for name, value in {"TILE": 256, "SCORE_CHUNK": 1, "EMIT_CHUNK": 1, "LAG": 1}.items():
        monkeypatch.setattr(launch, name, value)
    monkeypatch.setattr(launch_rows, "EMIT_CHUNK", 1)


def assert_same_in_every_order(
    launches: Callable[[], list[torch.Tensor]], seed: int, few: int = 3
) -> list[torch.Tensor]:
    """Launches give the same, bit for bit, and have no races; what they give in the order of indices."""
    with no_races(), scheduled(InOrder(), 1) as made:
        expected = launches()
    for schedule, resident in orders(made, seed, few):
        with scheduled(schedule, resident):
            for one, two in zip(launches(), expected, strict=True):
                assert torch.equal(one, two)
    return expected


def verifies_alike(block: bool, cases: list[tuple[Case, int]], seed: int, few: int = 3) -> None:
    """One step after another, each in the memory that the last one left."""
    steps = [step(*case) for case in cases]

    def launches():
        verifier, outputs = FusedVerifier(block=block), []
        verifier._workspace = memory = Guarded()
        for arguments in steps:
            got = verifier.verify(*arguments)
            memory.assert_counters_are_0()
            outputs += [got.token_ids, got.num_accepted]
        return outputs

    expected = assert_same_in_every_order(launches, seed, few)
    for arguments, *outputs in zip(steps, expected[::2], expected[1::2], strict=True):
        assert_agrees("block" if block else "token", arguments, Verification(*outputs))
        assert (outputs[1] < arguments[0].num_draft_tokens).any(), "else no residual is drawn from"


@pytest.mark.thorough
def test_verification_by_the_token_rule():
    verifies_alike(False, FEW, seed=0)


def test_verification_by_the_block_rule(monkeypatch):
    """Where the residual masses decide, a row has emitting programs for each drafted token: here one."""
    monkeypatch.setattr(launch, "TILE", 512)
    verifies_alike(True, FEW, seed=1)


@pytest.mark.long
@RULES
@pytest.mark.parametrize("seed", [2, 3])
def test_verification_of_more_requests(block, seed):
    verifies_alike(block, MORE, seed, few=10)


@pytest.mark.thorough
def test_verification_of_rows_that_are_penalised_first(monkeypatch):
    """A row that is scored or drawn from too early is not yet what it will be."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    monkeypatch.setattr(launch, "TILE", 512)
    monkeypatch.setattr(launch_tally, "MAX_PARTS", 1)
    case = case_of("penalties", batch_size=2)

    def launches():
        verifier, outputs = FusedVerifier(block=True), []
        verifier._workspace = memory = Guarded()
        for counts in (torch.tensor([0, 2]), torch.tensor([1, 0])):
            case.restore()
            draft, target, streams = case.inputs()
            padded = Draft(draft.token_ids, draft.rows, counts, draft.max_draft_tokens, padded=True)
            got = verifier.verify(padded, target, streams)
            memory.assert_counters_are_0()
            outputs += [got.token_ids, got.num_accepted, case.target_logits.clone()]
        return outputs

    expected = assert_same_in_every_order(launches, seed=4)
    assert torch.equal(expected[2], case.shaped_before.target_logits)


def test_sampling():
    generator = torch.Generator().manual_seed(0)
    logits, u = torch.randn((3, 600), generator=generator), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    rows = logit_rows(logits, RowParams.of([WARM, GREEDY, WARM], logits.device))

    def launches():
        memory = Guarded()
        tokens = launch_rows.sample(rows, u, memory)
        memory.assert_counters_are_0()
        tokens += launch_rows.sample(rows, 1 - u, memory)
        memory.assert_counters_are_0()
        return list(tokens)

    expected = assert_same_in_every_order(launches, seed=5)
    assert not torch.equal(expected[0], expected[2])


@pytest.mark.parametrize("rows", [1, 3])
def test_products_in_parts(rows):
    """Twice with the same counters."""
    generator = torch.Generator().manual_seed(0)
    x, weight, more = (torch.randn((n, 264), generator=generator) for n in (rows, 24, rows))

    def launches():
        zeros = counters(weight)
        products = [linear(inputs, weight, None, zeros, shared=Tiles(16, 128, 2, 4, 3)) for inputs in (x, more)]
        return [*products, zeros]

    first, second, zeros = assert_same_in_every_order(launches, seed=6)
    torch.testing.assert_close(first, x @ weight.T)
    torch.testing.assert_close(second, more @ weight.T)
    assert not zeros.any()
