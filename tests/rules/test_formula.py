"""What the formulas of a user's rule do wrong is named by rule and formula."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from specbench.benchmark.floor import floor_bytes
from specbench.core.errors import ArgumentError, ConfigError
from specbench.exactness.enumeration.laws import rule_error
from specbench.replay.survival import survival
from specbench.rules.agreement import excess
from specbench.rules.law import emitted
from specbench.rules.rule import Rule
from specbench.rules.token.formulas import thresholds as THRESHOLDS
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.cases import FIXTURES, ragged_case
from tests.helpers.markov_pair import markov_pair, trace_of_tokens


def boom(*_):
    raise ValueError("my mistake")


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ({"thresholds": boom}, r"thresholds raised ValueError: my mistake \(.*test_formula\.py, line \d+\)\. Mend"),
        ({"thresholds": lambda path: None}, "thresholds returned None, a NoneType, not torch.float64 .* shape of path"),
        ({"thresholds": lambda path: 0.7}, "thresholds returned 0.7, a float"),
        ({"thresholds": lambda path: path.ratio[:, :1]}, r"thresholds returned a Tensor of .* \[9, 1\], not .* \[9, 2"),
        ({"thresholds": lambda path: path.ratio.float()}, "thresholds returned a Tensor of torch.float32"),
        ({"thresholds": lambda path: path.ratio.numpy()}, "thresholds returned a ndarray of float64"),
        ({"thresholds": lambda path: path.ratio * math.nan}, r"thresholds returned NaN\. .* without NaN"),
        ({"residual": boom}, "residual raised ValueError: my mistake"),
        ({"residual": lambda p, q: (p - q).sum(dim=1)}, r"residual returned a Tensor of torch.float64 \[\d+\]"),
        ({"residual": lambda p, q: p - q}, "residual returned a number below 0"),
        ({"residual": lambda p, q: p * math.nan}, "residual returned NaN"),
        ({"prefix_weights": boom}, "prefix_weights raised ValueError"),
        ({"prefix_weights": lambda path: path.ratio}, "prefix_weights returned .* with a column more than path.ratio"),
        ({"prefix_weights": lambda path: torch.ones(9, 3).double() * math.nan}, "prefix_weights returned NaN"),
    ],
)  # fmt: skip
def test_a_formula_that_fails_is_named(formula, says):
    rule = Rule(**{"name": "mine", "title": "my rule", "thresholds": THRESHOLDS, **formula})
    with pytest.raises(ConfigError, match=f"^verifier.rule=mine: {says}"):
        rule_error(rule, FIXTURES["chain"])


def test_formulas_outside_of_a_step_are_named_too():
    trace = trace_of_tokens(*markov_pair(3), [[0, 1]])
    draft, target, streams = ragged_case([2, 1], 7)
    outcome = MaskedVerifier().verify(draft, target, streams)
    for cost, says in ((boom, "raised ValueError"), (lambda r: r[:1], "returned a ndarray"), (np.log, "returned NaN")):
        with pytest.raises(ConfigError, match=f"verifier.rule=x: token_cost {says}"), np.errstate(invalid="ignore"):
            survival(trace, Rule(name="x", title="x", token_cost=cost), 1)
    with pytest.raises(
        ConfigError, match=r"verifier.rule=x: rows_again returned 0\.5, a float\. Mend .* an integer of 0 or more"
    ):
        floor_bytes(Rule(name="x", title="x", rows_again=lambda *_: 0.5), 7, 4, np.array([1]), np.array([0]))
    careless = Rule(name="x", title="x", thresholds=THRESHOLDS, decision_errors=lambda *_: torch.zeros(1))
    with pytest.raises(ConfigError, match=r"decision_errors returned a Tensor of torch.float32 \[1\], not .* \[2\]"):
        excess(careless, draft, target, streams, outcome)


def test_a_formula_may_be_nan_where_q_cannot_draw_the_token():
    p, q = torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[0.6, 0.4, 0.0]]).double()
    odd = Rule(name="odd", title="odd", thresholds=lambda path: (path.ratio - path.ratio + path.ratio).clamp(max=1))
    torch.testing.assert_close(emitted(odd, p, q), p)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"thresholds": 0.5}, "rule=x: thresholds is 0.5, which is no function. Give a function that returns"),
        ({"token_cost": "log"}, "rule=x: token_cost is 'log', which is no function"),
        ({"decides": "any"}, "rule=x: decides is 'any'. Give 'first refusal' or 'last success'"),
        ({"guarantee": "exact"}, "rule=x: guarantee is 'exact'. Give lossless, lossy, flawed, or leave it out"),
        ({"name": ""}, "rule='': no name"),
    ],
)
def test_a_field_of_a_rule_that_is_wrong_is_named(fields, says):
    with pytest.raises(ArgumentError, match=says):
        Rule(**{"name": "x", "title": "x", **fields})


def test_a_copy_of_a_rule_is_named_by_its_own_name():
    copy = dataclasses.replace(Rule(name="x", title="x", thresholds=boom), name="y")
    with pytest.raises(ConfigError, match="^verifier.rule=y: thresholds raised ValueError: my mistake"):
        rule_error(copy, FIXTURES["chain"])


def test_a_copy_of_a_rule_has_a_reference_of_its_own_formulas():
    none = dataclasses.replace(
        Rule(name="x", title="x", thresholds=THRESHOLDS), name="none", thresholds=lambda path: path.ratio * 0
    )
    outcome = none.reference.verify(*ragged_case([3, 2], 7))
    assert outcome.num_accepted.tolist() == [0, 0]
    mine = MaskedVerifier()
    assert dataclasses.replace(Rule(name="x", title="x", thresholds=boom, reference=mine), name="y").reference is mine
