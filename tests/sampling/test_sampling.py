"""Sampling parameters and LogitRows, against transformers' own processors and by hand."""

import math

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specbench.core.errors import ConfigError
from specbench.sampling import RowParams, SamplingParams, inverse_cdf, logit_rows, sample

ALL = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=0.8, top_k=7),
    SamplingParams(temperature=1.4, top_p=0.75),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02),
    SamplingParams(top_k=1000, top_p=1.0),
    SamplingParams(top_k=-1, top_p=0.01),
]


def processed_by_transformers(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    scores = TemperatureLogitsWarper(params.temperature)(None, logits)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    return scores.softmax(-1)


@pytest.mark.parametrize("params", ALL, ids=str)
def test_probs_match_transformers(params):
    logits = torch.randn(40, 97, dtype=torch.float64) * 3
    rows = logit_rows(logits, RowParams.of([params] * 40))
    torch.testing.assert_close(rows.probs(), processed_by_transformers(logits, params), rtol=1e-9, atol=1e-12)


def test_rows_of_one_batch_keep_their_own_parameters():
    logits = torch.randn(len(ALL), 50)
    together = logit_rows(logits, RowParams.of(ALL)).probs()
    for i, params in enumerate(ALL):
        torch.testing.assert_close(together[i : i + 1], logit_rows(logits[i : i + 1], RowParams.of([params])).probs())


def test_prob_is_the_dense_entry():
    logits = torch.randn(len(ALL) + 1, 50)
    rows = logit_rows(logits, RowParams.of([*ALL, SamplingParams(temperature=0.0)]))
    for token in (0, 13, int(logits[-1].argmax())):
        tokens = torch.full((len(rows),), token)
        torch.testing.assert_close(rows.prob(tokens), rows.probs()[:, token])


def test_greedy_takes_the_lowest_index_on_ties():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    rows = logit_rows(logits, RowParams.of([SamplingParams(temperature=0.0)]))
    assert rows.probs().tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert sample(rows, torch.tensor([0.999], dtype=torch.float64)).tolist() == [1]


def test_ties_with_the_cutoff_are_kept():
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    rows = logit_rows(logits, RowParams.of([SamplingParams(top_k=2)]))
    assert (rows.probs() > 0).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("params", ALL, ids=str)
def test_probs_sum_to_one_and_logits_are_not_touched(params, dtype):
    logits = (torch.randn(5, 300) * 4).to(dtype)
    before = logits.clone()
    sums = logit_rows(logits, RowParams.of([params] * 5)).probs().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert torch.equal(before, logits)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [*ALL, SamplingParams(temperature=0.0)], ids=str)
def test_bad_logits_are_visible(params, bad):
    logits = torch.randn(3, 20)
    logits[1, 4] = bad
    assert logit_rows(logits, RowParams.of([params] * 3)).finite().tolist() == [True, False, True]


def test_inverse_cdf_inverts_at_the_thresholds():
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]], dtype=torch.float64)
    for u, token in ((1e-300, 1), (0.2499, 1), (0.25, 3), (0.2501, 3), (1 - 2**-53, 3)):
        assert inverse_cdf(weights, torch.tensor([u], dtype=torch.float64)).tolist() == [token], u


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", 1e-9),
        ("temperature", 10**400),
        ("repetition_penalty", 1e-300),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("top_k", True),
        ("logit_bias", ""),
        ("logit_bias", {True: 2.0}),
        ("logit_bias", {1: 10**400}),
        ("processors", 5),
        ("processors", torch.tensor(2)),
        ("stop_token_ids", torch.tensor(2)),
        ("allowed_token_ids", np.array(2)),
        ("allowed_token_ids", b"a"),
        ("logit_bias", {1.7: 2.0}),
        ("logit_bias", {"1": 2.0, 1: 3.0}),
        ("logit_bias", [(1, 2.0), (1, 3.0)]),
        ("structured_outputs", {"regex": ["a"]}),
        ("structured_outputs", {"grammar": {"root": "a"}}),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_parameters_name_the_argument_or_the_key(key, value):
    with pytest.raises(ConfigError, match=rf"^{key}=.*\. [A-Z]"):
        SamplingParams(**{key: value})
    with pytest.raises(ConfigError, match=rf"^sampler\.{key}=.*\. [A-Z]") as raised:
        SamplingParams.from_mapping({key: value})
    assert raised.value.key == f"sampler.{key}"
