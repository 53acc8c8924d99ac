"""The edge of a truncated support under rounding, and evidence that does not trip over it.

Fixed seeds; the false alarm of every e-process here is 1e-6 by Ville's inequality, and no other test can fail by
chance.
"""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.decoding import Completion, Request, Step
from specbench.drafters.model import ModelDrafter
from specbench.exactness.texts import eprocess
from specbench.exactness.texts.support import ROUNDING, default_tolerance, support_edge
from specbench.exactness.zoo.state import ReturnsArgmax
from specbench.models import CachedModel, ModelOutput, Pair
from specbench.protocols.eprocess import EprocessProtocol
from specbench.protocols.model_context import ModelContext
from specbench.protocols.text_evidence import evidence, rounding
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Verifier
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


@pytest.mark.cases(3)
@pytest.mark.parametrize("params", SAMPLERS, ids=str)
def test_no_rounding_within_the_tolerance_leaves_the_bounds(params):
    """Random rows, a third of them on a coarse grid that makes ties, each perturbed many times to the extremes."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(300, 8, generator=generator, dtype=torch.float64)
    logits[::3] = (logits[::3] * 2).round() / 2
    edge = support_edge(logits, rows_of(params, 300), torch.full((300,), TOLERANCE, dtype=torch.float64))
    assert 0.02 < edge.doubtful.double().mean() < 0.8
    scored = kept(logits, params)
    for _ in range(200):
        step = torch.rand(300, 8, generator=generator, dtype=torch.float64).sub(0.5).sign() * TOLERANCE
        other = kept(logits + step, params)
        assert (other == scored)[~edge.doubtful].all()
        assert not other[logits < edge.lowest[:, None]].any()
        assert other[logits >= edge.surely[:, None]].all()


def test_the_sum_of_a_nucleus_is_in_doubt_where_no_logit_is():
    """0.6 + 0.3 is 0.9 but for rounding, and the third token is in or out, far below the second as it is."""
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.62, 0.3, 0.08]], dtype=torch.float64).log()
    edge = support_edge(logits, rows_of(SamplingParams(top_p=0.9), 2), torch.full((2,), 1e-5, dtype=torch.float64))
    assert edge.doubtful.tolist() == [True, False]
    assert edge.lowest.exp().tolist() == pytest.approx([0.1, 0.3], rel=1e-3)


def test_nothing_is_in_doubt_far_from_the_edge_or_without_one():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    for params in (SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.9), SamplingParams(min_p=0.2)):
        edge = support_edge(logits, rows_of(params, 1), torch.full((1,), 1e-3, dtype=torch.float64))
        assert edge.doubtful.tolist() == [False]
        for end in (edge.lowest, edge.surely):
            assert torch.equal(logits >= end[:, None], kept(logits, params))


def test_forbidden_tokens_are_no_doubt():
    """A constraint's -inf is no logit that rounding moves."""
    logits = torch.tensor([[1.0, 0.0, -math.inf, -math.inf]])
    edge = support_edge(logits, rows_of(SamplingParams(top_k=3), 1), torch.full((1,), 1e-3, dtype=torch.float64))
    assert edge.doubtful.tolist() == [False]
    assert edge.lowest.tolist() == [0.0]


def test_default_tolerance_knows_dtype_and_size():
    logits = torch.tensor([[1.0, -20.0, -math.inf]])
    assert default_tolerance(logits).tolist() == pytest.approx([ROUNDING[torch.float32] * 2**-23 * 20])
    assert default_tolerance(logits.bfloat16()).tolist() == pytest.approx([ROUNDING[torch.bfloat16] * 2**-7 * 20])


# --- The bets ---


def tokens_of(scored: np.ndarray, q: np.ndarray, edge: tuple[int, ...] = ()) -> list[eprocess.TokenEvidence]:
    """What is known of each token that could be emitted at one position, of which some are at the edge."""
    scored, q = (np.where(np.isin(np.arange(len(each)), edge), 0, each) for each in (scored, q))
    scored, q = scored / scored.sum(), q / q[scored > 0].sum()
    tempered = tuple(float(np.log((scored**a).sum())) for a in eprocess.TEMPERED)
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(scored), np.log(q)
    return [
        eprocess.TokenEvidence(float(log_p[x]), float(log_q[x]), bool(x == scored.argmax()), tempered, True, x in edge)
        for x in range(len(scored))
    ]


