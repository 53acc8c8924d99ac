"""The draws of kernels/cpu_rows.cpp are those of the plain sampler, which they replace in a compiled step."""

import math

import pytest
import torch

from specbench.core.types import PADDING, LogitRows
from specbench.kernels import cpu_product, cpu_rows
from specbench.sampling import draw, inverse_cdf, normalized


@pytest.fixture(autouse=True)
def library():
    cpu_product.load()


def compare(rows, u):
    plain_tokens, plain = draw(rows, u)
    with cpu_rows.drawing():
        assert cpu_rows.takes(rows)
        tokens, own = draw(rows, u)
        again = normalized(rows)
    assert torch.equal(tokens, plain_tokens)
    for known in (own, again):
        torch.testing.assert_close(known.log_normalizer, plain.log_normalizer, rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 4096), (5, 4096), (3, 17), (2, 1), (64, 33)])
@pytest.mark.parametrize("scale", [1, 10, 100])
def test_draws_are_those_of_the_plain_sampler(rows, vocabulary, scale):
    """Rows and uniforms at any stride, greedy rows among the others, with and without a cutoff."""
    generator = torch.Generator().manual_seed(scale)
    logits = (torch.randn(rows, vocabulary + 3, generator=generator) * scale)[:, :vocabulary]
    temperature = torch.rand(rows, generator=generator, dtype=torch.float64) * 2 + 0.01
    temperature[::3] = 0
    for cutoff in (torch.full_like(temperature, -math.inf), logits.double().quantile(0.7, dim=1)):
        for _ in range(20):
            u = torch.rand(rows, 2, generator=generator, dtype=torch.float64)[:, 1]
            compare(LogitRows(logits, temperature, cutoff, None), u)


def test_banned_tokens_are_never_drawn():
    logits = torch.full((4, 40), -math.inf)
    logits[:, 7], logits[:, 30] = -900.0, 2.0  # the weight of token 7 is 0 beside that of 30
    ones, u = torch.ones(4, dtype=torch.float64), torch.tensor([1e-300, 0.3, 0.9, 1 - 2**-53], dtype=torch.float64)
    compare(LogitRows(logits, ones, -math.inf * ones, None), u)
    with cpu_rows.drawing():
        assert draw(LogitRows(logits, ones, -math.inf * ones, None), u)[0].tolist() == [30] * 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_cannot_be_sampled_have_no_token(value):
    logits = torch.zeros(3, 20)
    logits[0, 19], logits[2] = value, -math.inf
    ones = torch.ones(3, dtype=torch.float64)
    with cpu_rows.drawing():
        tokens, rows = draw(LogitRows(logits, ones, -math.inf * ones, None), ones / 2)
    assert tokens.tolist() == [PADDING, 10, PADDING]
    assert rows.finite().tolist() == [False, True, False]


def test_an_index_is_that_of_the_plain_twin():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(50, 99, generator=generator, dtype=torch.float64)
    weights[weights < 0.5] = 0
    weights[0], weights[1, 3] = 0, math.nan
    for _ in range(20):
        u = torch.rand(50, generator=generator, dtype=torch.float64)
        with cpu_rows.drawing():
            assert cpu_rows.takes_weights(weights)
            own = inverse_cdf(weights, u)
        assert torch.equal(own, inverse_cdf(weights, u))


def test_nothing_draws_by_the_library_outside():
    rows = LogitRows(torch.zeros(1, 8), *(torch.ones(1, dtype=torch.float64),) * 2, None)
    assert not cpu_rows.takes(rows)
