"""Texts under penalties, biases and bans: speculative ones are those that one token at a time gives, by any drafter and
engine, and of the same distribution."""

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from specbench.decoding import Decoder, Request
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.drafters.tree import TopTreeDrafter, TreeDrafter
from specbench.kernels import launch
from specbench.models import CachedModel
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import SamplingParams, resolve, where
from tests.decoding.test_decoding import GREEDY, texts
from tests.helpers import cases
from tests.helpers.by_definition import shaped_logits
from tests.helpers.cases import come_and_go, in_float64
from tests.helpers.markov_pair import MarkovDrafter, MarkovModel, markov_pair
from tests.helpers.toy import toy_pair, toy_requests

NEW = 14


def asked_of(free):
    """Parameters that change each of these texts, but for one."""
    return [
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 3.0},
        {"bad_words": [f"{free[2][3]}", f"{free[2][1]} {free[2][2]}"]},
        {"allowed_token_ids": [token for token in range(61) if token != free[3][1]], "logit_bias": {20: 2.0}},
        {"min_tokens": 9, "logit_bias": {3: 100.0}},
        {},
        {"repetition_penalty": 0.8, "frequency_penalty": 1.5, "bad_words": [f"{free[6][4]}"], "min_tokens": 4},
        {"thinking_token_budget": 3, "allowed_token_ids": [token for token in range(61) if token != THOUGHT]},
        {"thinking_token_budget": 5, "presence_penalty": 0.7},
    ]


WAYS = {
    "model": (ModelDrafter(), MaskedVerifier(), 4),
    "block": (ModelDrafter(), BlockVerifier(), 4),
    "prompt_lookup": (PromptLookupDrafter(), MaskedVerifier(), 4),
    "tree": (TreeDrafter([2]), TreeVerifier(), 2),
    "top_tree": (TopTreeDrafter([2]), TreeVerifier(), 2),
}
THOUGHT = 33  # ends thinking
ENGINES = {"eager": EagerEngine, "static": StaticEngine}


@pytest.fixture(scope="module")
def tiny(pair):
    return in_float64(toy_pair(pair))


@pytest.fixture(scope="module")
def requests(tiny):
    """Greedy ones of various parameters, whose texts go on until min_tokens or a length stops them."""
    prompts = toy_requests((5, 9, 3, 12, 7, 4, 8, 11, 9))
    made = [dataclasses.replace(request, sampling=GREEDY, max_new_tokens=NEW) for request in prompts]
    free = texts(cases.decoder(tiny, 0, stop_ids=()).run(made))
    # The last two begin to think in their prompts.
    begins = [free[7][2]] * 8 + [made[8].prompt[-2]]
    sampling = [
        resolve(dataclasses.replace(GREEDY, **changes), numbers_of, tiny.stop_ids, tiny.vocab_size, (start, THOUGHT))
        for changes, start in zip(asked_of(free), begins, strict=True)
    ]
    return [dataclasses.replace(request, sampling=params) for request, params in zip(made, sampling, strict=True)]


def numbers_of(text):
    return [int(word) for word in text.split()]


@pytest.fixture(scope="module")
def one_at_a_time(tiny, requests):
    """The target alone, fed the whole text for every token."""
    engine, continuations = CachedModel(tiny.target, tiny.vocab_size, "target"), []
    for request in requests:
        text: list[int] = []
        while len(text) < NEW and not (text and text[-1] in tiny.stop_ids):
            logits = engine.score([*request.prompt, *text])[-1].tolist()
            text.append(int(np.argmax(shaped_logits(logits, request.sampling, request.prompt, text))))
        continuations.append(text)
    return continuations


def decoder(pair, way, engine):
    drafter, verifier, gamma = WAYS[way]
    return cases.decoder(pair, gamma, drafter=drafter, verifier=verifier, engine=engine)


def test_parameters_change_the_text_and_end_where_they_say(tiny, requests, one_at_a_time):
    """Else the comparisons below would compare nothing."""
    plain = [dataclasses.replace(request, sampling=GREEDY) for request in requests]
    free = texts(cases.decoder(tiny, 0).run(plain))
    differ = [text != other for text, other in zip(one_at_a_time, free, strict=True)]
    assert differ == [True] * 5 + [False] + [True] * 3
    assert len(one_at_a_time[4]) == 10, "ends as soon as it may"
    ends = [i for i, token in enumerate(one_at_a_time[7]) if token == THOUGHT]
    assert ends == [3, 8], "it thinks twice: from its prompt on, and again"
    assert one_at_a_time[8].index(THOUGHT) == 4, "one token of thinking is in the prompt"


@pytest.mark.cases(3)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("way", WAYS)
def test_greedy_texts_are_those_of_one_token_at_a_time(tiny, requests, one_at_a_time, way, engine):
    """All in one batch, and drafts of which some is accepted: a count that leaves out drafted tokens, or takes in those
    behind the position, changes the text or refuses what the draft proposed."""
    completions = decoder(tiny, way, engine()).run(requests)
    assert texts(completions) == one_at_a_time
    assert sum(step.num_accepted for completion in completions for step in completion.steps) > 10


