"""Texts scored with a checkpoint: small faults are found, and an engine of other weights is not refuted."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding import logits_along
from specbench.decoding.engines import EagerEngine
from specbench.drafters.model import ModelDrafter
from specbench.exactness.texts.eprocess import BETS
from specbench.exactness.two_sample.bets import CLASSES
from specbench.exactness.two_sample.forks import BY_CHECKPOINT, MARGIN
from specbench.exactness.zoo.bugs import flawed
from specbench.metrics.findings import DIFFERENCE, OF_GREEDY
from specbench.models import load_pair
from specbench.protocols.judge import JudgeProtocol
from specbench.protocols.judging import checks, speed, text_scorer
from specbench.protocols.judging.certificate import UNSCORED
from specbench.protocols.judging.checkpoint import QUESTION, judge_checkpoint, share_rows
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_REFUTED, REFUTED
from specbench.protocols.judging.greedy import FORKS, Margins
from specbench.protocols.judging.speed import PREDICTED, predicted_rows
from specbench.protocols.judging.text_scorer import ScoredText, TextScorer
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest, own
from specbench.sources.own import OwnSource
from specbench.sources.transformers import TransformersSource
from tests.helpers.made_up_engines import Engine
from tests.protocols.test_judge import certificate, context, judged
from tests.sources.test_own_and_file import written

pytestmark = pytest.mark.usefixtures("unchecked", "few_simulated", "blank_figures")
PAIR = ("embedded:target", "embedded:draft")
SCORED: dict[str, Any] = {"target": PAIR[0], "draft": PAIR[1], "greedy_length": 0, "rounds": 0, "length": 5}


_loaded = functools.cache(load_pair)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair is loaded once, and few prompts are checked, which test_judge.py is about."""
    for part in (text_scorer, own):
        monkeypatch.setattr(part, "load_pair", _loaded)
    monkeypatch.setattr(checks, "PROMPTS", 1)
    monkeypatch.setattr(checks, "LENGTH", 4)


@pytest.fixture
def on_exact(monkeypatch: pytest.MonkeyPatch, exact: Any) -> None:
    """The pair that decodes five times as fast stands for the embedded one."""
    for part in (text_scorer, own):
        monkeypatch.setattr(part, "load_pair", lambda *_, **__: exact)


class Own(OwnSource):
    """Our decoder; ``warmer`` is the temperature of both ways, whatever a request says.

    ``drafts`` is the temperature of drafts: far from the request's, many are wrong, however good the draft model is.
    """

    def __init__(self, verifier: Any = None, warmer: float = 1.0, drafts: float | None = None):
        parts = (verifier or MaskedVerifier(), ModelDrafter(temperature=drafts), EagerEngine())
        super().__init__(*PAIR, *parts, gamma=3, batch_size=32, device="cpu")
        self.warmer = warmer

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        sampling = [dataclasses.replace(request.sampling, temperature=self.warmer) for request in requests]
        changed = [
            dataclasses.replace(request, sampling=other) for request, other in zip(requests, sampling, strict=True)
        ]
        return super().complete(changed, mode)


@pytest.mark.usefixtures("on_exact")
@pytest.mark.parametrize(
    ("source", "texts", "verdict"),
    [
        pytest.param(Own(), 128, NOT_REFUTED, id="sound", marks=pytest.mark.thorough),
        pytest.param(Own(flawed("clamped_residual"), drafts=2.0), 64, REFUTED, id="clamped_residual"),
        pytest.param(Own(warmer=1.6), 64, CANNOT_TELL, id="other temperature", marks=pytest.mark.thorough),
    ],
)
def test_texts_are_held_against_the_checkpoint(source, texts, verdict):
    outcome = judged(source, texts=texts, **SCORED)
    finding = next(entry for entry in certificate(outcome)["findings"] if entry["question"] == QUESTION)
    assert finding["verdict"] == verdict
    assert (outcome.failure is not None) == (verdict == REFUTED)
    assert UNSCORED not in certificate(outcome)["not_tested"]
    rows = finding["rows"]["judge_checkpoint.parquet"]
    assert len({(row["mode"], row["which"]) for row in rows}) == len(rows) == 3 * (len(CLASSES) + 1)
    if verdict == NOT_REFUTED:
        assert finding["numbers"]["bound"] < 0.2
        compared = certificate(outcome)["findings"][0]
        assert compared["rows"]["judge_bias.parquet"][0]["classified"] > 0.99
        assert "Shares of classes" in compared["power"]
        assert "guessed" not in compared["power"]  # the checkpoint knows them


