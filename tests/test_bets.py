"""Bets hold whenever one looks, and see what they are for; bounds by classes of ids cover."""

import numpy as np
import pytest
import torch

from specbench.exactness.fixtures import Regime
from specbench.exactness.statistics.bets import ClassBets, DifferenceBets
from specbench.exactness.statistics.partitions import NAMED_CLASSES, NAMED_SIZES, Partitions
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import request_streams
from specbench.exactness.zoo import accept, residual
from specbench.types import PADDING
from specbench.verifiers.masked import MaskedVerifier
from tests.cases import CPU


def test_class_bets_are_fair_at_every_look():
    """2,000 runs of sound draws, looked at 20 times each: wealth above 100 in at most 1% of them (Ville).

    3% or more would be a false alarm thrice as high as stated; the chance of that under 1% is below 1e-12.
    """
    rng = np.random.default_rng(0)
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.01, 0.09, 0.9]], dtype=torch.float64)
    ruined = 0
    for _ in range(2000):
        bets, counts = ClassBets(probs), torch.zeros((2, 3), dtype=torch.int64)
        for _ in range(20):
            counts += torch.from_numpy(np.stack([rng.multinomial(30, row / row.sum()) for row in probs.numpy()]))
            bets.look(counts, counts.sum(dim=1))
        ruined += bets.p_value < 0.01
    assert ruined < 60


def test_class_bets_see_a_bias_and_keep_what_they_saw():
    probs = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    bets = ClassBets(probs)
    bets.look(torch.tensor([[5500, 4500]]), torch.tensor([10_000]))
    found = bets.p_value
    assert found < 1e-15
    bets.look(torch.tensor([[50_000, 50_000]]), torch.tensor([100_000]))
    assert bets.p_value == found  # wealth was there, whatever became of it


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
    found = torch.where(torch.rand((400, 50), generator=rng) < 0.5, 1.0, -1.0).double()
    found[:, 7] = torch.where(torch.rand(400, generator=rng) < 0.7, 1.0, -1.0).double()
    bets.add(found)
    assert bets.p_value < 1e-4
    assert DifferenceBets(5, 1.0, CPU).p_value == 1.0


def counted(verifier, fixture, requests: int, seed: int = 0) -> Partitions:
    partitions, done = Partitions(fixture, 3), 0
    while done < requests:
        size = min(500, requests - done)
        streams = request_streams(seed, done, size, fixture.gamma + 1, CPU)
        partitions.add(verified_steps(verifier, fixture, streams))
        done += size
    return partitions


@pytest.fixture(scope="module")
def regime():
    return Regime("made", "for this test", 3001, gamma=2).fixture()


def test_classes_are_partitions_of_the_target(regime):
    partitions = Partitions(regime, 3)
    first = 0
    for size in partitions.sizes:
        part = partitions.probs[:, first : first + size]
        assert part.sum(dim=1).numpy() == pytest.approx(1)
        assert (part > 0).sum() > part.numel() / 2
        first += size
    by_p, by_ratio = partitions.probs[:, :8], partitions.probs[: len(regime.q), 16:24]
    assert min(by_p.median(), by_ratio.median()) > 0.03  # about equal mass, but for tokens that have more by themselves
    assert sum(NAMED_SIZES) == NAMED_CLASSES


def test_classes_see_what_favours_the_draft_and_not_sound_code(regime):
    assert counted(MaskedVerifier(), regime, 3000).p_value > 1e-4
    assert counted(residual.TargetResidual(), regime, 3000).p_value < 1e-9
    assert counted(accept.AcceptsEverything(), regime, 1000).p_value < 1e-9


def test_upper_bounds_cover_and_shrink(regime):
    """The coarse bias of code that accepts everything, known from the tables, is below its bound; so is that of all."""
    few, many = (counted(MaskedVerifier(), regime, n).upper_bounds(0.99) for n in (500, 8000))
    assert all(late < early or early == 1 for late, early in zip(many, few, strict=True))
    assert many[0] < 0.1
    wrong = counted(accept.AcceptsEverything(), regime, 4000)
    along, _, anywhere = wrong.upper_bounds(0.99)
    p, q = regime.p[: len(regime.q)], regime.q
    drafted = 0.5 * (p - q).abs().sum(dim=1)  # of the first two tokens of each step; the third is the target's
    reached = wrong.reached[: len(q)].double()
    mean = float((drafted * reached).sum() / wrong.reached.sum())
    assert anywhere > mean
    assert along > 0.5 * mean  # by p / q the classes see most of it


def test_excess_of_a_request_is_its_tokens_less_what_the_target_has(regime):
    partitions = Partitions(regime, 3)
    tokens = torch.tensor([[5, 7, PADDING], [9, PADDING, PADDING]])
    excess = partitions.excess(torch.zeros(2, dtype=torch.int64), tokens)
    assert excess.shape == (2, 3, NAMED_CLASSES)
    assert (excess[0, 2] == 0).all()
    assert (excess[1, 1:] == 0).all()
    for i, token in ((0, 5), (1, 7)):
        assert excess[0, i].sum() == pytest.approx(0, abs=1e-12)
        lanes = excess[0, i, NAMED_CLASSES - 32 :]
        assert int(lanes.argmax()) == token % 32
    assert excess.abs().max() <= 1
