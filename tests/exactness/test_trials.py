"""Calls drawn from D: bounds, bets on requests that are not the rule's, and faults that fixed inputs did not meet."""

import copy
import dataclasses
import math
import random
import re

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream
from specbench.exactness import inputs
from specbench.exactness.certificate.words import headline
from specbench.exactness.evidence import Evidence
from specbench.exactness.failures.call_failure import failure_of
from specbench.exactness.guard import VerifierFault
from specbench.exactness.inputs import STRATA, Takes
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.results import CLASSES, FORM, LAW, PAIRED, Row
from specbench.exactness.statistics.power import CONFIDENCE, mean_at_most, share_at_most
from specbench.exactness.trials.run import ALL, CONFIGURED, configured_stratum, run_trials
from specbench.exactness.verdict import verdict_of
from specbench.exactness.zoo import accept, residual
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.rules import batched
from specbench.rules.matching import MatchingVerifier
from specbench.rules.rule import Rule
from specbench.rules.token import formulas as token
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Limits
from specbench.sampling import SamplingParams
from tests.exactness.test_location import Backwards
from tests.helpers.cases import CPU

pytestmark = pytest.mark.usefixtures("unchecked")
BY_NAME = {stratum.name: stratum for stratum in STRATA}


def trials(verifier, calls: int, *names: str, seconds: float | int = 0, configured=None):
    strata = tuple(BY_NAME[name] for name in names) or None
    with torch.inference_mode():
        outcome = run_trials(verifier, calls, seconds, 0, CPU, configured, strata=strata)
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


def test_the_bound_holds_for_a_fault_whose_share_of_calls_is_known():
    """Binomial failures of a known share: the bound lies below the share in at most 1% of samples.

    100,000 samples: 1,000 are expected at most, and 1,160 or more have a probability below 1e-6.
    """
    generator = torch.Generator().manual_seed(0)
    for share, calls in ((0.02, 200), (0.002, 1600), (0.1, 60)):
        failures = torch.binomial(torch.full((100_000,), float(calls)), torch.tensor(share).expand(100_000), generator)
        bounds = torch.tensor([share_at_most(k, calls, 1 - CONFIDENCE) for k in range(calls + 1)])
        assert int((bounds[failures.long()] < share).sum()) < 1160


@pytest.mark.thorough
def test_the_bound_on_the_share_of_requests_holds_and_does_not_count_whole_calls():
    """600 samples of each: 6 bounds below the mean are expected at most; 25 or more have a chance below 1e-7."""
    rng = random.Random(1)
    for share, probability, calls in ((1.0, 0.02, 200), (0.02, 0.05, 400), (0.3, 0.01, 800)):
        below = 0
        for seed in range(600):
            met = sum(rng.random() < probability for _ in range(calls))
            below += mean_at_most({share: met} if met else {}, calls, 1 - CONFIDENCE, seed) < share * probability
        assert below < 25
    assert share_at_most(500, 10_000, 1 - CONFIDENCE) > 0.05
    bounds = [mean_at_most({0.02: 500}, 10_000, 1 - CONFIDENCE, seed) for seed in range(100)]
    assert 0.001 < sum(bounds) / 100 < 0.0025
    assert mean_at_most({1.0: 7}, 7, 1 - CONFIDENCE, 0) == 1
    assert mean_at_most({1.0: 3}, 20_000, 1 - CONFIDENCE, 0) == share_at_most(3, 20_000, 1 - CONFIDENCE)


def test_no_number_of_calls_has_a_wrong_bound_every_time():
    """Half of the requests of every call: 3 of 300 bounds below that are expected at most; 15 have a chance of 1e-6."""
    for calls in range(60, 80):  # of 74 the rounding was once chosen by the numbers, and wrong
        assert sum(mean_at_most({0.5: calls}, calls, 1 - CONFIDENCE, seed) < 0.5 for seed in range(300)) < 16


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


