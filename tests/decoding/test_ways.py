"""Every way to draft, through every engine, for requests of every kind, which share batches.

A greedy text is the one that the target writes alone, a token at a time. A sampled text and its steps are those that
the request has by itself, whatever comes and goes in the rows beside it. ``WAYS`` and ``ENGINES`` are the table;
``kinds`` are its requests, of which a test that fails names those that differ.
"""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specbench.decoding import Decoder, DecodingEngine, Request
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.extras.vocabularies.strings import StringsDrafter
from specbench.kernels import launch
from specbench.models import CachedModel, Pair
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams, resolve, where
from tests.decoding.test_decoding import GREEDY, texts
from tests.decoding.test_engines import logs
from tests.helpers import cases
from tests.helpers.by_definition import shaped_logits
from tests.helpers.cases import MIXED, come_and_go, in_float64
from tests.helpers.toy import DRAFTS, toy_pair, toy_requests
from tests.helpers.vocabularies import letter_pair

pytestmark = pytest.mark.usefixtures("unchecked")
TOY = "qwen2, window in one layer", 0.01  # whose greedy texts do not repeat a token
THOUGHT = 33  # ends thinking
NEW = 14
# Of different vocabularies: pairs whose draft shares 6 of the target's 8 tokens, or is of letters alone.
LETTERS = {
    "letters, model": DRAFTS["model"],
    "letters, tree": DRAFTS["tree"],
    "letters, strings": (StringsDrafter, MaskedVerifier, 3),
    "letters, sampled strings": (lambda: StringsDrafter(sampled=True), MaskedVerifier, 3),
}
WAYS = {"plain": (lambda: None, lambda: None, 0), **DRAFTS, **LETTERS}
ENGINES = {
    "eager": EagerEngine,
    "eager, bounds": EagerEngine,  # in place of lengths that the host reads
    "eager, pieces": lambda: EagerEngine(5),
    "static": StaticEngine,
    "static, two sizes": lambda: StaticEngine([2, 24]),
    "static, pieces": lambda: StaticEngine(prompt_chunk=5),
}
ON_THE_HOST = ("naive", "suffix_lookup", "letters, strings", "letters, sampled strings")  # no engine but the eager one
AS_TEXT = ("letters, strings", "letters, sampled strings")  # which takes no pieces
DEEP = ("deep_tree", "top_tree")  # trees that have more levels than the gamma of a request
TABLE = [
    (way, engine)
    for way in WAYS
    for engine in ENGINES
    if not (way in ON_THE_HOST and "static" in engine) and not (way in AS_TEXT and "pieces" in engine)
]


class Stirred:
    """Moves each logit by the number of tokens before and by their sum: any other history moves the text."""

    def __call__(self, logits: torch.Tensor, history: Any) -> torch.Tensor:
        total = history.tokens.clamp(min=0).sum(dim=1, keepdim=True) + 5.0 * history.lengths[:, None]
        return logits + 2 * torch.sin(total * torch.arange(1, logits.shape[1] + 1)).to(logits.dtype)


def stirred(logits: Sequence[float], text: Sequence[int]) -> list[float]:
    """The same by definition."""
    return [logit + 2 * math.sin((sum(text) + 5 * len(text)) * (i + 1)) for i, logit in enumerate(logits)]


def kinds(free: Sequence[Sequence[int]]) -> dict[str, tuple[int, dict[str, Any], dict[str, Any]]]:
    """Each kind's prompt length, sampling parameters, and what else its request has. The parameters change the texts
    ``free`` of as many greedy requests, but for those of ``nothing``."""
    thinks = {"thinking_token_budget": 3, "allowed_token_ids": [token for token in range(61) if token != THOUGHT]}
    return {
        "penalties": (5, {"presence_penalty": 2.0, "frequency_penalty": 2.0}, {}),
        "repetition": (9, {"repetition_penalty": 3.0}, {}),
        "bad words": (3, {"bad_words": [f"{free[2][3]}", f"{free[2][1]} {free[2][2]}"]}, {}),
        "allowed": (12, {"allowed_token_ids": sorted({*range(61)} - {free[3][1]}), "logit_bias": {20: 2.0}}, {}),
        "min_tokens": (7, {"min_tokens": 9, "logit_bias": {3: 100.0}}, {}),
        "nothing": (4, {}, {}),
        "several": (
            8,
            {"repetition_penalty": 0.8, "frequency_penalty": 1.5, "bad_words": [f"{free[6][4]}"], "min_tokens": 4},
            {},
        ),
        "thinking": (11, thinks, {}),
        "thinking from the prompt on": (9, {"thinking_token_budget": 5, "presence_penalty": 0.7}, {}),
        "processor": (6, {"processors": (Stirred(),)}, {}),
        "processor, short": (2, {"processors": (Stirred(),)}, {"max_new_tokens": 6}),
        "gamma 0": (1, {}, {"gamma": 0, "max_new_tokens": 9}),
        "gamma 1": (17, {}, {"gamma": 1, "max_new_tokens": 20}),
        "long prompt": (40, {}, {}),
        "one token": (10, {}, {"max_new_tokens": 1}),
        "own end": (5, {}, {"stop_ids": frozenset({free[15][5], 60})}),
    }


