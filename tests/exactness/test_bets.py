"""Bets hold whenever one looks, and see what they are for; counts of cells cover."""

import pytest
import torch
from scipy import stats

from specbench.exactness.inputs import Takes, draw_call
from specbench.exactness.statistics.bets import DifferenceBets
from specbench.exactness.statistics.cells import CELLS, NUMBERS, ORDERS, CellCounts, smooth, token_cells, transforms
from specbench.exactness.zoo import accept
from specbench.rules.token.masked import MaskedVerifier
from tests.exactness.test_inputs import BY_NAME
from tests.helpers.cases import CPU

pytestmark = pytest.mark.usefixtures("unchecked")
LARGE_BATCHES = BY_NAME["large batches"]


def test_difference_bets_are_fair_and_see_a_drift():
    """Differences of mean 0 that are skewed, 500 runs; and of mean 0.3 in one cell of 50."""
    rng = torch.Generator().manual_seed(1)
    ruined = 0
    for _ in range(500):
        bets = DifferenceBets(20, 1.0, CPU)
        for _ in range(10):
            rare = torch.rand((40, 20), generator=rng, dtype=torch.float64) < 0.1
            bets.add(torch.where(rare, 0.9, -0.1).double())
        ruined += bets.p_value < 0.01
    assert ruined < 20  # 5 by Ville's inequality; 20 or more has a chance below 1e-6
    bets = DifferenceBets(50, 1.0, CPU)
    differences = torch.where(torch.rand((400, 50), generator=rng) < 0.5, 1.0, -1.0).double()
    differences[:, 7] = torch.where(torch.rand(400, generator=rng) < 0.7, 1.0, -1.0).double()
    bets.add(differences)
    assert bets.p_value < 1e-4
    assert DifferenceBets(5, 1.0, CPU).p_value == 1.0


def counted(verifier, calls: int, seed: int = 0) -> tuple[CellCounts, torch.Tensor]:
    """Cells of the tokens of calls of D, and the values that they were made from."""
    counts, values = CellCounts(), []
    with torch.inference_mode():
        for number in range(calls):
            call = draw_call(seed, number, CPU, Takes.of(verifier), LARGE_BATCHES)
            result = verifier.verify(call.draft, call.target, call.streams)
            every = torch.arange(len(call.counts))
            counts.add(token_cells(call, result, every))
            transformed, there = transforms(call, result, every)
            values.append(transformed[there])
    return counts, torch.cat(values)


def test_values_of_sound_code_are_uniform_in_every_order():
    counts, values = counted(MaskedVerifier(), 40)
    assert counts.tokens == len(values) > 10_000
    for order in range(ORDERS):
        assert stats.kstest(values[:, order].numpy(), "uniform").pvalue > 1e-4
    assert counts.p_value > 1e-4
    assert counts.bound(0.99) < 0.1


def test_cells_see_what_favours_the_draft_and_their_bound_covers_it():
    fair, _ = counted(MaskedVerifier(), 10)
    wrong, values = counted(accept.AcceptsEverything(), 20)
    assert wrong.p_value < 1e-9
    cells = torch.stack([torch.histc(values[:, order].float(), CELLS, 0, 1) for order in range(ORDERS)]) / len(values)
    biased = float(0.5 * (cells - 1 / CELLS).abs().sum(dim=1).max())
    assert wrong.bound(0.99) > biased > fair.bound(0.99) / 10


def test_bets_on_sound_requests_are_fair():
    """40 runs: a p-value below 0.01 has a probability of at most 1% in each; 7 or more of them below 1e-6."""
    small = sum(counted(MaskedVerifier(), 2, seed)[0].p_value < 0.01 for seed in range(40))
    assert small < 7


def test_smooth_numbers_are_bounded_and_bands_are_means():
    call = draw_call(3, 5, CPU, Takes(), LARGE_BATCHES)
    result = MaskedVerifier().verify(call.draft, call.target, call.streams)
    numbers = smooth(call, result, torch.arange(len(call.counts)))
    assert numbers.shape == (len(call.counts), NUMBERS)
    assert numbers.abs().max() <= 1
    band = NUMBERS // 5
    assert (numbers[call.counts == 0, band:] == 0).all()
    assert (numbers[:, :band] != 0).all()
