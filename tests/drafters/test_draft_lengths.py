"""Drafts that end when the draft is unsure, or are sampled at a temperature of their own: lossless, by all drafts added
up, and by texts of the decoder. What would be biased is held beside them, and is seen.

Seeds are fixed; a sound drafter fails each test of frequencies with probability 1e-6, had they been drawn afresh.
"""

import math

import numpy as np
import pytest
import torch

import specbench
from specbench.core.draft_lengths import FIXED, LengthPolicy, policy_of
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows
from specbench.decoding import Decoder, Request
from specbench.drafters import draft_name, lengths, model
from specbench.drafters.layer_skip import LayerSkipDrafter
from specbench.drafters.model import ModelDrafter
from specbench.exactness.statistics.g_tests import node_g_test
from specbench.replay.policies import Policy, draft_lengths, try_policy
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import RowParams, SamplingParams
from specbench.sampling.batch import RUNNING, Batch
from tests.decoding.test_decoding import GREEDY, make_requests
from tests.helpers.cases import bound, decoder
from tests.helpers.markov_pair import MarkovModel, markov_pair, outcomes, sampled_texts, trace_of_tokens

P_VALUE = 1e-6
GAMMA = 3
POLICIES = [LengthPolicy("probability", 0.4), LengthPolicy("entropy", 0.9)]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)


# --- All drafts, added up ---


def entropy(q):
    return float(-(q * np.log(q)).sum())


def drafts(q, policy: LengthPolicy, drops: bool, text=()):
    """Every draft by a table [last, V], and its probability; ``drops``: the unsure token itself is not drafted."""
    row = q[text[-1] if text else 0]
    if len(text) == GAMMA or (policy.kind == "entropy" and not policy.enters(np.float64(entropy(row)))):
        yield text, 1.0
        return
    for token, probability in enumerate(row):
        follows = policy.kind != "probability" or policy.goes_on(probability)
        last = [(text if drops else (*text, token), 1.0)]
        for draft, weight in drafts(q, policy, drops, (*text, token)) if follows else last:
            yield draft, probability * weight


def law(rule: str, p, q, policy: LengthPolicy, drops: bool = False):
    """The distribution of the next GAMMA + 1 tokens: a step's, and the target's behind it."""
    joint = np.zeros((len(p),) * (GAMMA + 1))

    def complete(text, weight):
        if len(text) == GAMMA + 1:
            joint[text] += weight
            return
        for token, probability in enumerate(p[text[-1] if text else 0]):
            complete((*text, token), weight * probability)

    for draft, weight in drafts(q, policy, drops):
        for count, (share, behind) in enumerate(outcomes(rule, p, q, draft)):
            for token, probability in enumerate(behind if share * weight > 0 else ()):
                complete((*draft[:count], token), weight * share * probability)
    return joint


def distance(rule, policy, drops=False):
    p, q = markov_pair(3, seed=3)
    return 0.5 * np.abs(law(rule, p, q, policy, drops) - law(rule, p, p, FIXED)).sum()


@pytest.mark.parametrize("rule", ["token", "block"])
@each_policy
def test_a_step_that_stops_leaves_the_target_s_distribution(rule, policy):
    _, q = markov_pair(3, seed=3)
    draft_lengths = {len(draft) for draft, weight in drafts(q, policy, drops=False)}
    assert len(draft_lengths) > 1  # the policy stops, and not everywhere
    assert distance(rule, policy) < 1e-12


@pytest.mark.parametrize("rule", ["token", "block"])
def test_to_drop_the_unsure_token_is_biased(rule):
    assert distance(rule, POLICIES[0], drops=True) > 0.02


# --- Texts of the decoder ---


class Drops(ModelDrafter):
    """The bias of the enumeration above, in code."""

    def propose(self, batch, limits, streams):
        whole = super().propose(batch, limits, streams)
        if whole.rows is None:  # one token before the end of all texts
            return whole
        last = (whole.num_draft_tokens - 1).clamp(min=0)[:, None]
        probability = whole.rows.prob(whole.token_ids).view(len(batch), -1).gather(1, last)[:, 0]
        whole.num_draft_tokens.sub_((probability < self.policy.threshold).long() * (whole.num_draft_tokens > 0))
        return whole


