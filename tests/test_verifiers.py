"""Every verifier of conf/verifier, by the same tests: a new yaml is covered without touching this file."""

from itertools import product
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy import stats

from specbench.errors import ArgumentError, NotInstalledError
from specbench.rng import Stream, Streams
from specbench.sampling import RowParams, SamplingParams, logit_rows, sample
from specbench.types import PADDING, Draft, LogitRows, check_values
from specbench.verifiers.block import BlockVerifier
from specbench.verifiers.external.base import ExternalVerifier
from specbench.verifiers.naive import NaiveVerifier
from tests.cases import MIXED, missing_device, ragged_case

CONF = Path(__file__).parent.parent / "conf" / "verifier"
VERIFIERS, ABSENT = {}, []
for path in sorted(CONF.glob("**/*.yaml")):
    name = path.relative_to(CONF).with_suffix("").as_posix()
    try:
        VERIFIERS[name] = instantiate(OmegaConf.load(path))
        reason = missing_device(VERIFIERS[name])
    except InstantiationException as error:
        if not isinstance(error.__cause__, NotInstalledError):
            raise
        reason = str(error.__cause__)
    if reason:
        VERIFIERS.pop(name, None)
        ABSENT.append(pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason)))
every_verifier = pytest.mark.parametrize(
    "verifier", [pytest.param(v, id=name) for name, v in VERIFIERS.items()] + ABSENT
)
lossless = pytest.mark.parametrize(
    "verifier", [pytest.param(v, id=name) for name, v in VERIFIERS.items() if v.lossless] + ABSENT
)

REFERENCES = {"token": NaiveVerifier(), "block": BlockVerifier()}
REGIMES = {
    "uniform gamma": [3] * 12,
    "ragged with empty drafts": [0, 4, 1, 0, 3, 2, 4, 0, 1, 2],
    "one request": [5],
    "one request that drafted nothing": [0],
    "nothing drafted at all": [0, 0, 0],
    "long blocks": [17, 3],
}


@every_verifier
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("counts", REGIMES.values(), ids=REGIMES.keys())
def test_agrees_with_its_rules_reference_token_for_token(verifier, counts, one_hot):
    if verifier.rule not in REFERENCES:
        pytest.skip("a rule of its own")
    reference = REFERENCES[verifier.rule]
    for seed in range(5):
        draft, target, streams = ragged_case(counts, vocabulary=23, one_hot=one_hot, seed=seed)
        expected, got = reference.verify(draft, target, streams), verifier.verify(draft, target, streams)
        assert torch.equal(got.token_ids, expected.token_ids)
        assert torch.equal(got.num_accepted, expected.num_accepted)


@every_verifier
def test_form_of_the_output(verifier):
    draft, target, streams = ragged_case([0, 4, 1, 3], vocabulary=11, params=[SamplingParams()])
    result = verifier.verify(draft, target, streams)
    assert result.token_ids.shape == (4, 5)
    for b, accepted in enumerate(result.num_accepted.tolist()):
        row, first = result.token_ids[b].tolist(), int(draft.first_row[b])
        assert row[:accepted] == draft.token_ids[first : first + accepted].tolist()
        assert 0 <= row[accepted] < 11
        assert row[accepted + 1 :] == [PADDING] * (4 - accepted)


@every_verifier
def test_a_request_does_not_depend_on_its_batch(verifier):
    if isinstance(verifier, ExternalVerifier) and not verifier.limits.batch_invariant:
        pytest.skip("a declared limit")
    counts = [2, 0, 4, 1, 3]
    draft, target, streams = ragged_case(counts, vocabulary=29)
    whole = verifier.verify(draft, target, streams)
    for b, count in enumerate(counts):
        first = int(draft.first_row[b])
        rows = torch.arange(first, first + count)
        one = Draft(draft.token_ids[rows], draft.rows.select(rows), torch.tensor([count]), count)
        part = target.select(torch.arange(first + b, first + b + count + 1))
        alone = verifier.verify(one, part, Streams(streams.seeds[b : b + 1], streams.positions[b : b + 1], count + 1))
        assert torch.equal(alone.token_ids[0], whole.token_ids[b, : count + 1])


@lossless
def test_equal_distributions_accept_everything(verifier):
    draft, _, streams = ragged_case([4] * 50, vocabulary=13)
    owner = torch.arange(50).repeat_interleave(5)
    rows = (torch.arange(250) - owner).clamp(max=199)
    result = verifier.verify(draft, draft.rows.select(rows), streams)
    assert result.num_accepted.tolist() == [4] * 50


@lossless
def test_disjoint_support_rejects_and_stays_inside_the_target(verifier):
    """p(x) = 0 for every drafted token: each must be rejected, and the recovered token must come from p's support."""
    vocabulary, batch = 10, 200
    upper = torch.arange(vocabulary) >= 5
    q_logits = torch.where(upper, -torch.inf, torch.zeros(vocabulary)).expand(batch, -1).clone()
    p_logits = torch.where(upper, torch.zeros(vocabulary), -torch.inf).expand(2 * batch, -1).clone()
    params = RowParams.of([SamplingParams()] * batch)
    q = logit_rows(q_logits, params)
    streams = Streams(torch.arange(batch), torch.zeros(batch, dtype=torch.int64), 2)
    draft = Draft(sample(q, streams.uniform(Stream.DRAFT)[:, 0]), q, torch.ones(batch, dtype=torch.int64), 1)
    target = logit_rows(p_logits, params.select(torch.arange(batch).repeat_interleave(2)))
    result = verifier.verify(draft, target, streams)
    assert result.num_accepted.sum() == 0
    assert (result.token_ids[:, 0] >= 5).all()


