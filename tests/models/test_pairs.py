"""Pairs without a draft model, drafts of another dtype or temperature, and what protocols make of them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import specbench
from specbench.benchmark.weights import weight_bytes
from specbench.core.errors import ConfigError
from specbench.decoding import Completion
from specbench.drafters.layer_skip import LayerSkipDrafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.models import Pair, load_pair
from specbench.models.generate import ASSISTED, PLAIN, generate, obstacle
from specbench.protocols.model_context import ModelContext
from specbench.protocols.scoring import score_texts
from specbench.protocols.settings import check_fixed_lengths, check_survival
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import GREEDY, make_requests, texts
from tests.helpers.cases import bound, decoder
from tests.helpers.contexts import model_context

PROMPTS = ["def add(a, b):\n", "import os\nimport "]


@pytest.fixture(scope="module")
def alone() -> Pair:
    return load_pair("embedded:target", device="cpu")


def context_of(pair: Pair, drafter, sampling: SamplingParams) -> ModelContext:
    requests = make_requests(pair, 2, sampling)
    return model_context(pair, drafter=bound(drafter, pair), sampling=sampling, requests=requests)


def test_a_pair_is_shown_in_one_line(alone, pair):
    assert "\n" not in repr(pair)
    assert repr(pair).startswith("Pair(target='")
    assert repr(pair).endswith("vocab_size=4096, chat=False, float32 on cpu)")
    assert "draft=None" in repr(alone)
    assert len(repr(pair)) < 300


def test_a_target_alone_decodes(alone, pair):
    assert alone.draft is None
    assert alone.context == pair.context
    plain = texts(specbench.decode(pair, PROMPTS, gamma=0, sampling=GREEDY, max_new_tokens=10))
    for drafter in ("layer_skip", "prompt_lookup"):
        completions = specbench.decode(alone, PROMPTS, drafter=drafter, sampling=GREEDY, max_new_tokens=10)
        assert texts(completions) == plain


@pytest.mark.parametrize("use", [specbench.decode, specbench.record])
def test_what_needs_a_draft_says_so(alone, use):
    says = r"pair.draft=null: drafter=model drafts with a model of its own. Give one, or use drafter=layer_skip"
    with pytest.raises(ConfigError, match=says):
        use(alone, PROMPTS)
    with pytest.raises(ConfigError, match=r"drafter=prompt_lookup: has no probabilities .* drafter=layer_skip"):
        specbench.record(alone, PROMPTS, drafter=PromptLookupDrafter())


def test_transformers_generates_with_a_target_alone(alone, pair):
    prompt = [pair.encode(PROMPTS[0])]
    assert generate(alone, PLAIN, prompt, GREEDY, 6) == generate(pair, PLAIN, prompt, GREEDY, 6)
    assert "pair.draft is null" in obstacle(alone, ASSISTED, 1, GREEDY, 3)
    assert obstacle(alone, PLAIN, 1, GREEDY, 3) == obstacle(pair, ASSISTED, 1, GREEDY, 3) == ""


def test_a_draft_has_a_dtype_of_its_own(pair):
    """Half the bytes; logits in the target's, so that rows of both stand side by side; texts are still the target's."""
    half = load_pair("embedded:target", "embedded:draft", device=torch.device("cpu"), draft_dtype=torch.bfloat16)
    assert (half.target.dtype, half.draft.dtype) == (torch.float32, torch.bfloat16)
    draft = bound(ModelDrafter(), half).model
    assert 2 * weight_bytes(draft) == weight_bytes(bound(ModelDrafter(), pair).model)
    assert draft.score([5, 6]).dtype == torch.float32
    requests = make_requests(half, 2, GREEDY, max_new_tokens=10)
    speculative = decoder(half, gamma=3).run(requests)
    assert texts(speculative) == texts(decoder(pair, 0).run(requests))
    assert sum(step.num_accepted for completion in speculative for step in completion.steps) > 4
    with pytest.raises(ConfigError, match=r"pair.draft_dtype=float8: not a dtype. Use auto"):
        load_pair("embedded:target", "embedded:draft", draft_dtype="float8")


def test_a_target_is_looked_at_before_weights_are_read(monkeypatch, pair):
    count = pair.target.config.num_hidden_layers
    monkeypatch.setattr("specbench.models.checkpoint.Checkpoint.load", lambda *_: pytest.fail("read"))
    with pytest.raises(ConfigError, match=rf"drafter.layers=30: the target has {count} layers"):
        load_pair("embedded:target", check=lambda target: LayerSkipDrafter(30).check(target_config=target))


def test_scores_are_of_what_was_sampled_from(pair):
    """log q at the drafts' own temperature, log p at the request's; a trace says so in the draft's name."""
    sampling = SamplingParams(temperature=0.7)
    hot, plain = (context_of(pair, ModelDrafter(temperature=t), sampling) for t in (1.3, None))
    prompt, text = plain.requests[0].prompt, [7, 8, 9]
    (hot_scores,), (plain_scores,) = (
        score_texts(context, [Completion(context.requests[0], text)]) for context in (hot, plain)
    )
    logits = [engine.score([*prompt, *text])[len(prompt) - 1 : -1] for engine in (hot.target, hot.drafter.model)]
    for scores, (p, q) in ((hot_scores, (0.7, 1.3)), (plain_scores, (0.7, 0.7))):
        for name, values, temperature in (("log_p", logits[0], p), ("log_q", logits[1], q)):
            expected = (values / temperature).log_softmax(dim=-1).gather(1, torch.tensor(text)[:, None])[:, 0]
            torch.testing.assert_close(scores[name], expected, rtol=0, atol=1e-3)
    trace = specbench.record(pair, PROMPTS[:1], drafter=ModelDrafter(temperature=1.3), max_new_tokens=2)
    assert trace.identity.draft.endswith(" at temperature 1.3")
    trace = specbench.record(pair, PROMPTS[:1], drafter=LayerSkipDrafter(10), max_new_tokens=2)
    assert trace.identity.draft == f"10 layers of {trace.identity.target}"


def test_drafts_that_stop_are_not_what_replay_expects(pair):
    context = context_of(pair, ModelDrafter(policy="entropy", threshold=1.0), SamplingParams())
    for check in (check_survival, check_fixed_lengths):
        with pytest.raises(ConfigError, match=r"drafter.policy=entropy: this protocol knows drafts of gamma tokens"):
            check(context)
    check_survival(dataclasses.replace(context, drafter=bound(LayerSkipDrafter(8), pair)))
