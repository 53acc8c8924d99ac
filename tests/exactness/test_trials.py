"""Calls drawn from D: their bounds, and bets on requests that are not the rule's."""

import dataclasses
import math

import pytest
import torch

from specbench.core.rng import Stream
from specbench.exactness.failures.call_failure import failure_of
from specbench.exactness.guard import VerifierFault
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.results import ALL, CLASSES, FORM, LAW, PAIRED
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import CONFIGURED, configured_stratum, run_trials
from specbench.exactness.zoo import accept, residual
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.rules import batched
from specbench.rules.matching import MatchingVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Limits
from specbench.sampling import SamplingParams
from tests.exactness.test_inputs import BY_NAME
from tests.exactness.test_location import Backwards
from tests.helpers.cases import CPU
from tests.helpers.made_up_verifiers import DROPS, acting, changed, made_up_rule, refusing

pytestmark = pytest.mark.usefixtures("unchecked")


def trials(verifier, calls: int, *names: str, seconds: float | int = 0, configured=None):
    strata = tuple(BY_NAME[name] for name in names) or None
    with torch.inference_mode():
        outcome = run_trials(verifier, CallsToDraw(0, CPU, calls, configured, strata), seconds)
    return outcome, {row.stratum: row for row in outcome.rows}, {row.test: row for row in reversed(outcome.tests)}


def test_sound_code_is_the_rule_on_every_call():
    outcome, rows, tests = trials(MaskedVerifier(), 120)
    whole = rows[ALL]
    assert (whole.calls, whole.differing_calls, whole.structural) == (120, 0, 0)
    assert whole.tv == whole.code == pytest.approx(1 - (1 - CONFIDENCE) ** (1 / 120), rel=1e-3)
    assert whole.tv < 1.01 * math.log(100) / 120
    assert sum(row.calls for name, row in rows.items() if name in BY_NAME) == 120
    assert tests[FORM].p_value == 1
    assert PAIRED not in tests
    assert outcome.example is None


class AcceptedFrom(TokenSteps):
    """Tests no drafted token from a place in its draft on, which stand then."""

    def __init__(self, place):
        self.place = place

    def accepts(self, p, q, u):
        return super().accepts(p, q, u) | (self.offsets >= self.place)

    def read(self, draft, target, streams):
        self.offsets = batched.offsets(draft)
        return draft, target, streams


class ShortBlocks(accept.BlockEarlyStop):
    """Of the block rule for short drafts; a long one ends at its first refusal."""

    def accepted_length(self, draft, target, weights, u):
        rule = super() if draft.max_draft_tokens > 8 else BlockSteps()
        return rule.accepted_length(draft, target, weights, u)


@pytest.mark.cases(1)
@pytest.mark.parametrize("verifier", [AcceptedFrom(8), ShortBlocks()], ids=lambda verifier: type(verifier).__name__)
def test_what_goes_wrong_in_long_drafts_alone(verifier):
    _, rows, _ = trials(verifier, 100, "long drafts")
    row = rows["long drafts"]
    assert row.structural > 20
    assert row.differing_calls / row.calls > row.tv > row.structural / row.requests / 2


def test_code_of_another_order_differs_and_leans_to_no_side():
    _, rows, tests = trials(Backwards(), 150, "small")
    assert rows["small"].structural > 300
    assert tests[PAIRED].p_value > 1e-4


def test_a_wrong_residual_is_seen_with_and_without_a_rule_to_hold_it_against():
    _, rows, tests = trials(residual.TargetResidual(), 150, "small")
    assert rows["small"].structural > 50
    assert tests[PAIRED].p_value < 1e-3
    _, rows, tests = trials(changed(residual.TargetResidual, rule="mine"), 60, "large batches")
    assert rows["large batches"].tv is None
    assert tests[CLASSES].p_value < 1e-4


def test_a_rule_without_formulas_has_a_bound_by_cells_alone():
    outcome, rows, tests = trials(MatchingVerifier(coupled=False), 60)
    assert (rows[ALL].differing, rows[ALL].tv) == (None, None)
    assert 0 < rows[ALL].along < 1
    assert tests[CLASSES].p_value > 1e-4
    assert outcome.example is None


def test_the_mean_over_strata_knows_nothing_of_strata_without_calls():
    _, rows, _ = trials(MatchingVerifier(coupled=False), 60, "large batches")
    drawn = rows["large batches"].along
    assert drawn < 0.5
    assert rows[ALL].along == pytest.approx(0.97 + 0.03 * drawn)


def test_refusals_are_kept_and_the_rest_goes_on():
    verifier = refusing(when=lambda draft: draft.rows is None, says="draft.rows: None is not supported")
    outcome, rows, _ = trials(verifier, 60, "tiny")
    assert outcome.refusals == {"draft.rows: None is not supported": rows["tiny"].refused}
    assert 5 < rows["tiny"].refused < 30
    assert rows["tiny"].calls + rows["tiny"].refused == 60


def test_what_a_verifier_says_that_it_cannot_do_is_not_drawn():
    def check(draft, target, streams):
        assert not draft.padded
        assert draft.num_draft_tokens.min() == draft.num_draft_tokens.max() > 0

    verifier = acting(check, limits=Limits(ragged=False, empty=False), takes_padded=False)
    outcome, _, _ = trials(verifier, 40, "tiny")
    assert not outcome.refusals