@every_verifier
def test_shapes_that_do_not_fit_are_refused(verifier):
    draft, target, streams = ragged_case([2, 1], vocabulary=7)
    with pytest.raises(ArgumentError, match="target: 4 rows"):
        verifier.verify(draft, target.select(torch.arange(4)), streams)
    with pytest.raises(ArgumentError, match="streams"):
        verifier.verify(draft, target, Streams(streams.seeds[:1], streams.positions[:1], 3))
    narrow = logit_rows(torch.randn(3, 6), RowParams.of([SamplingParams()] * 3))
    with pytest.raises(ArgumentError, match=r"draft\.rows"):
        verifier.verify(Draft(draft.token_ids, narrow, draft.num_draft_tokens, 2), target, streams)


def test_check_values_names_the_argument():
    draft, target, _ = ragged_case([2, 1], vocabulary=7)
    check_values(draft, target)
    outside = Draft(torch.tensor([1, 7, 2]), draft.rows, draft.num_draft_tokens, 2)
    with pytest.raises(ArgumentError, match=r"draft.token_ids\[1\] = 7"):
        check_values(outside, target)
    logits = target.logits.clone()
    logits[3, 2] = torch.nan
    with pytest.raises(ArgumentError, match="target: row 3"):
        check_values(draft, logit_rows(logits, RowParams.of([SamplingParams()] * 5)))


# --- The joint distribution of a whole step, on a pair whose distributions depend on the prefix ---

VOCABULARY, GAMMA = 3, 3
CELLS = VOCABULARY ** (GAMMA + 1)


def markov_pair(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [position, previous token, V] of a target and a draft; every row differs, so a shifted index shows."""
    generator = torch.Generator().manual_seed(seed)
    shape = (GAMMA + 1, VOCABULARY, VOCABULARY)
    return 1.5 * torch.randn(shape, generator=generator), 1.5 * torch.randn(shape, generator=generator)


def joint_probabilities(p_logits: torch.Tensor) -> torch.Tensor:
    """The target's exact probability of every sequence of GAMMA + 1 tokens, [CELLS]."""
    p = p_logits.double().softmax(-1)
    joint = []
    for tokens in product(range(VOCABULARY), repeat=GAMMA + 1):
        previous, value = 0, torch.ones((), dtype=torch.float64)
        for position, token in enumerate(tokens):
            value, previous = value * p[position, previous, token], token
        joint.append(value)
    return torch.stack(joint)


def step_cells(verifier, draws: int, seed: int, one_hot: bool) -> torch.Tensor:
    """Counts [CELLS] of one verification step, completed with target samples to GAMMA + 1 tokens."""
    p_logits, q_logits = markov_pair(seed)
    params = RowParams.of([SamplingParams()] * draws)
    streams = Streams(torch.arange(draws) + 10**6 * seed, torch.zeros(draws, dtype=torch.int64), GAMMA + 1)
    previous, tokens, q_steps = torch.zeros(draws, dtype=torch.int64), [], []
    for i in range(GAMMA):
        logits = q_logits[i, previous]
        token = (
            logits.argmax(-1) if one_hot else sample(logit_rows(logits, params), streams.uniform(Stream.DRAFT)[:, i])
        )
        q_steps.append(logits)
        tokens.append(token)
        previous = token
    token_ids = torch.stack(tokens, dim=1)
    before = torch.cat([torch.zeros(draws, 1, dtype=torch.int64), token_ids], dim=1)
    owner = torch.arange(draws)
    q = logit_rows(torch.stack(q_steps, 1).flatten(0, 1), params.select(owner.repeat_interleave(GAMMA)))
    p_rows = p_logits[torch.arange(GAMMA + 1), before]
    target: LogitRows = logit_rows(p_rows.flatten(0, 1), params.select(owner.repeat_interleave(GAMMA + 1)))
    draft = Draft(token_ids.flatten(), None if one_hot else q, torch.full((draws,), GAMMA), GAMMA)
    emitted = verifier.verify(draft, target, streams).token_ids
    generator = torch.Generator().manual_seed(seed)
    previous, index = torch.zeros(draws, dtype=torch.int64), torch.zeros(draws, dtype=torch.int64)
    for position in range(GAMMA + 1):
        sampled = torch.multinomial(p_logits[position, previous].double().softmax(-1), 1, generator=generator)[:, 0]
        previous = torch.where(emitted[:, position] == PADDING, sampled, emitted[:, position])
        index = index * VOCABULARY + previous
    return torch.bincount(index, minlength=CELLS)


@lossless
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
def test_joint_of_a_step_is_the_target(verifier, one_hot):
    """G-test over 81 cells, false alarm 1e-8 a test.

    Its critical value is 172; noncentrality N (2 TV)^2 >= 153 is seen with probability 0.99. A batched verifier's
    200,000 draws thus show a total variation of 0.014; the 4,000 of naive and of other projects' verifiers show 0.098,
    but naive also agrees with masked token for token.
    """
    draws = 4_000 if isinstance(verifier, NaiveVerifier | ExternalVerifier) else 200_000
    for seed in (1, 2):
        counts = step_cells(verifier, draws, seed, one_hot)
        expected = joint_probabilities(markov_pair(seed)[0]) * draws
        rare = expected < 5
        observed = torch.cat([counts[~rare], counts[rare].sum()[None]]).numpy()
        wanted = torch.cat([expected[~rare], expected[rare].sum()[None]]).numpy()
        keep = wanted > 0
        result = stats.power_divergence(observed[keep], wanted[keep], lambda_="log-likelihood")
        assert result.pvalue > 1e-8


def test_mixed_parameters_are_really_mixed():
    assert {p.greedy for p in MIXED} == {True, False}
