"""protocol=agreement: differences between verifiers of one rule are counted, and listed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from specbench.benchmark.draws import drafts, streams_of
from specbench.benchmark.grid import CaseSpec
from specbench.benchmark.synthetic import make_case
from specbench.benchmark.tables import AgreementRow
from specbench.core.errors import ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.exactness.zoo.residual import TargetResidual
from specbench.protocols import Outcome, RunContext, agreement
from specbench.protocols.agreement import AgreementProtocol
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import get_rule, rules_with_formulas
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import SamplingParams, inverse_cdf
from tests.benchmark.test_result_check import Broken
from tests.helpers.contexts import run_context

rules = pytest.mark.parametrize("rule", ["token", "block"])


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
