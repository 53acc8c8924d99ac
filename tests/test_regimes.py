"""Regimes: what the rule says of every request, bounds, and bets on the requests that are not the rule's."""

import dataclasses

import pytest
import torch

from specbench.errors import ArgumentError
from specbench.exactness.evidence import CLASSES, FORM, PAIRED
from specbench.exactness.fixtures import as_configured, regimes
from specbench.exactness.statistics.served import served_rows
from specbench.exactness.zoo import accept, residual
from specbench.exactness.zoo.base import BlockSteps, TokenSteps
from specbench.sampling import SamplingParams
from specbench.verifiers import batched
from specbench.verifiers.masked import MaskedVerifier
from specbench.verifiers.matching import MatchingVerifier
from tests.cases import CPU

pytestmark = pytest.mark.usefixtures("unchecked")
ALL = {regime.name: regime for regime in regimes(1500)}


def served(verifier, names, draws: int, seconds: float | int = 0):
    with torch.inference_mode():
        found, rows = served_rows(verifier, [ALL[name] for name in names], draws, seconds, 0, CPU, lambda _: None)
    return {each.regime: each for each in found}, {(row.fixture, row.test): row for row in rows}


def test_sound_code_is_the_rule_in_every_regime():
    found, rows = served(MaskedVerifier(), ALL, 600)
    assert list(found) == list(ALL)
    for name, row in found.items():
        assert row.requests >= 600
        assert (row.differing, row.rounding, row.structural) == (0, 0, 0)
        assert 0 < row.tv < 0.02, name  # ln(1700) / 600
        assert rows[name, FORM].p_value == 1
        assert rows[name, CLASSES].p_value > 1e-5
    assert ("regimes", PAIRED) not in rows


class NinthAccepted(TokenSteps):
    def accepts(self, p, q, u):
        return super().accepts(p, q, u) | (self.offsets >= 8)

    def read(self, draft, target, streams):
        self.offsets = batched.offsets(draft)
        return draft, target, streams


class ShortBlocks(accept.BlockEarlyStop):
    """Of the block rule for short drafts; a long one ends at its first refusal."""

    def accepted_length(self, draft, target, weights, u):
        rule = super() if draft.max_draft_tokens > 8 else BlockSteps()
        return rule.accepted_length(draft, target, weights, u)


@pytest.mark.parametrize("verifier", [NinthAccepted(), ShortBlocks()], ids=lambda each: type(each).__name__)
def test_what_goes_wrong_in_long_drafts_alone(verifier):
    """No form is wrong and no class far off: the requests that are not the rule's lean to one side."""
    found, rows = served(verifier, ["large_min_p", "gamma_17"], 12_000)
    assert found["large_min_p"].structural == 0
    assert found["gamma_17"].structural > 100
    assert found["gamma_17"].tv > found["gamma_17"].differing / found["gamma_17"].requests
    assert rows["regimes", PAIRED].p_value < 1e-9


class Backwards(TokenSteps):
    """Sound code that names a rule and emits other tokens."""

    lossless = True

    def emit(self, weights, draft, streams, num_accepted):
        return weights.shape[1] - 1 - super().emit(weights.flip(1).contiguous(), draft, streams, num_accepted)


def test_code_of_another_order_differs_and_leans_to_no_side():
    found, rows = served(Backwards(), ["large_min_p"], 3000)
    assert found["large_min_p"].structural > 300
    assert rows["regimes", PAIRED].p_value > 1e-4
    assert rows["large_min_p", CLASSES].p_value > 1e-4


def test_a_wrong_residual_is_seen_with_and_without_a_rule_to_hold_it_against():
    class Unnamed(residual.TargetResidual):
        rule = "mine"

    found, rows = served(residual.TargetResidual(), ["large"], 1500)
    assert found["large"].structural > 50
    assert rows["regimes", PAIRED].p_value < 1e-9
    found, rows = served(Unnamed(), ["large"], 4000)
    assert found["large"].tv is None
    assert rows["large", CLASSES].p_value < 1e-9


def test_a_rule_without_formulas_has_bounds_by_classes_alone():
    found, _ = served(MatchingVerifier(coupled=False), ["large", "gamma_9"], 800)
    for row in found.values():
        assert (row.differing, row.tv) == (None, None)
        assert 0 < row.along <= row.anywhere <= 1


def test_refusals_are_kept_and_the_rest_goes_on():
    class NoOneHot(MaskedVerifier):
        def verify(self, draft, target, streams):
            if draft.rows is None:
                raise ArgumentError("draft.rows: None is not supported")
            return super().verify(draft, target, streams)

    found, rows = served(NoOneHot(), ["large_one_hot", "large_min_p"], 100)
    assert found["large_one_hot"].refused == "draft.rows: None is not supported"
    assert found["large_one_hot"].requests == 0
    assert found["large_min_p"].requests >= 100
    assert ("large_one_hot", FORM) not in rows


def test_time_is_shared_out_and_every_regime_gets_a_batch():
    found, _ = served(MaskedVerifier(), ["large", "batch_512", "gamma_64"], 10**9, seconds=0.3)
    assert all(row.requests >= row.batch for row in found.values())


def test_the_runs_own_sampler_and_gamma_are_a_regime():
    sampling = SamplingParams(0.7, top_k=3)
    fixture = as_configured(sampling, 7, 5, "bfloat16", 500).fixture()
    assert (fixture.gamma, fixture.params, fixture.dtype, fixture.vocabulary) == (7, (sampling,), "bfloat16", 500)
    assert (fixture.p > 0).sum(dim=1).max() <= 6  # ties of 16 bits may let a few more in
    assert as_configured(sampling, 0, 5, "float32", 500).fixture().counts == (0,)


@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockSteps()], ids=lambda each: each.rule)
def test_a_run_that_drafts_nothing_has_its_regime(verifier):
    regime = as_configured(SamplingParams(0.7), 0, 5, "float32", 500)
    with torch.inference_mode():
        (row,), _ = served_rows(verifier, [regime], 200, 0, 0, CPU, lambda _: None)
    assert (row.gamma, row.differing, row.refused) == (0, 0, None)


def test_what_was_wrong_before_a_refusal_counts():
    """Impossible tokens in the first batches, and then a refusal: the tokens are not forgotten."""

    class Flees(MaskedVerifier):
        calls = 0

        def verify(self, draft, target, streams):
            Flees.calls += 1
            if Flees.calls > 6:
                raise ArgumentError("enough")
            result = super().verify(draft, target, streams)
            return dataclasses.replace(result, num_accepted=result.num_accepted + 1)

    found, rows = served(Flees(), ["large_min_p"], 1000)
    assert found["large_min_p"].refused == "enough"
    assert rows["large_min_p", FORM].p_value == 0


def test_rounding_is_told_from_a_bug():
    """Thresholds off by a relative 3e-6 are what float32 costs; off by 3e-3 they are not."""

    class Off(TokenSteps):
        by = 3e-6

        def accepts(self, p, q, u):
            return u * q * (1 - self.by) < p

    far = Off()
    far.by = 3e-3
    near_found, _ = served(Off(), ["batch_512", "gamma_64"], 20_000)
    far_found, _ = served(far, ["batch_512", "gamma_64"], 20_000)
    assert sum(row.structural for row in near_found.values()) == 0
    assert sum(row.structural for row in far_found.values()) > 10
    assert dataclasses.asdict(far_found["gamma_64"])["rounding"] <= far_found["gamma_64"].differing
