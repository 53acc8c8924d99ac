"""The operations of kernels/cpu_rows.cpp give what their plain twins do, which they replace in a compiled step."""

import dataclasses
import math

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.decoding.commit import _written
from specbench.kernels import cpu_product, cpu_rows
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import draw, inverse_cdf, normalized, streams_of
from specbench.sampling.batch import FULL, RUNNING


@pytest.fixture(autouse=True)
def library():
    cpu_product.load()


def compare(rows, u):
    plain_tokens, plain = draw(rows, u)
    with cpu_rows.drawing():
        assert cpu_rows.takes(rows)
        tokens, kernel_rows = draw(rows, u)
        again = normalized(rows)
    assert torch.equal(tokens, plain_tokens)
    for result in (kernel_rows, again):
        torch.testing.assert_close(result.log_normalizer, plain.log_normalizer, rtol=1e-14, atol=1e-13)


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
            indices = inverse_cdf(weights, u)
        assert torch.equal(indices, inverse_cdf(weights, u))


def test_nothing_draws_by_the_library_outside():
    rows = LogitRows(torch.zeros(1, 8), *(torch.ones(1, dtype=torch.float64),) * 2, None)
    assert not cpu_rows.takes(rows)


def test_uniforms_are_those_of_the_plain_streams():
    seeds = torch.tensor([0, 1, 2**63 - 1, 2**40 + 5, -3])
    positions = torch.tensor([0, 7, 2**32 - 1, 2**32, 123456])
    with cpu_rows.drawing():
        streams = streams_of(seeds, positions, 9)
    assert streams.made is not None
    assert torch.equal(streams.made, Streams(seeds, positions, 9)._table)


def rows_of(logits, generator, greedy):
    n = len(logits)
    temperature = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
    temperature[greedy.repeat_interleave(n // len(greedy))] = 0
    cutoff = torch.where(torch.rand(n, generator=generator) < 0.5, -math.inf, logits.double().quantile(0.3, dim=1))
    cutoff = cutoff.masked_fill(logits.amax(dim=1) == -math.inf, -math.inf)
    rows = LogitRows(logits, temperature, cutoff, None)
    return LogitRows(logits, temperature, cutoff, rows.normalizer)


@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockVerifier()])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_rule_of_chains_is_that_of_the_plain_verifier(sampled, verifier):
    """Drafts of all lengths with and without q; equal rows, greedy requests, cutoffs, rows with NaN or only -inf."""
    generator, requests, width, vocabulary = torch.Generator().manual_seed(1), 7, 4, 23
    accepted = []
    for case in range(60):
        q_logits = torch.randn(requests * width, vocabulary, generator=generator)
        noise = torch.randn(requests, width + 1, vocabulary, generator=generator) * (case % 3)
        p_logits = torch.nn.functional.pad(q_logits.view(requests, width, vocabulary), (0, 0, 0, 1)) + noise
        if case % 10 == 9:
            p_logits[2, 1, 5] = math.nan
        if case % 10 == 8:  # of a greedy request and of a random one
            p_logits[3, :2], p_logits[4, :2] = -math.inf, -math.inf
        greedy = torch.arange(requests) % 3 == 0
        q, p = (rows_of(logits.reshape(-1, vocabulary), generator, greedy) for logits in (q_logits, p_logits))
        if case % 10 == 7:  # less than q everywhere: nothing is left of p - q
            p = dataclasses.replace(p, log_normalizer=p.log_normalizer + 1)
        drafted = draw(q, torch.rand(len(q), generator=generator, dtype=torch.float64))[0]
        counts = torch.randint(0, width + 1, (requests,), generator=generator)
        draft = Draft(drafted, q if sampled else None, counts, width, padded=True)
        streams = Streams(torch.arange(requests) + case, torch.arange(requests), width + 1)
        plain = verifier.verify(draft, p, streams)
        with cpu_rows.drawing():
            assert cpu_rows.takes_rule(draft, p)
            result = verifier.verify(draft, p, streams)
        assert torch.equal(result.num_accepted, plain.num_accepted)
        assert torch.equal(result.token_ids, plain.token_ids)
        accepted += result.num_accepted.tolist()
    assert set(accepted) == set(range(width + 1))