@pytest.fixture(scope="module")
def pairs(pair) -> dict[str, Pair]:
    """In float64, where shapes of matrix products move no token."""
    words = ["a", "b", "c", "ab", "bc", "abc", "ca"]
    tiny, shared = in_float64(toy_pair(pair, *TOY)), letter_pair(words, ["c", "b", "a", "ca", "bb", "ab", "aba"])
    by_letter = dict.fromkeys(AS_TEXT, letter_pair(words, ["a", "b", "c"]))
    return {way: shared if way in LETTERS else tiny for way in WAYS} | by_letter


@pytest.fixture(scope="module")
def greedy(pairs) -> list[Request]:
    """A request of each kind, for the toy pair."""
    tiny, none = pairs["plain"], kinds([[0] * NEW] * 99)
    made = [
        dataclasses.replace(request, name=name, sampling=GREEDY, max_new_tokens=NEW)
        for request, name in zip(toy_requests(tuple(length for length, *_ in none.values())), none, strict=True)
    ]
    free = texts(cases.decoder(tiny, 0, stop_ids=()).run(made))
    requests = []
    for request, text, (_, changes, others) in zip(made, free, kinds(free).values(), strict=True):
        begins = request.prompt[-2] if "from the prompt" in request.name else text[1]
        sampling = dataclasses.replace(GREEDY, **changes)
        sampling = resolve(sampling, numbers_of, tiny.stop_ids, tiny.vocab_size, (begins, THOUGHT))
        requests.append(dataclasses.replace(request, sampling=sampling, **others))
    return requests


@pytest.fixture(scope="module")
def letters() -> list[Request]:
    """Requests for the pair of letters, of tokens that its draft has, and of others."""
    rng, params = random.Random(3), [GREEDY, dataclasses.replace(GREEDY, processors=(Stirred(),))]
    prompts = [tuple(rng.randrange(7) for _ in range(1 + 2 * i)) for i in range(9)]
    return [
        Request(str(i), prompt, 50 + i, params[i % 4 == 3], 3 + 3 * i, gamma=1 if i == 5 else None)
        for i, prompt in enumerate(prompts)
    ]


def numbers_of(text: str) -> list[int]:
    return [int(word) for word in text.split()]


SAMPLERS = [*MIXED, SamplingParams(temperature=1.5, min_p=0.4)]


def warm(requests: Sequence[Request]) -> list[Request]:
    """The requests at various temperatures and cutoffs, 0 among them."""
    fields = ("temperature", "top_k", "top_p", "min_p")
    return [
        dataclasses.replace(
            request,
            sampling=dataclasses.replace(
                request.sampling, **{name: getattr(SAMPLERS[i % len(SAMPLERS)], name) for name in fields}
            ),
        )
        for i, request in enumerate(requests)
    ]


def one_at_a_time(pair: Pair, request: Request) -> list[int]:
    """The target alone, fed the whole text for every token."""
    engine, text = CachedModel(pair.target, pair.vocab_size, "target"), list[int]()
    ends = pair.stop_ids if request.stop_ids is None else request.stop_ids
    while len(text) < request.max_new_tokens and not (text and text[-1] in ends):
        logits = engine.score([*request.prompt, *text])[-1].tolist()
        if request.sampling.processors:
            logits = stirred(logits, [*request.prompt, *text])
        text.append(int(np.argmax(shaped_logits(logits, request.sampling, request.prompt, text))))
    return text


@pytest.fixture(scope="module")
def plain(pairs, greedy, letters) -> dict[str, list[int]]:
    """Every greedy text by definition."""
    return {
        request.name: one_at_a_time(pairs[way], request)
        for way, requests in (("plain", greedy), ("letters, model", letters))
        for request in requests
    }


def decoder(pair: Pair, way: str, engine: DecodingEngine, gamma: int | None = None) -> Decoder:
    drafter, verifier, most = WAYS[way]
    gamma = most if gamma is None else min(gamma, most)
    return cases.decoder(pair, gamma, drafter=drafter(), verifier=verifier(), engine=engine)


@pytest.fixture(scope="module")
def alone(pairs, greedy, letters):
    """The texts and steps of a way's requests, each decoded by itself and by a decoder of its own gamma."""
    made: dict[str, dict[str, tuple]] = {}

    def logs_of(way: str) -> tuple[list[Request], dict[str, tuple]]:
        requests = warm(letters if way in LETTERS else greedy)
        if way not in made:
            gammas = (None, 0) if way in DEEP else (None, 0, 1)
            decoders = {gamma: decoder(pairs[way], way, EagerEngine(), gamma) for gamma in gammas}
            made[way] = {
                request.name: logs(decoders.get(request.gamma, decoders[None]).run([request]))[0]
                for request in requests
            }
        return requests, made[way]

    return logs_of


