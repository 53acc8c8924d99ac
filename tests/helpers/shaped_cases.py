"""Steps of a benchmark whose sampler penalises, biases or bans tokens."""

import dataclasses

import pytest

from specbench.benchmark.synthetic import Case, make_case
from specbench.sampling import SamplingParams
from tests.helpers.cases import BASE
from tests.helpers.kernel_cases import DEVICE

PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.3}
BANS = {"bad_words": ["stop", "never again", "as an assistant"], "min_tokens": 99}
KINDS = {
    "penalties": PENALTIES,
    "biases and bans": {"logit_bias": {0: 2.0, 1: -3.0, 290: 4.0}, **BANS},
    "bans": BANS,
    "all": {**PENALTIES, **BANS, "logit_bias": {3: 1.0, 290: 4.0}, "allowed_token_ids": list(range(0, 300, 3))},
}
EVERY = pytest.mark.parametrize("kind", KINDS)


def case_of(kind: str, **changes: object) -> Case:
    sampling = SamplingParams.from_mapping(KINDS[kind], temperature=0.8)
    few = {"batch_size": 3, "vocabulary": 300, "gamma": 2, "context": 24, "dtype": "float32"}
    return make_case(dataclasses.replace(BASE, sampler=kind, sampling=sampling, **{**few, **changes}), 0, 0, DEVICE)