def test_a_wrong_repetition_penalty_of_transformers_is_seen():
    """Texts with the penalty follow the checkpoint under it; those that were drawn without it are refuted."""
    source = TransformersSource(PAIR[0], method="prompt_lookup", gamma=3, device="cpu")
    source.open()
    penalised = SamplingParams(repetition_penalty=0.6, ignore_eos=True)

    def sample(mode: Mode, sampling: SamplingParams, first: int) -> list[TextCompletion]:
        fields: dict[str, Any] = {"prompt_id": "a", "prompt": "import os", "sampling": sampling, "max_new_tokens": 12}
        return source.complete([TextRequest(**fields, seed=seed) for seed in range(first, first + 5)], mode)

    plain, drawn, planted = (
        sample(Mode.PLAIN, penalised, 0),
        sample(Mode.SPECULATIVE, penalised, 100),
        sample(Mode.SPECULATIVE, SamplingParams(ignore_eos=True), 200),
    )
    for texts, verdict in ((drawn, NOT_REFUTED), (planted, REFUTED)):
        checkpoint = TextScorer(PAIR[0], None, "cpu", "float32", penalised, None)
        checkpoint.add(plain, Mode.PLAIN)
        checkpoint.add(texts, Mode.SPECULATIVE)
        assert judge_checkpoint(checkpoint, 1e-4, 0.99).verdict == verdict


def test_our_own_decoder_is_judged_under_processors_and_structures():
    """Every text holds a token that a processor, or a structure, forces; other engines are refused them by name."""
    forced = 300

    def only(logits: torch.Tensor, _history: Any) -> torch.Tensor:
        return torch.where(torch.arange(logits.shape[1]) == forced, logits, -math.inf)

    options: dict[str, Any] = {"processors": '["only"]', "sampling": SamplingParams(processors=(only,))}
    protocol = JudgeProtocol(texts=4, prompts=1, length=2, greedy_length=2, rounds=0, target=PAIR[0])
    outcome = protocol.run(context(Own(), **options))
    assert outcome.failure is None
    (finding,) = (entry for entry in certificate(outcome)["findings"] if entry["question"] == QUESTION)
    assert finding["numbers"]["excluded_tokens"] == {"plain": 0, "speculative": 0}
    assert next(iter(outcome.tables["judge_checkpoint.parquet"].rows)).share == 1
    with pytest.raises(ConfigError, match=r"sampler\.processors=\[.*only"):
        protocol.run(context(Engine(), **options))


@pytest.mark.usefixtures("on_exact")
@pytest.mark.parametrize(
    ("verifier", "verdict"), [(flawed("accepts_everything"), REFUTED), (MaskedVerifier(), NOT_REFUTED)]
)
def test_forks_at_temperature_0_are_scored_by_the_checkpoint(verifier, verdict):
    """This source gives no log-probabilities, so that the engine itself shows no cause.

    Drafts are drawn at another temperature, so that they are far behind the plain token, however good the draft is.
    """
    source = OwnSource(
        *PAIR, verifier, ModelDrafter(temperature=3.0), EagerEngine(), gamma=3, batch_size=32, device="cpu"
    )
    outcome = judged(source, texts=4, prompts=2, length=2, rounds=0, greedy_length=8, target=PAIR[0])
    (finding,) = (row for row in certificate(outcome)["findings"] if row["question"] == OF_GREEDY)
    assert finding["verdict"] == verdict
    forks = outcome.tables[FORKS].rows
    assert any(row.cause == BY_CHECKPOINT and row.least_margin > MARGIN for row in forks) == (verdict == REFUTED)