def test_a_verifier_that_takes_masks_has_to_apply_them():
    class IgnoresMasks(MaskedVerifier):
        takes_masks = True

        def verify(self, draft, target, streams):
            return super().verify(draft, dataclasses.replace(target, allowed=None), streams)

    _, _, tests = trials(IgnoresMasks(), 60, "tiny", "small")
    assert tests[FORM].p_value == 0
    IgnoresMasks.verify = MaskedVerifier.verify  # which applies them
    _, rows, tests = trials(IgnoresMasks(), 60, "tiny", "small")
    assert tests[FORM].p_value == 1
    assert sum(row.structural for row in rows.values()) == 0


class Halves(TokenSteps):
    """Halves the accept uniforms in place, where the rule reads them afterwards, on few calls."""

    def read(self, draft, target, streams):
        if draft.max_draft_tokens == 8:
            streams.uniform(Stream.ACCEPT).mul_(0.5)
        return draft, target, streams


class LowestNumber(TokenSteps):
    """Writes the lowest number in place of -inf."""

    def read(self, draft, target, streams):
        target.logits.clamp_(min=torch.finfo(target.logits.dtype).min)
        return draft, target, streams


class Overruns(TokenSteps):
    """Writes one number behind each row."""

    def read(self, draft, target, streams):
        logits = target.logits
        if logits.stride(0) == logits.shape[1] + 1:
            logits.as_strided((len(logits), 1), logits.stride(), logits.storage_offset() + logits.shape[1]).zero_()
        return draft, target, streams


@pytest.mark.parametrize(
    ("verifier", "problem"),
    [
        (Halves(), r"altered streams\.uniform\(ACCEPT\) in place\."),
        (LowestNumber(), r"altered target\.logits in place"),
        (Overruns(), r"altered memory between the rows of target\.logits in place\."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_call_may_alter_its_arguments(verifier, problem):
    with pytest.raises(VerifierFault, match=problem):
        trials(verifier, 600, "tiny")


def test_time_ends_it_and_is_said():
    outcome, rows, _ = trials(MaskedVerifier(), 10**6, "tiny", seconds=0.3)
    assert outcome.cut
    assert 0 < rows["tiny"].calls < 10**6


def test_the_conditions_of_a_run_are_a_stratum():
    seen = set()

    def look(draft, target, streams):
        if target.logits.shape[1] == 1009:
            seen.add((target.logits.dtype, draft.max_draft_tokens // 7, len(draft.num_draft_tokens)))
            assert (target.temperature == 0.7).all()
            assert (target.cutoff > -math.inf).all() or target.logits.isinf().any()

    stratum = configured_stratum(SamplingParams(0.7, top_k=3), 7, 5, torch.bfloat16)
    stratum = dataclasses.replace(stratum, vocabulary=(1009, 1009))
    _, rows, _ = trials(acting(look), 100, "tiny", configured=stratum)
    assert (rows[CONFIGURED].calls, rows[CONFIGURED].differing) == (5, 0)
    assert {(torch.bfloat16, 5)} == {(dtype, size) for dtype, _, size in seen if size == 5}


@pytest.mark.parametrize(("calls", "of_run"), [(1, 1), (19, 1), (20, 1), (39, 1), (40, 2), (45, 2)])
def test_a_run_of_few_calls_has_one_under_its_conditions(calls, of_run):
    stratum = dataclasses.replace(configured_stratum(SamplingParams(), 1, 1, torch.float32), vocabulary=(9, 9))
    _, rows, _ = trials(MaskedVerifier(), calls, "tiny", configured=stratum)
    assert (rows["tiny"].calls, rows[CONFIGURED].calls) == (calls, of_run)


def test_a_run_that_drafts_nothing_has_its_conditions():
    stratum = dataclasses.replace(configured_stratum(SamplingParams(0.7), 0, 5, torch.float32), vocabulary=(500, 500))
    _, rows, _ = trials(BlockSteps(), 40, "tiny", configured=stratum)
    assert (rows[CONFIGURED].requests, rows[CONFIGURED].differing) == (10, 0)


def test_rounding_is_told_from_a_bug():
    """Thresholds off by a relative 3e-6 are what float32 costs; off by 3e-3 they are not."""

    near, far = (
        trials(changed(accepts=lambda _, p, q, u, by=by: u * q * (1 - by) < p), 60, "large batches", "long drafts")[1]
        for by in (3e-6, 3e-3)
    )
    assert sum(row.structural for row in near.values()) == 0
    assert sum(row.structural for row in far.values()) > 3


class Follows(MaskedVerifier):
    """Code that follows a rule of its own to the letter."""

    takes_padded = False

    def __init__(self, rule):
        self.rule = rule

    def verify(self, draft, target, streams):
        return self.rule.reference.verify(draft, target, streams)


def test_code_is_no_better_than_a_rule_of_its_own():
    outcome, rows, tests = trials(Follows(DROPS), 40, "32k", "small")
    assert sum(row.structural for row in rows.values()) == 0
    assert tests[LAW].p_value == 0
    failure = failure_of(Subject(Follows(DROPS)), outcome)
    assert any("by the formulas of the rule drops the first token" in line for line in failure.lines)


def test_a_sound_rule_of_ones_own_adds_its_own_bound():
    _, rows, tests = trials(Follows(made_up_rule("own")), 40, "small")
    row = rows["small"]
    assert (row.rule_checked, row.rule_wrong) == (40, 0)
    assert row.rule_largest < 1e-12
    assert row.tv == row.code + row.rule
    assert row.rule > 0.05
    assert tests[LAW].p_value == 1
