"""Acceptance by coin: at the rates that were asked for, whatever was drafted, and never called real."""

import math

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows
from specbench.decoding import check_fit
from specbench.drafters.synthetic import SyntheticDrafter
from specbench.rules.synthetic import SyntheticVerifier, rate_for
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import capabilities
from tests.helpers.cases import decoder

BLOCKS = 40_000


def accepted(verifier, count):
    """Tokens accepted of many blocks of ``count`` tokens, all of which the target forbids."""
    counts = torch.full((BLOCKS,), count)
    logits = torch.tensor([[0.0, 1.0, -torch.inf]]).expand(BLOCKS * (count + 1), 3)
    ones, none = torch.ones(len(logits)), torch.full((len(logits),), -torch.inf)
    target = LogitRows(logits, ones, none, logits.double().logsumexp(dim=-1))
    drafted = torch.full((BLOCKS * count,), 2)
    streams = Streams(torch.arange(BLOCKS), torch.full((BLOCKS,), 5), count + 1)
    result = verifier.verify(Draft(drafted, None, counts, count), target, streams)
    behind = result.token_ids.gather(1, result.num_accepted[:, None])
    assert set(behind.flatten().tolist()) == {0, 1}  # the target's own
    return result.num_accepted.double()


@pytest.mark.parametrize(("length", "gamma"), [(1, 3), (1.7, 1), (2.5, 3), (3.9, 3), (4, 3), (3.0, 8)])
def test_the_length_that_was_asked_for(length, gamma):
    """6 standard errors: a false alarm in 5e8. A length off by 0.05 is 3 or more of them further."""
    counts = accepted(SyntheticVerifier(acceptance_length=length), gamma)
    error = float(counts.std()) / math.sqrt(BLOCKS)
    assert float(counts.mean()) + 1 == pytest.approx(length, abs=6 * error + 1e-12)


def test_the_rates_that_were_asked_for_by_place():
    rates = [0.9, 0.5, 0.2, 0.2]
    counts = accepted(SyntheticVerifier(acceptance_rate=[0.9, 0.5, 0.2]), 4)
    for place, rate in enumerate(rates):
        reached = counts[counts >= place]
        error = math.sqrt(rate * (1 - rate) / len(reached))
        assert float((reached > place).double().mean()) == pytest.approx(rate, abs=6 * error)


@pytest.mark.parametrize(
    ("length", "count", "expected"), [(1.5, 1, 0.5), (1.75, 2, 0.5), (3.0, 2, 1.0), (9.0, 2, 1.0), (1.0, 0, 1.0)]
)
def test_the_rate_of_a_length(length, count, expected):
    assert rate_for(length, count) == pytest.approx(expected)


def test_no_stop_token_is_drafted(toy):
    drafter = SyntheticDrafter().bind(toy, decoder(toy, 0).components.target)
    assert not toy.stop_ids & set(drafter._ids.tolist())
    assert len(drafter._ids) == toy.vocab_size - len(toy.stop_ids)


def test_it_says_that_it_is_not_real():
    assert not SyntheticVerifier().lossless
    assert capabilities(SyntheticVerifier()).synthetic
    assert not capabilities(MaskedVerifier()).synthetic


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"verifier=masked: .*verifier=synthetic"):
        check_fit(SyntheticDrafter(), MaskedVerifier(), 3)
    with pytest.raises(ConfigError, match=r"gamma=2: too few .* gamma=3 or more"):
        check_fit(SyntheticDrafter(), SyntheticVerifier(acceptance_length=3.5), 2)
    assert check_fit(SyntheticDrafter(), SyntheticVerifier(acceptance_length=3.5), 3) == 3


WRONG = {"acceptance_rate": [1.1, [], "half", [0.5, True]], "acceptance_length": [0.9, math.inf, "2"]}


@pytest.mark.parametrize(("name", "value"), [(name, wrong) for name, every in WRONG.items() for wrong in every])
def test_numbers_are_checked(name, value):
    with pytest.raises(ConfigError, match=rf"verifier\.{name}="):
        SyntheticVerifier(**{name: value})