class WrongRows(ModelDrafter):
    """Draws at its own temperature, and returns rows at the temperature of the request."""

    def propose(self, batch, limits, streams):
        draft = super().propose(batch, limits, streams)
        rows = draft.rows
        if rows is None:
            return draft
        temperatures = batch.params.temperature.repeat_interleave(draft.max_draft_tokens)
        object.__setattr__(draft, "rows", LogitRows(rows.logits, temperatures, rows.cutoff, None))
        return draft


def on_tables(drafter: ModelDrafter, p, q, verifier, gamma=GAMMA) -> Decoder:
    drafter.model = MarkovModel(q)
    drafter.caches = (drafter.model,)
    return Decoder(MarkovModel(p), drafter, verifier, gamma, frozenset())


def p_value_of_texts(drafter: ModelDrafter, verifier, count: int = 3000) -> float:
    """G-test of the first four tokens of many texts."""
    p, q = markov_pair(3, closeness=0.2, seed=3)
    requests = [Request(str(i), (0,), 7000 + i, SamplingParams(), GAMMA + 1) for i in range(count)]
    completions = on_tables(drafter, p, q, verifier).run(requests)
    index = [int("".join(map(str, completion.token_ids)), base=3) for completion in completions]
    counts = np.bincount(index, minlength=3 ** (GAMMA + 1))
    return node_g_test(counts[None], law("token", p, p, FIXED).reshape(1, -1)).p_value


SOUND = {
    "probability": (lambda: ModelDrafter(None, "probability", 0.4), BlockVerifier()),
    "entropy": (lambda: ModelDrafter(None, "entropy", 0.9), MaskedVerifier()),
    "hotter": (lambda: ModelDrafter(temperature=2.0), BlockVerifier()),
    "greedy": (lambda: ModelDrafter(temperature=0.0), MaskedVerifier()),
    "greedy, probability": (lambda: ModelDrafter(0.0, "probability", 0.6), BlockVerifier()),
}
BIASED = {
    "drops": (lambda: Drops(None, "probability", 0.4), MaskedVerifier()),
    "wrong rows": (lambda: WrongRows(temperature=2.0), MaskedVerifier()),
}


@pytest.mark.cases(1, 3)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("made", "verifier"), SOUND.values(), ids=SOUND.keys())
def test_texts_are_the_target_s(made, verifier):
    assert p_value_of_texts(made(), verifier, 1500) > P_VALUE


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("made", "verifier"), BIASED.values(), ids=BIASED.keys())
def test_texts_of_biased_drafters_are_not(made, verifier):
    assert p_value_of_texts(made(), verifier, 1500) < P_VALUE


class Watched(ModelDrafter):
    """Keeps what it has drafted."""

    def propose(self, batch, limits, streams):
        proposed.append(super().propose(batch, limits, streams))
        return proposed[-1]


proposed: list[Draft] = []


@pytest.mark.usefixtures("unchecked")
def test_drafts_that_all_end_at_their_first_token_lie_side_by_side(pair):
    """As kernels read them; they were one column of a matrix."""
    proposed.clear()
    requests = make_requests(pair, 3, SamplingParams(), max_new_tokens=4)
    decoder(pair, gamma=4, drafter=Watched(None, "probability", 1.0)).run(requests)
    assert 1 in {draft.max_draft_tokens for draft in proposed}
    assert all(draft.token_ids.is_contiguous() for draft in proposed)


# --- How long drafts are ---


def rows_of(probs, temperature) -> LogitRows:
    logits = torch.tensor(probs, dtype=torch.float64).log()
    n = len(logits)
    cutoff = torch.full((n,), -math.inf, dtype=torch.float64)
    return LogitRows(logits, torch.full((n,), temperature, dtype=torch.float64), cutoff, None)


