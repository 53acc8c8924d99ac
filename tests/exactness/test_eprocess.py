"""The edge of a truncated support under rounding, and evidence that does not trip over it.

Fixed seeds; the false alarm of every e-process here is 1e-6 by Ville's inequality, and no other test can fail by
chance.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from specbench.core.types import LogitRows
from specbench.decoding import Decoder, Request, logits_along, rows_along
from specbench.drafters.model import ModelDrafter
from specbench.exactness.statistics.bets import rejected_at
from specbench.exactness.texts.eprocess import BETS, MIXED, e_value, log_factors, log_wealth
from specbench.exactness.texts.support import ROUNDING, SupportEdge, default_tolerance, support_edge
from specbench.models import CachedModel
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers.cases import bound

SAMPLERS = [
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.9),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=0.7, top_k=4, top_p=0.8),
    SamplingParams(temperature=1.5, top_k=5, top_p=0.95, min_p=0.05),
]
TOLERANCE = 0.05  # logit units; large, so that much is in doubt


def rows_of(params: SamplingParams, count: int) -> RowParams:
    return RowParams.of([params] * count)


def kept(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    return logit_rows(logits, rows_of(params, len(logits))).probs() > 0


# --- The edge ---


def doubtful(edge: SupportEdge) -> torch.Tensor:
    """The rows with a token that may be in the support or outside."""
    return edge.lowest < edge.surely


@pytest.mark.cases(3)
@pytest.mark.parametrize("params", SAMPLERS, ids=str)
def test_no_rounding_within_the_tolerance_leaves_the_bounds(params):
    """Random rows, a third of them on a coarse grid that makes ties, each perturbed many times to the extremes."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(300, 8, generator=generator, dtype=torch.float64)
    logits[::3] = (logits[::3] * 2).round() / 2
    edge = support_edge(logits, rows_of(params, 300), torch.full((300,), TOLERANCE, dtype=torch.float64))
    assert 0.02 < doubtful(edge).double().mean() < 0.8
    scored = kept(logits, params)
    for _ in range(200):
        step = torch.rand(300, 8, generator=generator, dtype=torch.float64).sub(0.5).sign() * TOLERANCE
        other = kept(logits + step, params)
        assert (other == scored)[~doubtful(edge)].all()
        assert not other[logits < edge.lowest[:, None]].any()
        assert other[logits >= edge.surely[:, None]].all()


def test_the_sum_of_a_nucleus_is_in_doubt_where_no_logit_is():
    """0.6 + 0.3 is 0.9 but for rounding, and the third token is in or out, far below the second as it is."""
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.62, 0.3, 0.08]], dtype=torch.float64).log()
    edge = support_edge(logits, rows_of(SamplingParams(top_p=0.9), 2), torch.full((2,), 1e-5, dtype=torch.float64))
    assert doubtful(edge).tolist() == [True, False]
    assert edge.lowest.exp().tolist() == pytest.approx([0.1, 0.3], rel=1e-3)


def test_nothing_is_in_doubt_far_from_the_edge_or_without_one():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    for params in (SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.9), SamplingParams(min_p=0.2)):
        edge = support_edge(logits, rows_of(params, 1), torch.full((1,), 1e-3, dtype=torch.float64))
        assert doubtful(edge).tolist() == [False]
        for end in (edge.lowest, edge.surely):
            assert torch.equal(logits >= end[:, None], kept(logits, params))


def test_forbidden_tokens_are_no_doubt():
    """A constraint's -inf is no logit that rounding moves."""
    logits = torch.tensor([[1.0, 0.0, -math.inf, -math.inf]])
    edge = support_edge(logits, rows_of(SamplingParams(top_k=3), 1), torch.full((1,), 1e-3, dtype=torch.float64))
    assert doubtful(edge).tolist() == [False]
    assert edge.lowest.tolist() == [0.0]


def test_default_tolerance_knows_dtype_and_size():
    logits = torch.tensor([[1.0, -20.0, -math.inf]])
    assert default_tolerance(logits).tolist() == pytest.approx([ROUNDING[torch.float32] * 2**-23 * 20])
    assert default_tolerance(logits.bfloat16()).tolist() == pytest.approx([ROUNDING[torch.bfloat16] * 2**-7 * 20])


# --- The bets ---


def rows(probs: np.ndarray) -> LogitRows:
    """Distributions [n, V] as rows, of which nothing is cut."""
    return logit_rows(torch.from_numpy(np.log(probs)), rows_of(SamplingParams(), len(probs)))


