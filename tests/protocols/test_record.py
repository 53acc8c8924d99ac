"""Recording on the embedded pair: what is stored is what an uncached pass says of the very text that was sampled."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from specbench.decoding import Completion
from specbench.exactness.zoo.accept import AcceptsEverything
from specbench.models import Pair
from specbench.protocols import scoring
from specbench.protocols.decode import DecodeProtocol
from specbench.protocols.model_context import ModelContext
from specbench.protocols.record import record, repeated
from specbench.protocols.scoring import columns_of, score_texts, shared_fields
from specbench.replay.trace import TRACE
from specbench.rules.block.masked import BlockVerifier
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.helpers.contexts import model_context
from tests.helpers.vocabularies import letter_pair


@pytest.fixture(scope="module")
def context(pair: Pair) -> ModelContext:
    """Three prompts of different lengths in batches of two."""
    sampling = SamplingParams(temperature=0.8, top_k=200)
    names = {"verifier_name": "block", "command": "the command", "names": ("T", "D")}
    requests = make_requests(pair, 3, sampling)
    return model_context(pair, verifier=BlockVerifier(), sampling=sampling, requests=requests, **names)


def test_scores_are_those_of_an_uncached_pass(context):
    """Ragged prompts and texts in one batch. Catches a pass that is shifted by one, padded wrongly, or of the wrong
    request or model."""
    prompts = [request.prompt for request in context.requests]
    assert len({len(prompt) for prompt in prompts}) > 1
    texts = [list(prompts[1][:5]), [7], list(prompts[0][:11])]
    completions = [Completion(request, text) for request, text in zip(context.requests, texts, strict=True)]
    for prompt, text, got in zip(prompts, texts, score_texts(context, completions), strict=True):
        whole = [*prompt, *text]
        logits = [engine.score(whole[:-1])[-len(text) :] for engine in (context.target, context.drafter.model)]
        expected = columns_of(*logits, torch.tensor(text), context.sampling)
        assert got["token"].tolist() == text
        for name, values in expected.items():
            finite = torch.isfinite(values)
            assert torch.allclose(got[name][finite], values[finite], atol=1e-3), name


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("lossless", [False, True])
def test_tokens_that_the_target_forbids_leave_a_row_and_no_trace(pair, lossless, monkeypatch):
    """A lossy verifier at temperature 0, where each other token has probability 0."""
    verifier, greedy = AcceptsEverything(), SamplingParams(temperature=0)
    monkeypatch.setattr(AcceptsEverything, "lossless", lossless)
    context = model_context(pair, verifier=verifier, sampling=greedy, requests=make_requests(pair, 3, greedy))
    outcome = DecodeProtocol(1, 1, 0, 0, {"prefixes": 1, "draws": 0, "batch_size": 1}).run(context)
    assert "tokens that the target gives no probability (the first is token" in outcome.headline
    assert ("is declared lossless, and wrote" in (outcome.failure or "")) == lossless
    assert outcome.measured["overlap"] > 0
    assert TRACE not in outcome.tables


def test_a_recording_is_the_plain_text_with_its_scores(context):
    requests = repeated(context, 2)
    assert len({(request.name, request.seed) for request in requests}) == 6
    kept = record(context, requests)
    trace = kept.trace
    assert (trace.identity.target, trace.identity.draft, trace.identity.source) == ("T", "D", "the command")
    assert trace.identity.sampler == {"temperature": 0.8, "top_k": 200.0, "top_p": 1.0, "min_p": 0.0}
    assert list(trace.prompts) == [request.name for request in context.requests for _ in range(2)]
    assert [text.request.seed for text in kept.texts] == [requests[i].seed for i in (0, 3, 1, 4, 2, 5)]
    assert trace.limits.tolist() == [request.max_new_tokens for request in requests]
    alone = dataclasses.replace(context, batch_size=1)
    again = record(alone, [requests[4]]).trace
    text = slice(trace.starts[3], trace.starts[4])  # the second sample of the second prompt
    assert trace.tokens[text].tolist() == again.tokens.tolist()
    assert trace.columns["log_p"][text] == pytest.approx(again.columns["log_p"], abs=1e-3)
    assert np.isfinite(trace.columns["log_p"]).all()
    assert kept.seconds_sampling > 0
    assert kept.seconds_scoring > 0


@pytest.mark.usefixtures("unchecked")
def test_texts_that_were_scored_are_not_scored_again(monkeypatch):
    """How much of a target a draft of another vocabulary can say is the same from a trace as from a pass of its own.

    Ragged texts, two of them in a batch. Catches another model's probabilities, and those of another token.
    """
    pair = letter_pair(["a", "b", "ab", "ba", "aba"], ["a", "b", "ab"])
    sampling = SamplingParams(temperature=0.7)
    requests = make_requests(pair, 3, sampling)
    settings = {"sampling": sampling, "gamma": 2, "dtype": torch.float64, "names": ("T", "D")}
    context = model_context(pair, requests=requests, **settings)
    completions = context.decoder(0).run(requests)
    expected = shared_fields(context, completions)
    assert 0.01 < expected["shared_mass"] < 0.99
    scored = score_texts(context, completions)
    monkeypatch.setattr(scoring, "logits_along", None)
    assert shared_fields(context, completions, scored) == pytest.approx(expected, abs=1e-5)