def test_a_fork_where_the_engine_is_far_from_the_checkpoint_cannot_be_told():
    """Its own plain tokens are behind the checkpoint's argmax by more than the plain token leads."""
    checkpoint = scorer()
    prompt = checkpoint.encode("import")
    (logits,) = logits_along(checkpoint.models[0], [prompt], [[0]])
    first, second = logits[0].topk(2).indices.tolist()
    worst = int(logits[0].argmin())
    near, far = text("import", [first]), text("import", [worst])
    lead = float(logits[0, first] - logits[0, second])
    other = text("import", [second])
    assert Margins(checkpoint, [near]).lead(near, 0, other) == pytest.approx(lead, abs=1e-4)
    assert Margins(checkpoint, [near, far]).lead(near, 0, other) < 0
    with pytest.raises(ConfigError, match=r"it has \d+ tokens, and a text has the id 1000000"):
        Margins(checkpoint, [near]).lead(near, 0, text("import", [10**6]))


def scorer(**sampling: Any) -> TextScorer:
    return TextScorer(*PAIR, "cpu", "float32", SamplingParams(**sampling), None)


def text(prompt: str, ids: Sequence[int] | None, finish: str = "length") -> TextCompletion:
    request = TextRequest(prompt_id="a", prompt=prompt, sampling=SamplingParams(), seed=0, max_new_tokens=4)
    return TextCompletion(
        request=request, mode=Mode.PLAIN, text="", finish_reason=finish, token_ids=None if ids is None else tuple(ids)
    )


def text_with(factors: np.ndarray, members: np.ndarray | None = None, expected: float = 0.0) -> ScoredText:
    """A text with these factors [n, bets], of no members of four sets if none are given."""
    marks, members = np.zeros(len(factors)), np.zeros((len(factors), 4)) if members is None else members
    return ScoredText(factors, marks, marks, members, np.full_like(members, expected))


def test_every_token_is_scored_given_its_own_text():
    """By one pass over each text alone, whatever else is scored; equal texts are scored once."""
    checkpoint, calls = scorer(temperature=0.8, top_k=50), []
    texts = [text("import", [300, 5, 7]), text("for i", [9]), text("import", [300, 5, 7]), text("import", [301, 8])]
    score = checkpoint._scored
    checkpoint._scored = lambda prompt, ids: calls.append(len(ids)) or score(prompt, ids)  # ty: ignore
    checkpoint.add(texts, Mode.PLAIN)
    assert sum(calls) == 3
    for one, scored_text in zip(texts, checkpoint.texts[Mode.PLAIN], strict=True):
        alone = scorer(temperature=0.8, top_k=50)
        alone.add([one], Mode.PLAIN)
        (other,) = alone.texts[Mode.PLAIN]
        np.testing.assert_allclose(scored_text.factors, other.factors, atol=1e-3)
        np.testing.assert_allclose(scored_text.expected, other.expected, atol=1e-5)
        np.testing.assert_allclose(scored_text.expected[:, : len(CLASSES)].sum(axis=1), 1, atol=1e-6)


def test_tokens_are_scored_as_they_are_sampled():
    """With top_k 1 the likeliest token has probability 1, and every other is impossible."""
    checkpoint = scorer(top_k=1)
    checkpoint.add([text("import", [300, 5])], Mode.PLAIN)
    (scored,) = checkpoint.texts[Mode.PLAIN]
    np.testing.assert_allclose(scored.expected[:, 0], 1)
    assert np.isinf(scored.factors).any()


def test_an_omitted_end_is_the_likeliest_of_several():
    """A model's other ends may be impossible where the text ended, which is no evidence against the engine."""
    checkpoint = scorer()
    (logits,) = logits_along(checkpoint.models[0], [checkpoint.encode("import")], [[0]])
    likeliest = int(logits.argmax())
    ends = scorer(stop_token_ids=(likeliest,))  # beside the model's own, 0
    ends.add([text("import", [], "stop")], Mode.PLAIN)
    assert ends.texts[Mode.PLAIN][0].tokens.tolist() == [likeliest]