def test_policies_cut_where_they_say():
    q = rows_of([[0.9, 0.1], [0.5, 0.5], [0.9, 0.1], [0.9, 0.1]], 1.0)
    counts, tokens = torch.tensor([4, 4, 4, 1]), torch.tensor([0, 0, 1, 1])
    by_probability, by_entropy = LengthPolicy("probability", 0.5), LengthPolicy("entropy", 0.5)
    assert lengths.cut_behind(by_probability, q, tokens, counts, 2).tolist() == [4, 4, 3, 1]
    assert lengths.cut_before(by_probability, q, counts, 2).tolist() == counts.tolist()
    assert lengths.cut_before(by_entropy, q, counts, 2).tolist() == [4, 2, 4, 1]
    assert lengths.cut_before(by_entropy, q, counts, 0).tolist() == [4, 0, 4, 1]
    assert lengths.cut_behind(by_entropy, q, tokens, counts, 2).tolist() == counts.tolist()


def test_at_temperature_0_the_draft_is_as_sure_as_at_1():
    q, tokens, counts = rows_of([[0.6, 0.4]], 0.0), torch.tensor([0]), torch.tensor([4])
    assert lengths.cut_behind(LengthPolicy("probability", 0.7), q, tokens, counts, 0).tolist() == [1]
    assert lengths.cut_before(LengthPolicy("entropy", 0.6), q, counts, 0).tolist() == [0]
    warm = rows_of([[0.6, 0.4]], 0.1)  # nearly all mass is on one token
    assert lengths.cut_behind(LengthPolicy("probability", 0.7), warm, tokens, counts, 0).tolist() == [4]


def test_a_row_of_nan_is_drafted_from_so_that_it_is_found():
    q = rows_of([[math.nan, 0.4]], 1.0)
    assert lengths.cut_before(LengthPolicy("entropy", 0.1), q, torch.tensor([4]), 1).tolist() == [4]


@pytest.mark.usefixtures("unchecked")
@each_policy
def test_drafts_are_as_long_as_replay_expects(policy):
    """Tokens drafted and accepted a step, each within 5 standard errors and 2%; without the policy both are far off."""
    p, q = markov_pair(3, closeness=0.6, seed=3)
    requests = [Request(str(i), (0,), i, SamplingParams(), 60) for i in range(120)]
    drafter = ModelDrafter(None, policy.kind, {"probability": 0.4, "entropy": 0.97}[policy.kind])
    completions = on_tables(drafter, p, q, MaskedVerifier(), gamma=6).run(requests)
    steps = [step for completion in completions for step in completion.steps]
    trace = trace_of_tokens(p, q, sampled_texts(p, 600, 60, seed=6).tolist())
    expected = try_policy(trace, "token", Policy(policy.kind, drafter.policy.threshold, 6))
    for name, expected_mean in (
        ("num_draft_tokens", expected.drafted_per_step),
        ("num_accepted", expected.replayed.acceptance_length - 1),
    ):
        values = np.array([getattr(step, name) for step in steps])
        assert abs(values.mean() - expected_mean) < 5 * values.std() / len(values) ** 0.5 + 0.02 * expected_mean
    assert expected.drafted_per_step < 0.7 * try_policy(trace, "token", Policy("fixed", None, 6)).drafted_per_step


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "policy", [LengthPolicy("probability", 0.4), LengthPolicy("entropy", 2.0)], ids=lambda p: p.kind
)
def test_greedy_drafts_are_as_long_as_replay_expects(pair, policy):
    """Emitted tokens to the rounding, drafted ones within 15%; a fixed length drafts twice as many."""
    requests = make_requests(pair, 4, GREEDY, max_new_tokens=48)
    drafter = ModelDrafter(None, policy.kind, policy.threshold)
    completions = decoder(pair, gamma=6, drafter=drafter).run(requests)
    steps = [step for completion in completions for step in completion.steps]
    prompts = [list(request.prompt) for request in requests]
    trace = specbench.record(pair, prompts, max_new_tokens=48, sampling=GREEDY)
    expected = try_policy(trace, "token", Policy(policy.kind, policy.threshold, 6))
    emitted = sum(len(completion.token_ids) for completion in completions)
    assert emitted / len(steps) == pytest.approx(expected.replayed.acceptance_length)
    drafted = sum(step.num_draft_tokens for step in steps) / len(steps)
    assert drafted == pytest.approx(expected.drafted_per_step, rel=0.15)
    assert drafted < 0.6 * try_policy(trace, "token", Policy("fixed", None, 6)).drafted_per_step