def test_plain_texts_are_too(tiny, requests, one_at_a_time):
    assert texts(cases.decoder(tiny, 0, engine=StaticEngine()).run(requests)) == one_at_a_time


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_rows_follow_requests_that_come_and_go(tiny, requests, one_at_a_time, engine):
    """Rows are written, moved and freed; new parameters come late, and no row keeps those of another request."""
    decoding = decoder(tiny, "model", engine())
    order = [5, 3, 0, 6, 8, 2, 5, 1, 7, 4]
    again = [dataclasses.replace(requests[i], name=f"{i}/{n}") for n, i in enumerate(order)]
    decoding.run(again[3:5])  # what they leave in memory is found
    completions = come_and_go(decoding, again, random.Random(0), most=3)
    assert texts(completions) == [one_at_a_time[i] for i in order]


def test_a_step_without_such_parameters_looks_at_no_text(tiny, requests, monkeypatch):
    """Even in memory in which others had some before."""
    decoding = decoder(tiny, "model", StaticEngine())
    decoding.run(requests[:2])
    monkeypatch.setattr("specbench.sampling.batch.History", None)
    assert decoding.run([requests[5]])[0].finished


@pytest.mark.cases(1)
@pytest.mark.skipif(not launch.INTERPRETED, reason="tests/gpu/test_engines_on_gpu.py decodes on a GPU")
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("chosen", [(0, 2, 7), (0, 3)], ids=["in place", "with a mask beside the logits"])
def test_the_fused_verifier_and_kernels_write_the_texts_of_their_plain_twins(
    pair, requests, chosen, monkeypatch, thorough
):
    """Sampled texts in float32: both draw the same uniforms, so that bans of another position show."""
    small, tokens = toy_pair(pair), 6 if thorough else 4
    warm = [
        dataclasses.replace(
            request, sampling=dataclasses.replace(request.sampling, temperature=0.9), max_new_tokens=tokens
        )
        for request in (requests[i] for i in chosen)
    ]
    texts_by_verifier = {}
    for kernels, verifier in ((False, MaskedVerifier()), (True, FusedVerifier())):
        monkeypatch.setattr(where, "by_kernels", lambda _, kernels=kernels: kernels)
        decoding = cases.decoder(small, verifier=verifier, engine=StaticEngine())
        texts_by_verifier[type(verifier)] = texts(decoding.run(warm))
    assert texts_by_verifier[FusedVerifier] == texts_by_verifier[MaskedVerifier]


# --- In distribution ---

MIX = {
    "temperature": 0.9, "presence_penalty": 0.3, "frequency_penalty": 0.5, "repetition_penalty": 1.3,
    "logit_bias": {1: 0.6}, "bad_words": ["1 0"], "min_tokens": 2,
}  # fmt: skip
THINKS = {"temperature": 0.9, "thinking_token_budget": 1, "logit_bias": {1: -0.5}}
LENGTH, COUNT, STOP = 4, 6_000, 2


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("verifier", "mapping"),
    [(MaskedVerifier(), MIX), (BlockVerifier(), MIX), (BlockVerifier(), THINKS)],
    ids=["token", "block", "thinking"],
)
def test_texts_have_the_distribution_of_the_definition(verifier, mapping):
    """6,000 texts of up to four tokens of a stop token and two others against their tiny probabilities. False alarm
    1e-9. Leaving the drafted tokens out of the counts, of bad words or of min_tokens is found with p below 1e-100."""
    p, q = markov_pair(vocabulary=3, closeness=0.5, seed=1)
    sampling = resolve(SamplingParams.from_mapping(mapping), numbers_of, [STOP], 3, thinking_ids=(0, 1))
    made = [Request(str(i), (0, 1), i, sampling, LENGTH) for i in range(COUNT)]
    decoding = Decoder(MarkovModel(p), MarkovDrafter(q), verifier, 3, frozenset({STOP}))
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, COUNT, 3_000):
        counts.update(tuple(completion.token_ids) for completion in decoding.run(made[start : start + 3_000]))
    expected = {text: COUNT * prob for text, prob in ended_texts(p, sampling, (0, 1), ()) if prob > 0}
    assert sum(expected.values()) == pytest.approx(COUNT)
    assert set(counts) <= set(expected)
    test = stats.chisquare([counts[text] for text in expected], list(expected.values()))
    assert test.pvalue > 1e-9


def ended_texts(p, sampling, prompt, text):
    """Every text that may come, and its probability."""
    if len(text) == LENGTH or (text and text[-1] == STOP):
        yield text, 1.0
        return
    logits = np.log(p[[*prompt, *text][-1]]).tolist()
    weights = np.exp(np.array(shaped_logits(logits, sampling, prompt, text)) / sampling.temperature)
    for token, weight in enumerate(weights / weights.sum()):
        for whole, prob in ended_texts(p, sampling, prompt, (*text, token)):
            yield whole, weight * prob