def test_an_end_that_the_engine_leaves_out_is_scored_as_well():
    """Without it, texts that ended would be those of an engine that never ends, and sound ones be refuted."""
    checkpoint = scorer()
    checkpoint.add([text("import", [300, 5], "stop"), text("import", [300, 5]), text("import", [])], Mode.PLAIN)
    assert [len(scored_text.classes) for scored_text in checkpoint.texts[Mode.PLAIN]] == [3, 2, 0]
    classes, ratios = checkpoint.marks(4)
    assert classes.shape == (3, 2, 4)
    assert ratios is not None
    assert (classes[0, 0] > 0).tolist() == [True, True, True, False]


def test_texts_without_their_prompts_are_not_scored(tmp_path):
    """They were scored behind an empty prompt, so that sound texts followed no checkpoint."""
    lines = [{"prompt_id": "weather", "mode": mode, "token_ids": [5, 6]} for mode in Mode]
    message = "^protocol.target=embedded:target: .* lines of prompt 'weather' have no prompt. Add it to the lines"
    with pytest.raises(ConfigError, match=message):
        judged(written(tmp_path, *lines), target="embedded:target")
    assert judged(written(tmp_path, *(line | {"prompt": ""} for line in lines)), target="embedded:target").headline


def test_texts_that_cannot_be_scored_are_refused():
    with pytest.raises(ConfigError, match="the source returns no token ids"):
        scorer().add([text("import", None)], Mode.PLAIN)
    with pytest.raises(ConfigError, match="a text has the id 9999999"):
        scorer().add([text("import", [9999999])], Mode.PLAIN)
    with pytest.raises(ConfigError, match=r"protocol\.draft=embedded:draft"):
        judged(Own(), draft=PAIR[1])
    with pytest.raises(ConfigError, match=r"^protocol\.target=nowhere: no such folder"):
        text_scorer.TextScorer("nowhere", None, "cpu", "float32", SamplingParams(), None)


@pytest.mark.usefixtures("on_exact")
def test_replay_predicts_what_the_engine_counts(monkeypatch):
    """By the rule that our verifier follows. A draft's likeliest tokens are accepted otherwise."""
    monkeypatch.setattr(speed, "BATCHES", 1)  # the same texts, decoded side by side
    options: dict[str, Any] = {**SCORED, "length": 32, "rounds": 1}
    outcome = judged(Own(), texts=4, prompts=16, **options)
    rows: dict[str, Any] = {row.name: row for row in list[Any](outcome.tables["judge_speed.parquet"].rows)}
    for name in ("acceptance rate", "acceptance length"):
        drawn, likeliest = (rows[f"{name}, {PREDICTED}, drafts {drafts}"] for drafts in ("drawn", "likeliest"))
        assert drawn.value == pytest.approx(rows[name].value, rel=0.07)
        assert abs(likeliest.value / rows[name].value - 1) > 0.07


def test_nothing_is_predicted_without_a_draft_model():
    checkpoint = TextScorer(PAIR[0], None, "cpu", "float32", SamplingParams(), None)
    assert predicted_rows(checkpoint, [text("a", [5])], 3) == []


def test_bounds_hold_the_truth():
    """A set with probability 0.3 that occurs with 0.4: the bounds at 90% are below 0.1 in at most 10% of runs."""
    coverage = {str(mode): 0 for mode in (*Mode, DIFFERENCE)}
    for seed in range(100):
        rng, texts = np.random.default_rng(seed), {}
        for mode in Mode:
            share = 0.4 if mode is Mode.SPECULATIVE else 0.3
            drawn = (rng.random((150, 4, 1)) < share).astype(float)
            texts[mode] = [text_with(np.zeros((4, 1)), one, 0.3) for one in drawn]
        for row in share_rows(texts, ["a"], 0.9):
            truth = 0.0 if row.mode == Mode.PLAIN else 0.1
            assert abs(row.difference) <= row.bound
            coverage[row.mode] += row.bound >= truth
    assert min(coverage.values()) >= 90
    assert max(coverage.values()) <= 100


def test_one_text_of_each_mode_bounds_nothing():
    one = text_with(np.zeros((4, 1)), np.ones((4, 1)), 0.3)
    assert {row.bound for row in share_rows({mode: [one] for mode in Mode}, ["a"], 0.99)} == {1.0}


