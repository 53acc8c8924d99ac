"""Differences between verifiers of one rule: what is rounding, what is wrong, and the protocol that counts them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from specbench.benchmark.draws import drafts, streams_of
from specbench.benchmark.grid import CaseSpec
from specbench.benchmark.synthetic import make_case
from specbench.benchmark.tables import AgreementRow
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.exactness.zoo.accept import BlockEarlyStop
from specbench.exactness.zoo.residual import TargetResidual
from specbench.protocols import Outcome, RunContext, agreement
from specbench.protocols.agreement import AgreementProtocol
from specbench.rules.agreement import classify, excess, only, well_formed
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import get_rule, rules_with_formulas
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import RowParams, SamplingParams, inverse_cdf, logit_rows
from tests.benchmark.test_result_check import Broken
from tests.helpers.cases import ragged_case
from tests.helpers.contexts import run_context

RAGGED = [0, 4, 1, 0, 3, 2, 4, 0, 1, 2]
rules = pytest.mark.parametrize("rule", ["token", "block"])


def rounded(rows: LogitRows | None, error: float, seed: int) -> LogitRows | None:
    """The same rows with normalisers that are off by up to ``error``: every p or q of a row by one relative error."""
    if rows is None:
        return None
    noise = 2 * torch.rand(len(rows), generator=torch.Generator().manual_seed(seed)).double() - 1
    return LogitRows(rows.logits, rows.temperature, rows.cutoff, rows.normalizer + error * noise)


@rules
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("counts", [[3] * 12, RAGGED, [5], [0], [0, 0], [17, 3]], ids=str)
def test_what_the_rule_emits_needs_no_error(rule, one_hot, counts):
    for seed in range(5):
        draft, target, streams = ragged_case(counts, 23, one_hot=one_hot, seed=seed)
        outcome = get_rule(rule).reference.verify(draft, target, streams)
        assert (excess(rule, draft, target, streams, outcome) == 0).all()
        assert len(classify(rule, draft, target, streams, outcome, outcome).requests) == 0


@rules
@pytest.mark.parametrize("error", [1e-3, 1e-2])
def test_rounding_is_explained_by_its_own_size_and_not_by_less(rule, error):
    """Rows with errors of a known size differ from the exact ones by what such errors explain, a few times over."""
    needed = []
    for seed in range(24):
        draft, target, streams = ragged_case([4] * 110, 23, params=[SamplingParams()], seed=seed)
        first = get_rule(rule).reference.verify(draft, target, streams)
        off = Draft(draft.token_ids, rounded(draft.rows, error, seed), draft.num_draft_tokens, 4)
        second = get_rule(rule).reference.verify(off, rounded(target, error, seed + 1000), streams)
        needed.append(classify(rule, draft, target, streams, first, second).excess)
    every = torch.cat(needed)
    assert len(every) > 1
    assert (every <= 2.5 * error).all()  # p and q each carry one error
    assert every.max() > error / 50  # and not so loosely that anything would pass


def one_request(p: list[float], q: list[float], token: int) -> tuple[Draft, LogitRows, Streams]:
    """One request that drafted one token; the bonus row is p again."""
    params = RowParams.of([SamplingParams()])
    rows = logit_rows(torch.tensor([q]).double().log().float(), params)
    target = logit_rows(torch.tensor([p, p]).double().log().float(), params.select(torch.tensor([0, 0])))
    streams = Streams(torch.tensor([0]), torch.tensor([0]), 2)
    return Draft(torch.tensor([token]), rows, torch.tensor([1]), 1), target, streams


def outcome(*tokens: int, accepted: int) -> Verification:
    return Verification(torch.tensor([tokens]), torch.tensor([accepted]))


@rules
def test_by_hand_the_other_decision_needs_its_distance_from_the_threshold(rule):
    """gamma 1: both rules accept where u q < p; q = 0.8, p = 0.4. And the residual is all on token 1."""
    draft, target, streams = one_request([0.4, 0.6], [0.8, 0.2], token=0)
    u, emit = float(streams.uniform(Stream.ACCEPT)[0, 0]), float(streams.uniform(Stream.EMIT)[0, 0])
    bonus = int(emit >= 0.4)
    accepting, rejecting = outcome(0, bonus, accepted=1), outcome(1, -1, accepted=0)
    right, wrong = (accepting, rejecting) if u * 0.8 < 0.4 else (rejecting, accepting)
    assert float(excess(rule, draft, target, streams, right)) == 0
    needed = float(excess(rule, draft, target, streams, wrong))
    if rule == "token":
        assert needed == pytest.approx(abs(u * 0.8 - 0.4) / max(u * 0.8, 0.4), rel=1e-5)
    else:
        assert needed == pytest.approx(abs(u - 0.5) / 3, rel=1e-5)
    differences = classify(rule, draft, target, streams, right, wrong)
    assert differences.wrong.tolist() == [0]
    assert classify(rule, draft, target, streams, right, wrong, tolerance=1.0).wrong.tolist() == []


@rules
def test_a_token_that_the_target_forbids_is_never_rounding(rule):
    draft, target, streams = one_request([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], token=0)
    for tokens, accepted in (((2, -1), 0), ((0, 2), 1)):
        assert float(excess(rule, draft, target, streams, outcome(*tokens, accepted=accepted))) == float("inf")


@pytest.mark.parametrize(
    ("tokens", "accepted"),
    [((1, 1), 1), ((0, -1), 1), ((0, 1), 0), ((-1, -1), 0), ((0, 3), 1), ((0, 1), 2), ((1, -1), -1)],
    ids=["not drafted", "nothing emitted", "no padding", "nothing", "outside the vocabulary", "too many", "negative"],
)
def test_malformed_outcomes_are_never_rounding(tokens, accepted):
    draft, target, streams = one_request([0.4, 0.4, 0.2], [0.8, 0.1, 0.1], token=0)
    bad = outcome(*tokens, accepted=accepted)
    assert not well_formed(draft, target, bad).any()
    assert float(excess("token", draft, target, streams, bad)) == float("inf")


def test_where_the_residual_vanishes_a_draw_from_the_target_is_rounding():
    """p = q but for 1e-7: the rule rejects only where u is next to 1, and then rounding may leave any residual."""
    p = [0.25 + 1e-7, 0.25, 0.25, 0.25 - 1e-7]
    draft, target, streams = one_request(p, [0.25] * 4, token=3)
    emit = float(streams.uniform(Stream.EMIT)[0, 0])
    from_target = int(emit * 4)
    needed = float(excess("token", draft, target, streams, outcome(from_target, -1, accepted=0)))
    u = float(streams.uniform(Stream.ACCEPT)[0, 0])
    assert needed == pytest.approx(1 - u, rel=1e-4)  # the rejection alone, not the draw
    other = outcome((from_target + 2) % 4, -1, accepted=0)
    assert float(excess("token", draft, target, streams, other)) == pytest.approx(max(1 - u, 2e-7), rel=1e-4)
    p = [0.25 + 1e-3, 0.25, 0.25, 0.25 - 1e-3]  # a residual that rounding does not hide: the token 0 alone
    draft, target, streams = one_request(p, [0.25] * 4, token=3)
    for token in (1, 2, 3):
        assert float(excess("token", draft, target, streams, outcome(token, -1, accepted=0))) > 1e-3


def test_a_wrong_block_rule_is_not_rounding():
    wrong = 0
    for seed in range(10):
        draft, target, streams = ragged_case([4] * 30, 23, params=[SamplingParams()], seed=seed)
        right = get_rule("block").reference.verify(draft, target, streams)
        early = BlockEarlyStop().verify(draft, target, streams)
        wrong += len(classify("block", draft, target, streams, right, early).wrong)
    assert wrong > 20


def test_only_takes_the_rows_of_its_requests():
    draft, target, streams = ragged_case(RAGGED, 23)
    whole = NaiveVerifier().verify(draft, target, streams)
    chosen = torch.tensor([1, 3, 8])
    part = NaiveVerifier().verify(*only(chosen, draft, target, streams))
    assert torch.equal(part.token_ids, whole.token_ids[chosen])


def test_arguments_are_checked():
    draft, target, streams = ragged_case([2, 1], 7)
    right = get_rule("token").reference.verify(draft, target, streams)
    with pytest.raises(ArgumentError, match="rule: 'lenient'"):
        classify("lenient", draft, target, streams, right, right)
    with pytest.raises(ArgumentError, match="second: token_ids of shape"):
        classify("token", draft, target, streams, right, Verification(right.token_ids[:, :1], right.num_accepted))


# --- The protocol ---


def context(verifier: object, **changes: object) -> RunContext:
    settings = {"sampling": SamplingParams(temperature=0.8), "batch_size": 8, "dtype": torch.bfloat16, **changes}
    return run_context(verifier=verifier, verifier_name="mine", **settings)


class SometimesOff:
    """The twin, but for every request whose EMIT uniform is below ``share``."""

    def __init__(self, rule: str, share: float):
        self.rule, self.share, self.lossless = rule, share, True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        right = rules_with_formulas().get(self.rule, get_rule("token")).reference.verify(draft, target, streams)
        off = streams.uniform(Stream.EMIT)[:, 0] < self.share
        token_ids = right.token_ids.clone()
        place = right.num_accepted[:, None]
        emitted = token_ids.gather(1, place)
        token_ids.scatter_(1, place, torch.where(off[:, None], (emitted + 1) % target.logits.shape[1], emitted))
        return Verification(token_ids, right.num_accepted)


@rules
def test_the_protocol_counts_differences_and_draws(rule):
    protocol = AgreementProtocol(vocabulary=101, draws=3000, steps=20)
    row = only_row(protocol.run(context(SometimesOff(rule, 0.05))))
    assert 3000 <= row.draws < 3000 + 8 * 4
    per_step = row.draws / row.verifications
    assert per_step == 4 if rule == "block" else 2 < per_step < 4
    share = row.differences / row.verifications
    assert 0.02 < share < 0.09  # expected 0.05, standard error below 0.009
    assert row.wrong > 0.9 * row.differences
    assert row.share_low < row.share < row.share_high
    row = only_row(protocol.run(context(get_rule(rule).reference)))
    assert (row.differences, row.share, row.share_low) == (0, 0, 0)
    assert 0 < row.share_high < 4 / 3000


def only_row(outcome_: Outcome) -> AgreementRow:
    (row,) = outcome_.tables["agreement.parquet"].rows
    return row


@pytest.mark.parametrize("sampling", [SamplingParams(0.8, top_k=9), SamplingParams(0.0)], ids=["top-k", "greedy"])
def test_the_protocol_takes_any_sampler(sampling):
    protocol = AgreementProtocol(vocabulary=101, draws=500, steps=4)
    row = only_row(protocol.run(context(NaiveVerifier(), sampling=sampling)))
    assert row.wrong == row.differences == 0


def test_another_verifier_takes_the_place_of_the_twin():
    """Of another rule, so that about one in five verifications differs, by no rounding."""
    protocol = AgreementProtocol(vocabulary=101, draws=500, steps=4, other=BlockVerifier())
    row = only_row(protocol.run(context(NaiveVerifier())))
    assert (row.twin, row.rule) == ("BlockVerifier", "token")
    assert row.wrong == row.differences > 10
    protocol = AgreementProtocol(vocabulary=101, draws=500, steps=4, other=MaskedVerifier())
    row = only_row(protocol.run(context(NaiveVerifier())))
    assert (row.twin, row.differences) == ("MaskedVerifier", 0)


def test_differences_of_a_rule_without_formulas_are_counted_and_not_explained():
    protocol = AgreementProtocol(vocabulary=101, draws=1000, steps=20, other=MaskedVerifier())
    outcome_ = protocol.run(context(SometimesOff("its own", 0.05)))
    row = only_row(outcome_)
    assert row.differences > 5
    assert (row.wrong, row.rounding, row.tolerance, row.largest_rounding) == (None,) * 4
    differences = list(outcome_.tables["differences.parquet"].rows)
    assert {(difference.excess, difference.rounding) for difference in differences} == {(None, None)}
    assert all(
        (difference.accepted, difference.emitted) != (difference.twin_accepted, difference.twin_emitted)
        for difference in differences
    )
    assert "which the rule 'its own' has no formulas to explain" in outcome_.headline


def test_every_step_has_drafts_and_uniforms_of_its_own():
    spec = CaseSpec(4, 57, 3, "float32", "temperature", SamplingParams())
    case = make_case(spec, 0, 0, torch.device("cpu"))
    rows, tokens = case.inputs()[0].rows, drafts(case, 5)
    for step in range(5):
        u = streams_of(case, step).uniform(Stream.DRAFT)[:, :3].flatten()
        assert torch.equal(tokens[step], inverse_cdf(rows.probs(), u))
    assert torch.equal(tokens[0], case.token_ids)
    assert len({tuple(step_tokens.tolist()) for step_tokens in tokens}) == 5


def test_decisions_by_hand():
    draft, _, _ = ragged_case([3, 3, 0], 7)
    verified = Verification(torch.zeros(3, 4, dtype=torch.int64), torch.tensor([3, 1, 0]))
    assert get_rule("token").num_decided(verified.num_accepted, draft.num_draft_tokens).tolist() == [3, 2, 0]
    assert get_rule("block").num_decided(verified.num_accepted, draft.num_draft_tokens).tolist() == [3, 3, 0]


def test_a_verifier_without_a_twin_is_named():
    verifier = SometimesOff("its own", 0)
    with pytest.raises(ConfigError, match="verifier=mine: its rule 'its own' has no twin") as raised:
        AgreementProtocol(vocabulary=11, draws=1, steps=1).run(context(verifier))
    assert "+verifier@protocol.other=NAME" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("protocol.draws=-1", {"draws": -1}),
        ("protocol.draws=0", {"draws": 0}),
        ("protocol.steps=0", {"steps": 0}),
        ("protocol.vocabulary=1: ", {"vocabulary": 1}),
        ("protocol.other=str: not a verifier", {"other": "block"}),
    ],
)
def test_wrong_settings_are_named(key, changes):
    with pytest.raises(ConfigError) as raised:
        AgreementProtocol(**{"vocabulary": 11, "draws": 1, "steps": 1, **changes})
    assert str(raised.value).startswith(key)


@pytest.mark.usefixtures("unchecked")
def test_wrong_draws_fail_the_run(monkeypatch):
    """How far it is, track and progress say (tests/core/test_progress.py)."""
    messages: list[str] = []
    monkeypatch.setattr(agreement, "say", messages.append)
    protocol = AgreementProtocol(vocabulary=11, draws=2000, steps=20, other=TargetResidual())
    failure = protocol.run(context(MaskedVerifier(), batch_size=4)).failure
    assert re.fullmatch(
        r"it does not emit the tokens of TargetResidual: \d+ draws differ by more than rounding", failure
    )
    assert messages == ["comparing 2,000 draws on 11 tokens"]


def test_a_difference_is_listed_with_its_request_and_what_both_emitted():
    protocol = AgreementProtocol(vocabulary=97, draws=50, steps=4)
    listed: Any = protocol.run(context(Broken("one token off"))).tables["differences.parquet"].rows
    assert {difference.request for difference in listed} == {3}
    for difference in listed:
        assert difference.accepted == difference.twin_accepted
        assert difference.emitted == difference.twin_emitted ^ 1


def test_processors_are_refused_where_steps_are_made_up():
    with pytest.raises(ConfigError, match="steps are made up"):
        AgreementProtocol(vocabulary=11, draws=1, steps=1).run(context(NaiveVerifier(), processors="[1]"))