def factors_of(scored: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The factors of each token that could be emitted at one position, [V, bets]."""
    count = len(scored)
    p, drafted = rows(np.tile(scored, (count, 1))), rows(np.tile(q, (count, 1)))
    return log_factors(p, drafted, range(count), SamplingParams(), None)


@pytest.mark.parametrize("shared", [True, False])
def test_noise_that_the_draft_shares_shows_in_the_odds(shared):
    """Tokens above their drafts are then too rare if they are little above, and too frequent if far."""
    rng = np.random.default_rng(3)
    logits, apart = rng.normal(size=(2, 60))
    p, q = (np.exp(row) / np.exp(row).sum() for row in (1.5 * logits, 1.5 * logits + apart))
    noise, other = rng.gumbel(size=(2, 24_000, 60))
    drafted = (np.log(q) + noise).argmax(axis=1)
    accepted = rng.random(len(drafted)) < (p / q)[drafted]
    with np.errstate(divide="ignore"):
        residual = np.log(np.clip(p - q, 0, None))
    emitted = np.where(accepted, drafted, (residual + (noise if shared else other)).argmax(axis=1))
    along = factors_of(p, q)[emitted]
    others = [not bet.startswith("odds") for bet in BETS]
    assert e_value(log_wealth(along[:, others])) < 6
    assert (e_value(log_wealth(along)) > 6) is shared


def test_every_bet_is_a_martingale_over_whole_texts():
    """Enumerated: over all texts of three tokens the mean of each bet is 1, less what it stakes on what cannot come."""
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(4), 3)
    p[1] = 0.5, 0.3, 0.2, 0.0
    with np.errstate(divide="ignore"):
        places = [factors_of(p[i], q[i]) for i in range(3)]
    means = np.zeros(len(BETS))
    for text in itertools.product(range(4), repeat=3):
        chance = math.prod(p[i, x] for i, x in enumerate(text))
        if chance > 0:
            means += chance * np.exp(sum(places[i][x] for i, x in enumerate(text)))
    lost = np.zeros(len(BETS))
    lost[: len(MIXED)] = q[1, 3] * np.array(MIXED)  # staked on a token that the target never emits
    assert means == pytest.approx(1 - lost, rel=1e-6)


def test_evidence_grows_against_the_draft_and_not_against_the_target():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(6), 800), rng.dirichlet(np.ones(6), 800)
    for mix, rejected in ((0.0, False), (0.5, True)):
        text = [rng.choice(6, p=(1 - mix) * p[i] + mix * q[i]) for i in range(800)]
        wealth = log_wealth(log_factors(rows(p), rows(q), text, SamplingParams(), None))
        assert (e_value(wealth) > 6) == rejected  # reached by chance with probability 1e-6, by Ville's inequality


def test_the_first_crossing_is_found():
    path = np.log([1.0, 10.0, 200.0, 3.0, 500.0])
    assert rejected_at(path, 0.01) == 3
    assert rejected_at(path, 1e-6) is None


# --- Texts ---

ROW = torch.tensor([2.0, 1.0, 0.0, -0.5, -3.0])


def near_edge(gap: float) -> SamplingParams:
    """min-p with its threshold ``gap`` above token 2, two logits below the top."""
    return SamplingParams(min_p=math.exp(-2.0 + gap))


def of_text(text: list[int], sampling: SamplingParams) -> np.ndarray:
    """The factors of a text whose every token has the same logits, under target and draft."""
    same = logit_rows(ROW.repeat(len(text), 1), rows_of(sampling, len(text)))
    return log_factors(same, same, text, sampling, None)


def test_no_bet_is_placed_on_a_token_at_the_edge():
    """Token 2 lies 1e-6 below the threshold where it is scored; the verifier may have seen it above."""
    factors = of_text([0, 1, 2, 0], near_edge(1e-6))
    assert (factors[2] == 0).all()
    assert all(factors[i].any() for i in (0, 1, 3))
    assert e_value(log_wealth(factors)) < 0.5


@pytest.mark.parametrize("gap", [1e-6, -1e-6], ids=["scored outside", "scored inside"])
@pytest.mark.parametrize("width", [2, 3])
def test_bets_of_a_text_are_fair_wherever_the_edge_fell(width, gap):
    """Drawn from two tokens or from three, where token 2 is at the edge of what is scored: the mean of a bet is 1."""
    probs = ROW[:width].double().softmax(dim=0)
    factors = np.exp([of_text([x], near_edge(gap))[0] for x in range(width)])
    assert (probs.numpy() @ factors) == pytest.approx(np.ones(len(BETS)), rel=1e-6)
    assert factors[:2].std() > 0.01


def test_a_token_far_outside_rejects_in_doubt_or_not():
    for gap in (1e-6, 0.1):
        factors = of_text([0, 4, 1], near_edge(gap))
        assert np.isposinf(factors).all(axis=1).tolist() == [False, True, False]
        assert e_value(log_wealth(factors)) == math.inf
    assert np.isposinf(of_text([0, 2], near_edge(0.1))[1]).all()  # a tenth of a logit is no rounding in float32


# --- The embedded pair ---

BANS = {
    "penalties and bans": {"repetition_penalty": 1.3, "bad_words": ["self"], "thinking_token_budget": 2},
    "a structure": {"structured_outputs": {"regex": "[a-z]{2,12}_[0-9]{2}"}},
}


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bans", BANS.values(), ids=BANS)
def test_what_parameters_and_structures_ban_is_banned_where_texts_are_scored(pair, bans):
    """Texts under them are no evidence against a lossless verifier; and those of a verifier that knows nothing of them
    hold tokens that cannot come. The prompt has begun to think."""
    if "structured_outputs" in bans:
        pytest.importorskip("xgrammar")
    start, end = (pair.tokenizer.encode(text, add_special_tokens=False)[0] for text in (" return", ")"))
    thinking = dataclasses.replace(pair, thinking_ids=(start, end))
    sampling, free = (thinking.resolved(SamplingParams(top_p=0.95, **parameters)) for parameters in (bans, {}))
    target = CachedModel(pair.target, pair.vocab_size, "target")
    drafter = bound(ModelDrafter(), pair)
    decoding = Decoder(target, drafter, MaskedVerifier(), 3, pair.stop_ids)
    prompts = [tuple(pair.encode(f"def f{i}(x):\n    return ")) for i in range(4)]

    def factors(drawn: SamplingParams) -> np.ndarray:
        texts = decoding.run([Request(str(i), prompt, i, drawn, 15) for i, prompt in enumerate(prompts)])
        scored = []
        for prompt, text in zip(prompts, texts, strict=True):
            logits = (logits_along(model, [prompt], [text.token_ids])[0] for model in (target, drafter.model))
            p, q = (rows_along(model_logits, sampling, prompt, text.token_ids) for model_logits in logits)
            scored.append(log_factors(p, q, text.token_ids, sampling, None))
        return np.concatenate(scored)

    assert e_value(log_wealth(factors(sampling))) < 6
    assert np.isposinf(factors(free)).any()