@pytest.mark.parametrize(
    ("speculative", "plain", "verdict"),
    [(1, 0, CANNOT_TELL), (14, 0, CANNOT_TELL), (15, 0, REFUTED), (15, 1, CANNOT_TELL)],
)
def test_tokens_that_the_checkpoint_excludes_refute_only_if_speculation_alone_has_many(speculative, plain, verdict):
    """A plain engine of other arithmetic has them too, and they may all be in speculative texts by chance."""
    checkpoint, ones = scorer(), np.zeros((1, len(BETS)))
    texts = {Mode.SPECULATIVE: speculative, Mode.PLAIN: plain}
    checkpoint.texts = {
        mode: [text_with(ones + (math.inf if i < texts[mode] else 0)) for i in range(20)] for mode in Mode
    }
    assert judge_checkpoint(checkpoint, 1e-4, 0.99).verdict == verdict
    assert checkpoint.refutes(1e-4) == (verdict == REFUTED)


def test_texts_full_of_tokens_that_the_checkpoint_excludes_refute_as_rarely_as_stated():
    """In both ways one text in 100 consists of such tokens, 8 of them: speculation is refuted in 1e-4 of runs at most.

    Four or more of 300 have a chance below 1e-7. Bets on tokens refute in 10% of runs.
    """
    checkpoint, rng, refuted = scorer(), np.random.default_rng(0), 0
    sound, excluded = (text_with(np.full((8, len(BETS)), factor)) for factor in (0.0, math.inf))
    for _ in range(300):
        checkpoint.texts = {mode: [excluded if odd else sound for odd in rng.random(100) < 0.01] for mode in Mode}
        refuted += checkpoint.refutes(1e-4)
    assert refuted < 4


def test_a_bound_holds_if_few_texts_are_wrong_as_a_whole():
    """One text in fifty is of a set that the checkpoint excludes: none of 100 is in 13% of runs.

    4 of 400 bounds may be below the truth; 16 or more have a chance below 1e-5. Bounds over tokens are in 53 or so.
    """
    rng, below, nothing = np.random.default_rng(0), 0, np.zeros((32, 1))
    sound, wrong = (text_with(nothing, nothing + share) for share in (0, 1))
    for _ in range(400):
        texts = {mode: [sound] * 100 for mode in Mode}
        texts[Mode.SPECULATIVE] = [wrong if odd else sound for odd in rng.random(100) < 0.02]
        below += min(row.bound for row in share_rows(texts, ["a"], 0.99) if row.mode != Mode.PLAIN) < 0.02
    assert below < 16


@pytest.mark.parametrize(
    ("plain", "speculative", "verdict", "words"),
    [
        (0.0, 0.0, NOT_REFUTED, "No difference from the checkpoint was found in 40"),
        (1.5, 0.0, NOT_REFUTED, "No difference from the checkpoint was found in 40"),
        (
            1.5,
            6.0,
            CANNOT_TELL,
            r"against plain texts, of 10\^1.5, is too large to hold that of 10\^6.0 against",
        ),
        (6.0, 0.0, CANNOT_TELL, "plain texts do not follow the checkpoint either"),
        (6.0, 6.0, CANNOT_TELL, "plain texts do not follow the checkpoint either"),
        (0.0, 6.0, REFUTED, r"No, if the checkpoint is the engine's model: .* refuted after \d+ tokens"),
    ],
)
def test_evidence_against_plain_texts_says_something_only_where_speculation_has_some(
    plain, speculative, verdict, words
):
    """Ten to one against plain texts comes up in a tenth of the runs of sound engines, none of which could be told."""
    checkpoint = scorer()
    nothing = np.zeros((20, len(checkpoint.sets)))
    for mode, decades in ((Mode.PLAIN, plain), (Mode.SPECULATIVE, speculative)):
        a_token = decades * math.log(10) / 40
        checkpoint.texts[mode] = [text_with(np.full((20, 1), a_token), nothing)] * 2
    finding = judge_checkpoint(checkpoint, 1e-4, 0.99)
    assert finding.verdict == verdict
    assert re.search(words, finding.answer)