@pytest.mark.parametrize("sampled", [True, False])
def test_the_token_rule_on_trees_is_that_of_the_plain_verifier(sampled):
    """Wide and deep trees, cut at any token; q that equals p and q that does not, greedy requests, cutoffs, NaN."""
    generator, requests, width, vocabulary = torch.Generator().manual_seed(3), 7, 8, 11
    accepted, tried_later = [], 0
    for case in range(80):
        low = -1 if case % 2 else torch.arange(width) - 3  # of a wide tree, and of a deep one
        chance = torch.rand(requests, width, generator=generator)
        parents = (low + (chance * (torch.arange(width) - low)).long()).clamp(min=-1)
        p_logits = torch.randn(requests, width + 1, vocabulary, generator=generator)
        noise = torch.randn(requests, width, vocabulary, generator=generator) * (case % 3)
        q_logits = p_logits[torch.arange(requests)[:, None], parents + 1] + noise
        if case % 10 == 9:
            p_logits[2, 1, 5], p_logits[4, 0, 3] = math.nan, math.nan
        greedy = torch.arange(requests) % 3 == 0
        q, p = (rows_of(logits.reshape(-1, vocabulary), generator, greedy) for logits in (q_logits, p_logits))
        drafted = draw(q, torch.rand(len(q), generator=generator, dtype=torch.float64))[0]
        counts = torch.randint(0, width + 1, (requests,), generator=generator)
        draft = Draft(drafted, q if sampled else None, counts, width, True, parents.flatten(), width)
        streams = Streams(torch.arange(requests) + case, torch.arange(requests), width + 1)
        plain = TreeVerifier().verify(draft, p, streams)
        with cpu_rows.drawing():
            assert cpu_rows.takes_rule(draft, p, trees=True)
            assert not cpu_rows.takes_rule(draft, p)
            result = TreeVerifier().verify(draft, p, streams)
            with pytest.raises(ArgumentError, match="a tree; this verifier takes chains alone"):
                MaskedVerifier().verify(draft, p, streams)
        assert torch.equal(result.token_ids, plain.token_ids)
        assert torch.equal(result.num_accepted, plain.num_accepted)
        assert torch.equal(result.path, plain.path)
        accepted += result.num_accepted.tolist()
        earlier = (parents[:, :, None] == parents[:, None]) & torch.ones(width, width, dtype=torch.bool).tril(-1)
        tried_later += int((earlier.any(dim=2).gather(1, result.path.clamp(min=0)) & (result.path >= 0)).sum())
    assert {0, 1, 2, 3} <= set(accepted)
    assert tried_later > 20  # accepted tokens whose earlier sibling was refused


def test_a_path_of_more_tokens_than_depth_is_refused():
    """It would be written behind the end of its memory."""
    rows = LogitRows(torch.zeros(4, 5), *(torch.zeros(4, dtype=torch.float64),) * 3)  # greedy: token 0 is accepted
    draft = Draft(torch.zeros(3).long(), None, torch.tensor([3]), 3, True, torch.tensor([-1, 0, 1]), 2)
    streams = Streams(torch.tensor([0]), torch.tensor([0]), 4)
    with cpu_rows.drawing(), pytest.raises(ArgumentError, match="a path of more tokens than depth"):
        TreeVerifier().verify(draft, rows, streams)


@pytest.mark.parametrize(("drafted", "count"), [((0, 5), 2), ((-1, 0), 1), ((0, 0), 3)])
@pytest.mark.parametrize("verifier", [MaskedVerifier, TreeVerifier, BlockVerifier])
def test_a_draft_that_does_not_fit_is_refused(verifier, drafted, count):
    """Its rows would be read outside of their memory. An exception out of C++ ended the process on one machine."""
    rows = LogitRows(torch.zeros(3, 5), *(torch.zeros(3, dtype=torch.float64),) * 3)
    draft = Draft(torch.tensor(drafted), None, torch.tensor([count]), 2, True)
    streams = Streams(torch.tensor([0]), torch.tensor([0]), 3)
    with cpu_rows.drawing(), pytest.raises(ArgumentError, match="a token outside of the vocabulary, or more tokens"):
        verifier().verify(draft, rows, streams)


def test_a_batch_without_requests_is_left_to_the_plain_rule():
    """The library divides by their number, which would end the process."""
    none, nothing = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    draft = Draft(none, None, none, 2, padded=True)
    with cpu_rows.drawing():
        assert not cpu_rows.takes_rule(draft, LogitRows(torch.zeros(0, 5), nothing, nothing, nothing))


def test_a_block_is_written_as_the_plain_step_does():
    """Blocks with stop tokens, without a token, beyond the limit, with bad logits, and of requests that have ended."""
    generator, requests = torch.Generator().manual_seed(2), 400

    def integers(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    emitted = integers(9, requests, 5) - (integers(12, requests, 5) == 0).long() * 20
    emitted = torch.where(emitted < 0, PADDING, emitted)
    stop_ids = torch.where(integers(2, requests, 2) == 0, PADDING, integers(9, requests, 2))
    lengths, finished = integers(20, requests) + 1, torch.where(integers(5, requests) == 0, FULL, RUNNING)
    bad = (integers(9, requests) == 0).long()
    arguments = (integers(9, requests, 40), lengths, lengths + integers(8, requests), finished, stop_ids)
    before = [tensor.clone() for tensor in arguments]
    block = (emitted, integers(5, requests), bad)
    outputs, plain = cpu_rows.commit(*arguments, *block), _written(*arguments, *block)
    for mine, its in zip(outputs, plain, strict=True):
        assert torch.equal(mine, its)
    assert all(map(torch.equal, arguments, before))
    assert len(outputs[3].unique()) == 4