def test_replay_asks_the_same_questions(monkeypatch):
    p, q = markov_pair(3)
    trace = trace_of_tokens(p, q, [[0, 1, 2, 0, 1, 2]])
    monkeypatch.setattr(LengthPolicy, "goes_on", lambda self, probability: probability < 0)
    monkeypatch.setattr(LengthPolicy, "enters", lambda self, entropy: entropy < 0)
    assert set(draft_lengths(trace, Policy("probability", 0.1, 4))) == {1}
    assert set(draft_lengths(trace, Policy("entropy", 9.0, 4))) == {0}


@pytest.mark.parametrize(("fixed", "passes"), [(False, 2), (True, 4)], ids=["eager", "static"])
def test_passes_end_when_nobody_goes_on(fixed, passes, monkeypatch):
    """A captured step has them all, and drafts as many tokens."""
    q = np.zeros((3, 3))
    q[1] = q[2] = [0.9, 0.05, 0.05]
    q[0] = [0.01, 0.495, 0.495]
    drafter, calls = ModelDrafter(None, "probability", 0.6), []
    drafter.model = MarkovModel(q)
    drafter.caches = (drafter.model,)
    drafter.model.start([[1, 1], [2, 2]], 16)
    extend = drafter.model.extend
    monkeypatch.setattr(drafter.model, "extend", lambda *fed: (calls.append(1), extend(*fed))[1])
    # From 1 and 2 the draft is sure of 0, behind which it is sure of nothing.
    monkeypatch.setattr(model, "draw", lambda rows, u: (rows.argmax, rows))
    numbers = (torch.full((2,), 14), torch.full((2,), 4), torch.arange(2))
    tokens = torch.tensor([[1, 1], [2, 2]]).repeat(1, 8)
    params = RowParams.of([SamplingParams()] * 2)
    running, no_stops = torch.full((2,), RUNNING), torch.zeros((2, 0), dtype=torch.int64)
    batch = Batch(tokens, torch.full((2,), 2), torch.full((2,), 2), *numbers, params, running, no_stops, fixed)
    draft = drafter.propose(batch, torch.full((2,), 4), Streams(numbers[2], batch.lengths, 5))
    assert draft.num_draft_tokens.tolist() == [2, 2]
    assert draft.max_draft_tokens == len(calls) == passes


# --- Settings ---


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"policy": "unsure"}, "drafter.policy=unsure: not known. Use fixed, probability, entropy."),
        ({"threshold": 0.4}, "drafter.threshold=0.4: drafter.policy=fixed takes none. Add"),
        ({"policy": "probability"}, "drafter.threshold=None: not a threshold of drafter.policy=probability. Use a"),
        ({"policy": "probability", "threshold": 1.5}, "drafter.threshold=1.5: .* from 0 to 1"),
        ({"policy": "entropy", "threshold": -1}, "drafter.threshold=-1: .* nats from 0"),
        ({"policy": "entropy", "threshold": True}, "drafter.threshold=True: "),
        ({"temperature": -0.1}, "drafter.temperature=-0.1: below 0. Use null"),
        ({"temperature": "hot"}, "drafter.temperature=hot: not a finite number"),
        ({"temperature": 1e-5}, "drafter.temperature=1e-05: so small"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings, says):
    for kind in (ModelDrafter, lambda **kwargs: LayerSkipDrafter(3, **kwargs)):
        with pytest.raises(ConfigError, match=says):
            kind(**settings)


def test_what_the_drafter_says_of_itself(pair):
    assert policy_of("probability", 1) == LengthPolicy("probability", 1.0)
    assert draft_name(bound(LayerSkipDrafter(8, temperature=0.5), pair), "T", "D") == "8 layers of T at temperature 0.5"
    assert draft_name(ModelDrafter(), "T", "D") == "D"