def by_name(completions: Sequence[Any]) -> dict[str, tuple]:
    return dict(zip((completion.request.name for completion in completions), logs(completions), strict=True))


def test_parameters_change_the_texts_and_end_where_they_say(pairs, greedy, plain):
    """Else the comparisons below would compare nothing."""
    free = [dataclasses.replace(request, sampling=GREEDY, stop_ids=None) for request in greedy]
    unshaped = {request.name: one_at_a_time(pairs["plain"], request) for request in free}
    assert {name for name in unshaped if plain[name] == unshaped[name]} == {
        *("nothing", "gamma 0", "gamma 1", "long prompt", "one token")
    }
    assert len(plain["min_tokens"]) == 10, "ends as soon as it may"
    ends = [i for i, token in enumerate(plain["thinking"]) if token == THOUGHT]
    assert ends == [0, 6, 11], "its prompt has spent the budget, and it thinks twice again"
    assert plain["thinking from the prompt on"].index(THOUGHT) == 4, "one token of thinking is in the prompt"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "synthetic"])
def test_greedy_texts_are_those_of_one_token_at_a_time(pairs, greedy, letters, plain, way):
    """A count that leaves out drafted tokens, or takes in those behind the position, changes the text or refuses what
    the draft proposed."""
    requests = letters if way in LETTERS else greedy
    completions = decoder(pairs[way], way, EagerEngine()).run(requests)
    got = {completion.request.name: completion.token_ids for completion in completions}
    assert got == {request.name: plain[request.name] for request in requests}
    accepted = sum(step.num_accepted for text in completions for step in text.steps)
    assert accepted > (1 if way in LETTERS else 3) or way == "plain"


@pytest.mark.cases(12)
@pytest.mark.parametrize(("way", "engine"), TABLE, ids=map(": ".join, TABLE))
def test_engines_and_batches_write_what_each_request_writes_alone(pairs, alone, way, engine, request):
    """Rows are filled, moved and freed; what earlier requests left in memory is not seen."""
    requests, expected = alone(way)
    if "bounds" in engine:
        request.getfixturevalue("reading_nothing")
    decoding = decoder(pairs[way], way, ENGINES[engine]())
    assert by_name(decoding.run(requests, at_once=3)) == expected
    assert by_name(come_and_go(decoding, requests[::-1], random.Random(0), most=3)) == expected


@pytest.mark.parametrize("way", ["model", "block", "tree", "letters, model"])
def test_a_draft_that_is_the_target_is_accepted_whole(pairs, greedy, letters, way):
    """Both models' logits are shaped by what stands before each place, or the draft proposes other tokens."""
    pair, requests = (pairs["plain"], greedy) if way not in LETTERS else (pairs[way], letters)
    same = dataclasses.replace(pair, draft=pair.target, translation=None)
    for completion in decoder(same, way, EagerEngine()).run(requests):
        steps = [(step.draft_depth, step.num_accepted) for step in completion.steps]
        assert all(depth == accepted for depth, accepted in steps), (completion.request.name, steps)


def test_a_step_without_such_parameters_looks_at_no_text(pairs, greedy, monkeypatch):
    """Even in memory in which others had some before."""
    decoding = decoder(pairs["model"], "model", StaticEngine())
    decoding.run(greedy[:2])
    monkeypatch.setattr("specbench.sampling.batch.History", None)
    assert decoding.run([request for request in greedy if request.name == "nothing"])[0].finished


@pytest.mark.cases(1)
@pytest.mark.skipif(not launch.INTERPRETED, reason="tests/gpu/test_engines_on_gpu.py decodes on a GPU")
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("names", [("penalties", "bad words", "thinking"), ("penalties", "allowed")], ids=" ".join)
def test_the_fused_verifier_and_kernels_write_the_texts_of_their_plain_twins(
    pair, greedy, names, monkeypatch, thorough
):
    """Sampled texts in float32: both draw the same uniforms, so that bans of another position show. A request that
    allows some ids has a mask beside the logits."""
    requests = [
        dataclasses.replace(
            request,
            sampling=dataclasses.replace(request.sampling, temperature=0.9),
            max_new_tokens=6 if thorough else 4,
        )
        for request in greedy
        if request.name in names
    ]
    texts_by_verifier = {}
    for kernels, verifier in ((False, MaskedVerifier()), (True, FusedVerifier())):
        monkeypatch.setattr(where, "by_kernels", lambda _, kernels=kernels: kernels)
        decoding = cases.decoder(toy_pair(pair, *TOY), verifier=verifier, engine=StaticEngine())
        texts_by_verifier[type(verifier)] = texts(decoding.run(requests))
    assert texts_by_verifier[FusedVerifier] == texts_by_verifier[MaskedVerifier]
