"""The check that what the protocol latency timed is right: it notices every kind of wrong result."""

import dataclasses

import numpy as np
import pytest
import torch

from specbench.benchmark.check import WrongResultError, check, check_again, cutoff_excess, expected_accepted
from specbench.benchmark.synthetic import make_case
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import RowParams, SamplingParams, inverse_cdf, logit_rows
from tests.helpers.cases import BASE, CPU, TRUNCATED


@dataclasses.dataclass
class Broken:
    """A verifier with one mistake, made where ``mistake`` says; rule and claims as given."""

    mistake: str
    rule: str = "token"
    lossless: bool = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        right = (BlockVerifier() if self.rule == "block" else MaskedVerifier()).verify(draft, target, streams)
        token_ids, accepted = right.token_ids.clone(), right.num_accepted.clone()
        if self.mistake == "residual is the target":
            p, _ = batched.next_rows(draft, target, accepted)
            token_ids = batched.assemble(draft, accepted, inverse_cdf(p, streams.uniform(Stream.EMIT)[:, 0])).token_ids
        elif self.mistake == "accepts one too many":
            b = int((accepted < draft.num_draft_tokens).nonzero()[0])
            accepted[b] += 1
            token_ids[b, accepted[b] - 1] = draft.token_ids[draft.first_row[b] + accepted[b] - 1]
            token_ids[b, accepted[b]] = 5
        elif self.mistake == "no padding":
            token_ids[0] = token_ids[0].clamp(min=0)
        elif self.mistake == "one token off":
            token_ids[3, accepted[3]] ^= 1
        elif self.mistake == "everything accepted":
            p, _ = batched.next_rows(draft, target, draft.num_draft_tokens)
            accepted = draft.num_draft_tokens.clone()
            token_ids = batched.assemble(draft, accepted, inverse_cdf(p, streams.uniform(Stream.EMIT)[:, 0])).token_ids
        elif self.mistake == "outside the support":
            token_ids[2, accepted[2]] = int(target.probs()[:, :].amin(0).argmin())
        return Verification(token_ids, accepted)


TWINNED = ["residual is the target", "accepts one too many", "no padding", "one token off", "everything accepted"]


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("mistake", TWINNED)
def test_a_wrong_token_fails_the_check(mistake, rule):
    case = make_case(BASE, 0, 0, CPU)
    verifier = Broken(mistake, rule)
    with pytest.raises(WrongResultError, match=r"request \d+ emits .* by the (token|block) rule it is"):
        check(verifier, case, verifier.verify(*case.inputs()))


@pytest.mark.parametrize("mistake", ["no padding", "everything accepted", "outside the support"])
def test_a_verifier_with_noise_of_its_own_is_held_to_form_support_and_acceptance(mistake):
    case = make_case(dataclasses.replace(TRUNCATED, batch_size=64), 0, 0, CPU)
    verifier = Broken(mistake, "its own")
    with pytest.raises(WrongResultError):
        check(verifier, case, verifier.verify(*case.inputs()))


@pytest.mark.parametrize("spec", [BASE, TRUNCATED], ids=["temperature", "truncated"])
def test_right_results_pass(spec):
    case = make_case(spec, 0, 0, CPU)
    for verifier in (MaskedVerifier(), NaiveVerifier(), BlockVerifier(), Broken("none", "its own")):
        outcome = verifier.verify(*case.inputs())
        checked = check(verifier, case, outcome)
        assert checked.num_accepted == outcome.num_accepted.tolist()
        assert checked.rounding == 0
        check_again(verifier, case, outcome, checked)


def test_a_replay_that_writes_something_else_fails_the_check():
    case, verifier = make_case(BASE, 0, 0, CPU), MaskedVerifier()
    outcome = verifier.verify(*case.inputs())
    checked = check(verifier, case, outcome)
    outcome.token_ids[7, 0] = -7  # the copy that was checked is a copy
    with pytest.raises(WrongResultError, match="request 7"):
        check_again(verifier, case, outcome, checked)


def test_expected_acceptance_is_that_of_many_verifications():
    """600 steps of 16 requests: 5 standard errors of the mean and of the variance, false alarm 1e-6."""
    case = make_case(BASE, 0, 0, CPU)
    draft, target, _ = case.inputs()
    mean, variance = expected_accepted(draft, target)
    target_rows, got = logit_rows(case.target_logits, case.target_params), []
    for step in range(600):
        streams = Streams(case.seeds, case.positions + 10_000 * step, 5)
        got.append(float(MaskedVerifier().verify(draft, target_rows, streams).num_accepted.sum()))
    assert abs(np.mean(got) - mean) < 5 * (variance / len(got)) ** 0.5
    assert np.var(got) == pytest.approx(variance, rel=0.3)


def one_row(probs: list[float], params: SamplingParams) -> tuple[LogitRows, RowParams]:
    row_params = RowParams.of([params])
    return logit_rows(torch.tensor([probs]).double().log().float(), row_params), row_params


def test_cutoffs_differ_by_rounding_only_where_the_mass_is_next_to_top_p():
    rows, params = one_row([0.5, 0.4 - 1e-7, 0.06, 0.04 + 1e-7], SamplingParams(top_p=0.9))
    logits = rows.logits.double()[0]
    assert rows.cutoff[0] == logits[2]  # 0.9 - 1e-7 does not reach 0.9
    assert float(cutoff_excess(rows, logits[1:2], params)) == pytest.approx(1e-7, rel=0.6)
    assert float(cutoff_excess(rows, logits[3:4], params)) == pytest.approx(0.06, rel=1e-3)
    assert float(cutoff_excess(rows, rows.cutoff, params)) == 0
    few, k_params = one_row([0.5, 0.4, 0.06, 0.04], SamplingParams(top_k=2))
    assert float(cutoff_excess(few, few.logits.double()[0, 2:3], k_params)) == float("inf")
