"""Rules as objects: the door to them, what follows from their formulas, and what a rule that is not lossless gets."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import specbench
from specbench.api.verifiers import FunctionVerifier
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.rng import Stream
from specbench.core.types import Verification
from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.laws import rule_error
from specbench.exactness.inputs import STRATA
from specbench.exactness.reference import held_against
from specbench.exactness.results import RULE
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import request_streams
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import run_trials
from specbench.replay.survival import survival
from specbench.rules import BLOCK, RULES, TOKEN, floor_info
from specbench.rules.agreement import TOLERANCE, classify, excess
from specbench.rules.external.transformers import TransformersVerifier
from specbench.rules.fused import FusedVerifier
from specbench.rules.law import emitted
from specbench.rules.matching import MatchingVerifier
from specbench.rules.rule import (
    LAST_SUCCESS,
    ReferenceVerifier,
    Rule,
    get_rule,
    rule_name,
    rule_of,
    rules_with_formulas,
)
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Capabilities, Limits, Verifier, capabilities
from specbench.sampling import SamplingParams, inverse_cdf
from tests.helpers.cases import CPU, FIXTURES, FLAWED, every_fixture, ragged_case
from tests.helpers.command_lines import new_process
from tests.helpers.markov_pair import markov_pair, trace_of_tokens

A = 0.6
LAZY = Rule(
    name="lazy",
    title="lazy rule",
    guarantee="lossless",
    thresholds=lambda along: A * along.ratio.clamp(max=1),
    residual=lambda p, q: p - A * torch.minimum(p, q),
    token_cost=lambda log_rho: np.maximum(log_rho, 0) - math.log(A),
)
# Tokens stand half as often again as they may.
LENIENT = Rule(
    name="lenient",
    title="lenient rule",
    guarantee="lossy",
    emits="min(q, 1.5 p), and the residual for the rest",
    thresholds=lambda along: (1.5 * along.ratio).clamp(max=1),
)
# The block rule's formulas without what this tree knows besides: its code and its own view of rounding.
BARE_BLOCK = Rule(
    name="bare block",
    title="bare block rule",
    guarantee="lossless",
    thresholds=get_rule("block").thresholds,
    prefix_weights=get_rule("block").prefix_weights,
    decides=LAST_SUCCESS,
)
RAGGED = [[3] * 12, [0, 4, 1, 0, 3, 2, 4, 0, 1, 2], [5], [0, 0], [17, 3]]


# --- The door ---


def test_a_verifier_names_its_rule_or_holds_it():
    assert rule_of(MaskedVerifier()) is get_rule("token")
    assert rule_of(ReferenceVerifier(LAZY)) is LAZY
    sample_match = rule_of(MatchingVerifier(coupled=False))
    assert (sample_match.name, sample_match.has_law, sample_match.reference) == ("sample_match", False, None)
    function = SimpleNamespace(rule="token", lossless=True, verify=MaskedVerifier().verify)
    assert isinstance(function, Verifier)
    assert rule_of(function) is get_rule("token")
    assert rule_of(FunctionVerifier(MaskedVerifier().verify, LAZY, lossless=True)) is LAZY
    assert rule_name(object()) == "-"


def test_a_rule_may_not_have_the_name_of_another():
    other = Rule.of(TOKEN, thresholds=LENIENT.thresholds)
    with pytest.raises(ConfigError, match=r"verifier\.rule=token: another rule has this name\. Give your rule a name"):
        rule_of(ReferenceVerifier(other))


NEAR = {"tokens": "token", "Token": "token", "blok": "block"}


@pytest.mark.parametrize(
    ("name", "near"), [*NEAR.items(), *((name, "") for name in ("mine", "block2", "token+", "mytoken", "lazy_0.7"))]
)
def test_a_misspelt_rule_is_refused_and_any_other_name_is_a_rule_without_formulas(name, near):
    function = FunctionVerifier(MaskedVerifier().verify, name, lossless=True)
    if not near:
        assert not rule_of(function).has_law
        return
    with pytest.raises(ConfigError, match=rf"verifier\.rule={name}: no rule has this name\. Did you mean {near}\?"):
        rule_of(function)


def test_what_is_not_known_of_a_rule_is_asked_for_by_name():
    fixture, (draft, target, streams) = FIXTURES["chain"], ragged_case([1], 7)
    bare = Rule(name="bare", title="bare rule")
    with pytest.raises(ArgumentError, match="rule=bare: its formulas are not known here. Give it thresholds"):
        rule_error(bare, fixture)
    outcome = MaskedVerifier().verify(draft, target, streams)
    with pytest.raises(ArgumentError, match="rule: 'bare'; outcomes can be explained for token, block"):
        classify(bare, draft, target, streams, outcome, outcome)
    with pytest.raises(ArgumentError, match="rule=bare: its survival in texts is not known"):
        survival(trace_of_tokens(*markov_pair(3), [[0, 1]]), bare, 2)
    with pytest.raises(ArgumentError, match="rule=x: a reference without thresholds"):
        Rule(name="x", title="x", reference=MaskedVerifier())
    assert floor_info(bare) is floor_info("vllm_v1") is TOKEN
    assert floor_info("block") is BLOCK


def test_the_capabilities_of_a_verifier_have_defaults():
    class Plain:
        rule, lossless = "token", True

    assert capabilities(Plain()) == Capabilities(Limits(), interpreted=None, takes_padded=False, draft_tokens=None)
    assert capabilities(MaskedVerifier()).takes_padded
    assert not capabilities(TransformersVerifier()).limits.capturable
    assert capabilities(FusedVerifier()).interpreted is FusedVerifier.interpreted
    drawing = FLAWED["flawed/shared_gumbel"]
    assert capabilities(drawing).draft_tokens is not None
    assert held_against(drawing) is None  # the formulas say nothing of drafts that it draws itself
    assert held_against(MaskedVerifier()) is get_rule("token")


def test_what_is_known_of_rules_needs_no_torch(tmp_path):
    code = "import sys, specbench.rules, specbench.replay.renewal; print('torch' in sys.modules)"
    assert new_process(tmp_path, "-c", code).stdout.strip() == "False"


def test_every_registered_rule_has_formulas_and_a_paper():
    assert list(RULES) == list(rules_with_formulas())
    for name, rule in rules_with_formulas().items():
        assert vars(rule).items() >= vars(RULES[name]).items()
        assert rule.papers


# --- What follows from formulas alone ---


@every_fixture
def test_a_rule_from_outside_has_its_law(fixture):
    assert rule_error(LAZY, fixture) < 1e-12
    assert rule_error(BARE_BLOCK, fixture) < 1e-12
    without_residual = Rule(name="x", title="x", thresholds=LAZY.thresholds)
    if fixture.name not in ("greedy", "idle"):  # there is one sequence alone, and nothing is drafted
        assert rule_error(without_residual, fixture) > 1e-3


def test_replay_takes_a_rule_from_outside():
    p, q = markov_pair(4, seed=1)
    text = [0, 2, 1, 3, 0]
    (first, *_) = survival(trace_of_tokens(p, q, [text]), LAZY, 3)
    ratio = [q[a, b] / p[a, b] for a, b in itertools.pairwise((0, *text))]
    assert first == pytest.approx([1.0, *np.cumprod([A * min(1.0, value) for value in ratio[:3]])], abs=2e-6)
    (result,) = specbench.replay(trace_of_tokens(p, q, [text]), LAZY, [3])
    assert result.rule == "lazy"


# --- Rounding or bug ---


@pytest.mark.parametrize("rule", [LAZY, LENIENT, BARE_BLOCK], ids=lambda rule: rule.name)
def test_what_the_formulas_give_needs_no_error_and_other_decisions_need_their_distance(rule):
    differing = 0
    for counts in RAGGED:
        draft, target, streams = ragged_case(counts, 23, params=[SamplingParams()])
        outcome = ReferenceVerifier(rule).verify(draft, target, streams)
        assert (excess(rule, draft, target, streams, outcome) < 1e-12).all()
        other = MaskedVerifier().verify(draft, target, streams)
        comparison = classify(rule, draft, target, streams, outcome, other)
        assert comparison.wrong.tolist() == comparison.requests.tolist()
        differing += len(comparison.requests)
    assert differing > 2


def test_an_error_of_the_thresholds_is_explained_by_its_size():
    """Code whose a is off by a relative error: what it emits needs about that error, and no more."""
    error, needed = 3e-3, []
    off = Rule(
        name="off", title="off", residual=LAZY.residual,
        thresholds=lambda along: A * (1 + error) * along.ratio.clamp(max=1),
    )  # fmt: skip
    for seed in range(40):
        draft, target, streams = ragged_case([4] * 110, 23, params=[SamplingParams()], seed=seed)
        first, second = (ReferenceVerifier(rule).verify(draft, target, streams) for rule in (LAZY, off))
        needed.append(classify(LAZY, draft, target, streams, first, second).excess)
    every = torch.cat(needed)
    assert len(every) > 5
    assert (every <= 1.01 * error).all()
    assert every.max() > error / 10


def test_a_bonus_token_is_drawn_from_the_target_whatever_the_residual_is():
    """A rule that replaces what it refuses by any token at all; its bonus is by p's cumulative sums all the same."""
    careless = Rule(name="x", title="x", thresholds=LAZY.thresholds, residual=lambda p, _: torch.ones_like(p))
    draft, target, streams = ragged_case([1] * 40, 11, params=[SamplingParams()])
    right = ReferenceVerifier(careless).verify(draft, target, streams)
    whole = right.num_accepted == 1
    assert whole.sum() > 5
    bonus = inverse_cdf(target.select(2 * torch.arange(40) + 1).probs(), streams.uniform(Stream.EMIT)[:, 0])
    assert torch.equal(right.token_ids[whole, 1], bonus[whole])
    assert (excess(careless, draft, target, streams, right)[whole] == 0).all()
    token_ids = right.token_ids.clone()
    token_ids[:, 1] = torch.where(whole, (token_ids[:, 1] + 5) % 11, token_ids[:, 1])
    needed = excess(careless, draft, target, streams, Verification(token_ids, right.num_accepted))
    assert (needed[whole] > TOLERANCE).all()


