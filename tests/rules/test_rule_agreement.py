"""Differences between verifiers of one rule: what is rounding, and what is wrong."""

from __future__ import annotations

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.exactness.zoo.accept import BlockEarlyStop
from specbench.rules.agreement import classify, excess, only, well_formed
from specbench.rules.rule import get_rule
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers.cases import ragged_case

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


def test_decisions_by_hand():
    draft, _, _ = ragged_case([3, 3, 0], 7)
    verified = Verification(torch.zeros(3, 4, dtype=torch.int64), torch.tensor([3, 1, 0]))
    assert get_rule("token").num_decided(verified.num_accepted, draft.num_draft_tokens).tolist() == [3, 2, 0]
    assert get_rule("block").num_decided(verified.num_accepted, draft.num_draft_tokens).tolist() == [3, 3, 0]