@pytest.mark.parametrize("kept", [0, 1], ids=["at the edge", "inside"])
def test_every_bet_is_a_martingale_over_whole_texts(kept):
    """Enumerated: all texts of three tokens, of which the second position has an edge in doubt, sum to exactly 1.

    Scoring has the support {0, 1} there, or {0, 1, 2}, and decoding the other one: with a bet on token 2 the mean would
    not be 1.
    """
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(4), 3)
    drawn, scored = p.copy(), p.copy()
    drawn[1] = np.array([0.5, 0.3, 0.2 * (1 - kept), 0.0]) / (1 - 0.2 * kept)
    scored[1] = np.array([0.5, 0.3, 0.2 * kept, 0.0]) / (0.8 + 0.2 * kept)
    places = [tokens_of(scored[i], q[i], (2,) if i == 1 else ()) for i in range(3)]
    means = np.zeros(len(eprocess.bets()))
    for text in itertools.product(range(4), repeat=3):
        chance = math.prod(drawn[i, x] for i, x in enumerate(text))
        if chance > 0:
            means += chance * np.exp(sum(np.array(eprocess.log_factors(places[i][x])) for i, x in enumerate(text)))
    assert means == pytest.approx(np.ones(len(means)), rel=1e-12)


def test_no_bet_is_placed_on_a_token_at_the_edge():
    inside, _, grey, far = tokens_of(np.array([0.6, 0.4, 0.0, 0.0]), np.full(4, 0.25), (2,))
    assert eprocess.log_factors(grey) == [0.0] * len(eprocess.bets())
    assert any(eprocess.log_factors(inside))
    assert not grey.impossible
    assert far.impossible
    assert eprocess.log_factors(far) == [math.inf] * len(eprocess.bets())
    # The same token without a doubt: probability 0 is infinite evidence.
    assert dataclasses.replace(grey, doubtful=False).impossible


def test_the_first_crossing_is_found():
    path = np.log([1.0, 10.0, 200.0, 3.0, 500.0])
    assert eprocess.rejected_at(path, 0.01) == 3
    assert eprocess.rejected_at(path, 1e-6) is None


# --- Texts ---

ROW = torch.tensor([2.0, 1.0, 0.0, -0.5, -3.0])


class TwoShapes(CachedModel):
    """The same logits after every token, and a little more or less for token 2 in a block: rounding in the extreme."""

    device = torch.device("cpu")

    def __init__(self, change: float = 0.0):
        self.change = change

    def start(self, prompts, capacity, features=()):
        return {}

    def score(self, token_ids):
        return ROW.repeat(len(token_ids), 1)

    def extend(self, token_ids, counts, ancestors=None, features=()):
        row = ROW + self.change * torch.eye(5)[2] * (token_ids.shape[1] <= 3)
        return ModelOutput(row.repeat(len(counts), token_ids.shape[1], 1), {})


def told(text: list[int], sampling: SamplingParams) -> Completion:
    """A completion that one step a token emitted."""
    request = Request("p", (0, 1), 0, sampling, len(text))
    return Completion(request, text, [Step("p", i, 0, 0, 1, 0) for i in range(len(text))], "length")


def near_edge(gap: float) -> SamplingParams:
    """min-p with its threshold ``gap`` above token 2, two logits below the top."""
    return SamplingParams(min_p=math.exp(-2.0 + gap))


def verdict(text: list[int], sampling: SamplingParams) -> tuple[float, list[eprocess.TokenEvidence]]:
    tokens = evidence(TwoShapes(), TwoShapes(), told(text, sampling), None)
    mixture, _ = eprocess.paths(np.array([eprocess.log_factors(token) for token in tokens]))
    return eprocess.e_value(mixture), tokens


def test_a_token_that_rounding_took_from_the_support_does_not_reject():
    """Token 2 lies 1e-6 below the threshold where it is scored; the verifier may have seen it above."""
    reached, tokens = verdict([0, 1, 2, 0], near_edge(1e-6))
    assert tokens[2].log_p == -math.inf
    assert [token.doubtful for token in tokens] == [False, False, True, False]
    assert reached < 0.5


@pytest.mark.parametrize("width", [2, 3])
def test_bets_of_a_text_are_fair_wherever_the_edge_fell(width):
    """Drawn from two tokens or from three, where token 2 is at the edge of what is scored: the mean of a bet is 1."""
    probs = ROW[:width].double().softmax(dim=0)
    told_of = [verdict([x], near_edge(1e-6))[1][0] for x in range(width)]
    factors = np.exp([eprocess.log_factors(token) for token in told_of])
    assert (probs.numpy() @ factors) == pytest.approx(np.ones(len(eprocess.bets())), rel=1e-6)
    assert factors[:2].std() > 0.01


def test_a_token_far_outside_rejects_in_doubt_or_not():
    for gap in (1e-6, 0.1):
        reached, tokens = verdict([0, 4, 1], near_edge(gap))
        assert [token.impossible for token in tokens] == [False, True, False]
        assert reached == math.inf
    reached, _ = verdict([0, 2], near_edge(0.1))  # a tenth of a logit is no rounding in float32
    assert reached == math.inf