# --- A rule that is not lossless ---


def test_what_a_rule_emits_follows_from_its_formulas():
    """Rows with zeros in p and in q among them: what is never drafted has no ratio."""
    fixture = FIXTURES["zeros"]
    q = fixture.q
    p = fixture.p[: len(q)]
    assert (q == 0).any()
    for rule in (LAZY, BARE_BLOCK, *rules_with_formulas().values()):
        assert (emitted(rule, p, q) - p).abs().max() < 1e-12
    kept = torch.minimum(q, 1.5 * p)
    left = (p - q).clamp(min=0)
    by_hand = kept + (1 - kept.sum(1, keepdim=True)) * left / left.sum(1, keepdim=True)
    assert (emitted(LENIENT, p, q) - by_hand).abs().max() < 1e-12
    assert (by_hand - p).abs().max() > 0.05


def test_code_that_follows_a_lossy_rule_is_as_far_from_the_target_as_the_rule():
    """And is not taken for lossless because it agrees with it, as a lossless rule's code is."""
    verifier = ReferenceVerifier(LENIENT)
    assert not verifier.lossless
    probe = Probe(verifier, FIXTURES["chain"], effort=0.0)
    assert probe.method == RULE
    assert probe.located == probe.rule_error == rule_error(LENIENT, FIXTURES["chain"]) > 0.05
    streams = request_streams(5, 0, 5000, FIXTURES["chain"].gamma + 1, CPU)
    probe.check(verified_steps(verifier, FIXTURES["chain"], streams), [5000])
    assert probe.surprises == 0
    assert probe.least(1e-3) > 0.05
    claims_too_much = Rule(name="claims", title="claims", guarantee="lossless", thresholds=LENIENT.thresholds)
    assert Probe(ReferenceVerifier(claims_too_much), FIXTURES["chain"], effort=0.0).located == probe.located
    assert Probe(ReferenceVerifier(LAZY), FIXTURES["chain"], effort=0.0).located == 0


def test_agreement_with_a_lossy_rule_bounds_no_bias():
    tiny = tuple(stratum for stratum in STRATA if stratum.name == "tiny")
    for rule, wrong in ((LENIENT, True), (LAZY, False)):
        with torch.inference_mode():
            row = run_trials(ReferenceVerifier(rule), CallsToDraw(1, CPU, 60, strata=tiny)).rows[0]
        assert (row.differing, row.structural) == (0, 0)
        assert (row.rule_wrong > 0) == wrong
        assert row.rule > (0.2 if wrong else 0.0)