@pytest.mark.cases(1)
@pytest.mark.parametrize("verifier", [NinthAccepted(), ShortBlocks()], ids=lambda verifier: type(verifier).__name__)
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
    class Unnamed(residual.TargetResidual):
        rule = "mine"

    _, rows, tests = trials(residual.TargetResidual(), 150, "small")
    assert rows["small"].structural > 50
    assert tests[PAIRED].p_value < 1e-3
    _, rows, tests = trials(Unnamed(), 60, "large batches")
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
    class NoOneHot(MaskedVerifier):
        def verify(self, draft, target, streams):
            if draft.rows is None:
                raise ArgumentError("draft.rows: None is not supported")
            return super().verify(draft, target, streams)

    outcome, rows, _ = trials(NoOneHot(), 60, "tiny")
    assert outcome.refusals == {"draft.rows: None is not supported": rows["tiny"].refused}
    assert 5 < rows["tiny"].refused < 30
    assert rows["tiny"].calls + rows["tiny"].refused == 60


def test_what_a_verifier_says_that_it_cannot_do_is_not_drawn():
    class Uniform(MaskedVerifier):
        limits = Limits(ragged=False, empty=False)
        takes_padded = False

        def verify(self, draft, target, streams):
            assert not draft.padded
            assert draft.num_draft_tokens.min() == draft.num_draft_tokens.max() > 0
            return super().verify(draft, target, streams)

    outcome, _, _ = trials(Uniform(), 40, "tiny")
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

    class Looks(MaskedVerifier):
        def verify(self, draft, target, streams):
            if target.logits.shape[1] == 1009:
                seen.add((target.logits.dtype, draft.max_draft_tokens // 7, len(draft.num_draft_tokens)))
                assert (target.temperature == 0.7).all()
                assert (target.cutoff > -math.inf).all() or target.logits.isinf().any()
            return super().verify(draft, target, streams)

    stratum = configured_stratum(SamplingParams(0.7, top_k=3), 7, 5, torch.bfloat16)
    stratum = dataclasses.replace(stratum, vocabulary=(1009, 1009))
    _, rows, _ = trials(Looks(), 100, "tiny", configured=stratum)
    assert (rows[CONFIGURED].calls, rows[CONFIGURED].differing) == (5, 0)
    assert {(torch.bfloat16, 5)} == {(dtype, size) for dtype, _, size in seen if size == 5}


def test_a_run_that_drafts_nothing_has_its_conditions():
    stratum = dataclasses.replace(configured_stratum(SamplingParams(0.7), 0, 5, torch.float32), vocabulary=(500, 500))
    _, rows, _ = trials(BlockSteps(), 40, "tiny", configured=stratum)
    assert (rows[CONFIGURED].requests, rows[CONFIGURED].differing) == (10, 0)


def test_rounding_is_told_from_a_bug():
    """Thresholds off by a relative 3e-6 are what float32 costs; off by 3e-3 they are not."""

    class Off(TokenSteps):
        by = 3e-6

        def accepts(self, p, q, u):
            return u * q * (1 - self.by) < p

    far = Off()
    far.by = 3e-3
    _, near_rows, _ = trials(Off(), 60, "large batches", "long drafts")
    _, far_rows, _ = trials(far, 60, "large batches", "long drafts")
    assert sum(row.structural for row in near_rows.values()) == 0
    assert sum(row.structural for row in far_rows.values()) > 3


DROPS = Rule(
    name="drops", title="rule that drops", guarantee="lossless", thresholds=token.thresholds,
    residual=lambda p, q: torch.where(p - q < 1e-5, 0.0, p - q),
)  # fmt: skip
SOUND_OWN = Rule(name="own", title="own rule", guarantee="lossless", thresholds=token.thresholds)


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
    assert outcome.unfit is not None
    failure = failure_of(Subject(Follows(DROPS)), outcome)
    assert failure is not None
    assert any("by the formulas of the rule that drops the first token" in line for line in failure.lines)


def test_the_headline_of_a_wrong_rule_says_on_how_many_requests():
    rows = [Row("D", LAW, 40, 9.0, 0, 0.0, 40), Row("tiny of D", FORM, 40, 0.0, 0, 1.0)]
    evidence = Evidence(rows=rows)
    sentence = headline(verdict_of(evidence), evidence)
    assert sentence == "not lossless: its rule's formulas are not the target's on 9 of 40 requests of D"


def test_a_sound_rule_of_ones_own_adds_its_own_bound():
    _, rows, tests = trials(Follows(SOUND_OWN), 40, "small")
    row = rows["small"]
    assert (row.rule_checked, row.rule_wrong) == (40, 0)
    assert row.rule_largest < 1e-12
    assert row.tv == row.code + row.rule
    assert row.rule > 0.05
    assert tests[LAW].p_value == 1


# Faults of which no fixed input showed any: the trigger and the part of D where it is met soonest.
def _wrong_where(trigger):
    """The token rule, but the first token of the vocabulary that the target allows where ``trigger`` says so."""

    class Wrong(MaskedVerifier):
        calls = 0

        def verify(self, draft, target, streams):
            self.calls += 1
            result = super().verify(draft, target, streams)
            wrong = trigger(self, draft, target, streams) & torch.ones_like(streams.seeds, dtype=torch.bool)
            if not bool(wrong.any()):
                return result
            first = target.logits[_first_rows(draft)]
            allowed = torch.where(first >= target.cutoff[_first_rows(draft), None], first, -math.inf).isfinite()
            ids = torch.full_like(result.token_ids, -1)
            ids[:, 0] = allowed.int().argmax(dim=1)
            accepted = torch.where(wrong, 0, result.num_accepted)
            return dataclasses.replace(
                result, token_ids=torch.where(wrong[:, None], ids, result.token_ids), num_accepted=accepted
            )

    return Wrong()


def _first_rows(draft):
    counts = draft.num_draft_tokens
    if draft.padded:
        return torch.arange(len(counts)) * (draft.max_draft_tokens + 1)
    return (counts + 1).cumsum(0) - counts - 1


TRIGGERS = {
    "drafts of 8": (lambda v, d, t, s: d.num_draft_tokens == 8, "tiny"),
    "argmax above 65,535": (lambda v, d, t, s: t.logits[_first_rows(d)].argmax(dim=1) > 65_535, "256k"),
    "seeds from 2 to 99,999": (lambda v, d, t, s: (s.seeds >= 2) & (s.seeds < 100_000), "tiny"),
    "positions from 2 to 99,999": (lambda v, d, t, s: (s.positions >= 2) & (s.positions < 100_000), "tiny"),
    "rows at a stride": (lambda v, d, t, s: torch.tensor(t.logits.stride(0) != t.logits.shape[1]), "tiny"),
    "padded drafts": (lambda v, d, t, s: torch.tensor(d.padded), "tiny"),
    "a draft of another dtype": (
        lambda v, d, t, s: torch.tensor(d.rows is not None and d.rows.logits.dtype != t.logits.dtype), "tiny",
    ),
    "-inf in a large vocabulary": (lambda v, d, t, s: t.logits[_first_rows(d)].isinf().any(dim=1), "32k"),
    "low temperatures": (lambda v, d, t, s: (t.temperature[_first_rows(d)] - 0.1).abs() < 0.1 - 1e-9, "tiny"),
    "high temperatures": (lambda v, d, t, s: t.temperature[_first_rows(d)] > 2.5, "tiny"),
    "a target without a normaliser": (lambda v, d, t, s: torch.tensor(t.log_normalizer is None), "tiny"),
    "a draft without a normaliser": (
        lambda v, d, t, s: torch.tensor(d.rows is not None and d.rows.log_normalizer is None), "tiny",
    ),
    "vocabularies of multiples of 1,024": (lambda v, d, t, s: torch.tensor(t.logits.shape[1] % 1024 == 0), "32k"),
    "spare places in the draft": (
        lambda v, d, t, s: torch.tensor(d.max_draft_tokens > int(d.num_draft_tokens.max())), "tiny",
    ),
    "from the 40th call on": (lambda v, d, t, s: torch.tensor(v.calls > 40), "tiny"),
}  # fmt: skip


@pytest.mark.cases(2, 8)
@pytest.mark.parametrize("name", TRIGGERS)
def test_everyday_inputs_that_no_fixture_had(name):
    trigger, stratum = TRIGGERS[name]
    verifier = _wrong_where(trigger)
    unused = copy.deepcopy(verifier)
    outcome, rows, _ = trials(verifier, 90, stratum)
    assert rows[stratum].structural > 0
    assert rows[stratum].code > rows[stratum].structural / rows[stratum].requests / 2
    assert_the_example_fails(verifier, outcome, unused)


@pytest.mark.parametrize("period", [7, 60])
def test_an_example_of_a_memory_prints_the_history_that_it_needs(period):
    """Wrong in every so-many-th call: the object in use emits the rule's tokens when the request is made again."""
    verifier = _wrong_where(lambda v, d, t, s: torch.tensor(v.calls % period == 0))
    unused = copy.deepcopy(verifier)
    outcome, _, _ = trials(verifier, 90, "tiny")
    failure = assert_the_example_fails(verifier, outcome, unused)
    assert any(f"in call {period} of a new object" in line for line in failure.lines)
    without = failure_of(Subject(verifier), outcome)
    assert any("does not fail when it is run again" in line for line in without.lines)


def assert_the_example_fails(verifier, outcome, unused=None):
    """The printed code makes a request whose tokens are those printed, and not the rule's."""
    failure = failure_of(Subject(verifier, unused), outcome)
    assert failure is not None
    lines = "\n".join(failure.lines)
    emitted, expected = (
        re.search(rf"^{lead}: (\[.*\])$", lines, re.M).group(1) for lead in ("emitted", "by the token rule")
    )
    assert emitted != expected
    made = re.search(r"^made again by specbench.exactness.inputs.(draw_call\(.*\))", lines, re.M).group(1)
    number = int(re.search(r"draw_call\(\d+, (\d+)", made).group(1))
    stratum = outcome.example[0].stratum
    made = made.replace("Takes.of(verifier))", "Takes.of(verifier), stratum)", 1)  # of a test that draws from it alone
    call = eval(
        made, {"draw_call": inputs.draw_call, "torch": torch, "Takes": Takes, "verifier": verifier, "stratum": stratum}
    )
    assert call.number == number
    history = re.search(r"^in call ([\d,]+) of a new object", lines, re.M)
    used = verifier if unused is None else copy.deepcopy(unused)
    for _ in range(int(history.group(1)) if history else 1):
        result = used.verify(call.draft, call.target, call.streams)
    alone = re.search(r"^as request (\d+) of its call", lines, re.M)
    shown = result.token_ids[int(alone.group(1)) if alone else 0].tolist()
    assert str([token_id for token_id in shown if token_id >= 0]) == emitted
    return failure


def test_an_example_in_company_says_so():
    """Wrong for batches of more than one request: alone each is the rule's."""
    verifier = _wrong_where(lambda v, d, t, s: torch.tensor(len(s.seeds) > 1))
    outcome, _, _ = trials(verifier, 60, "tiny")
    failure = failure_of(Subject(verifier), outcome)
    assert failure is not None
    assert any("alone it is verified by the rule" in line for line in failure.lines)
    assert_the_example_fails(verifier, outcome)


def test_streams_and_rows_that_a_verifier_alters_are_found_in_any_layout():
    class Scales(MaskedVerifier):
        def verify(self, draft, target, streams):
            result = super().verify(draft, target, streams)
            if target.logits.stride(0) != target.logits.shape[1]:
                target.logits.mul_(1.5)
            return result

    from specbench.exactness.guard import VerifierFault

    with pytest.raises(VerifierFault, match="target.logits in place"):
        trials(Scales(), 64 * 12, "tiny")