def test_rounding_is_measured():
    completion = told([0, 1, 2, 0, 1], SamplingParams())
    largest, over = rounding(TwoShapes(3e-5), completion, 3, 1e-5)
    assert (largest, over) == (pytest.approx(3e-5, rel=1e-2), pytest.approx(3, rel=1e-2))
    assert rounding(TwoShapes(), completion, 3, None) == (0, 0)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.inf, math.nan])
def test_a_tolerance_is_above_zero(tolerance):
    with pytest.raises(ConfigError, match=r"protocol\.tolerance"):
        EprocessProtocol(10, 1e-6, tolerance)


# --- The embedded pair ---


class IgnoresTopP(MaskedVerifier):
    """Verifies against the whole distributions, as if nobody had asked for top-p."""

    lossless = False

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        whole = LogitRows(target.logits, target.temperature, torch.full_like(target.cutoff, -math.inf), None)
        return super().verify(draft, whole, streams)


def on_the_pair(pair: Pair, verifier: Verifier, sampling: SamplingParams) -> ModelContext:
    texts = [f"def f{i}(x):\n    return " for i in range(4)]
    requests = [Request(f"p{i}", tuple(pair.encode(text)), i, sampling, 24) for i, text in enumerate(texts)]
    return ModelContext(
        verifier=verifier, verifier_name="mine", sampling=sampling, gamma=3, batch_size=4, seed=0,
        device=torch.device("cpu"), dtype=torch.float32, title="", command="", pair=pair,
        drafter=bound(ModelDrafter(), pair), target=CachedModel(pair.target, pair.vocab_size, "target"),
        requests=requests,
    )  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("verifier", "expected"),
    [(MaskedVerifier(), "not rejected"), (ReturnsArgmax(), "rejected"), (IgnoresTopP(), "rejected")],
    ids=["masked", "returns argmax", "ignores top-p"],
)
def test_verdicts_on_texts_of_the_pair_under_top_p(pair, verifier, expected, thorough):
    """Tokens at the edge are left out, few of them in float32, and save no flawed verifier."""
    context = on_the_pair(pair, verifier, SamplingParams(top_p=0.9))
    outcome = EprocessProtocol(400 if thorough else 150, 1e-6).run(context)
    certificate = json.loads(outcome.documents["e_certificate.json"])
    assert certificate["verdict"] == expected
    assert certificate["without_bet"] < 0.05 * certificate["tokens"]
    assert f"no bet at {certificate['without_bet']:,}" in outcome.headline
    assert certificate["rounding"]["over_tolerance"] < 0.2
    assert (certificate["impossible"] > 0) == isinstance(verifier, IgnoresTopP)
    assert (certificate["log10_e_value"] is None) == isinstance(verifier, IgnoresTopP)
    assert (certificate["rejected_at"] is None) == (expected == "not rejected")


def test_a_tolerance_below_the_rounding_is_said(pair):
    outcome = EprocessProtocol(30, 1e-6, 1e-9).run(on_the_pair(pair, MaskedVerifier(), SamplingParams()))
    assert "exceeds the tolerance, so set protocol.tolerance above it" in outcome.headline


ASKED = {
    "penalties and bans": {"repetition_penalty": 1.3, "bad_words": ["self"], "thinking_token_budget": 2},
    "a structure": {"structured_outputs": {"regex": "[a-z]{2,12}_[0-9]{2}"}},
}


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_parameters_and_structures_ban_is_banned_where_texts_are_scored(pair, asked):
    """Scored raw, texts under them are evidence against a verifier that is lossless; and those of a verifier that
    knows nothing of them hold tokens that cannot come. The prompt has begun to think."""
    if "structured_outputs" in asked:
        pytest.importorskip("xgrammar")
    start, end = (pair.tokenizer.encode(text, add_special_tokens=False)[0] for text in (" return", ")"))
    thinking = dataclasses.replace(pair, thinking_ids=(start, end))
    sampling = thinking.resolved(SamplingParams(top_p=0.95, **asked))
    context = on_the_pair(thinking, MaskedVerifier(), sampling)
    certificate = json.loads(EprocessProtocol(60, 1e-6).run(context).documents["e_certificate.json"])
    assert certificate["verdict"] == "not rejected"
    assert certificate["impossible"] == 0
    target, draft = context.target, context.drafter.model
    free = on_the_pair(pair, MaskedVerifier(), SamplingParams(top_p=0.95))
    impossible = 0
    for text in free.decoder().run(free.requests[:1]):
        under = dataclasses.replace(text, request=dataclasses.replace(text.request, sampling=sampling))
        impossible += sum(token.impossible for token in evidence(target, draft, under, None))
    assert impossible > 0
