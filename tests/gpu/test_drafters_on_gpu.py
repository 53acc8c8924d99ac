"""Captured steps of every drafter, for requests that ask for all there is to ask: texts and steps of eager ones."""

import dataclasses

import pytest

from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.graph import GraphEngine
from specbench.drafters.layer_skip import LayerSkipDrafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.drafters.synthetic import SyntheticDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.models import load_pair
from specbench.rules.fused import FusedVerifier
from specbench.rules.synthetic import SyntheticVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import SamplingParams, resolve
from tests.decoding.test_decoding import make_requests, texts
from tests.decoding.test_engines import logs
from tests.helpers import cases
from tests.helpers.cases import MIXED
from tests.helpers.kernel_cases import on_a_gpu
from tests.helpers.vocabularies import relabelled

pytestmark = on_a_gpu
WAYS = {
    "token": (ModelDrafter(), FusedVerifier(), 4),
    "block": (ModelDrafter(), FusedVerifier(block=True), 4),
    "masked": (ModelDrafter(), MaskedVerifier(), 3),
    "cooler drafts": (ModelDrafter(temperature=0.5), FusedVerifier(), 4),
    "greedy drafts": (ModelDrafter(temperature=0), FusedVerifier(), 4),
    "unsure": (ModelDrafter(policy="probability", threshold=0.3), FusedVerifier(), 4),
    "layer_skip": (LayerSkipDrafter(4), FusedVerifier(), 4),
    "tree": (TreeDrafter([2, 2, 1]), TreeVerifier(), 3),
    "prompt_lookup": (PromptLookupDrafter(), FusedVerifier(), 4),
    "synthetic": (SyntheticDrafter(), SyntheticVerifier(), 4),
    "plain": (None, None, 0),
}
ASKED = (
    {},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.3, "logit_bias": {17: 3.0, 40: -100.0}},
    {"bad_words": ["self", "return"], "min_tokens": 6},
    {"allowed_token_ids": list(range(10, 3000)), "stop_token_ids": [11, 12, 13, 14]},
)


def embedded():
    return load_pair("embedded:target", "embedded:draft", device="cuda", dtype="float32")


def fewer_shared():
    """The draft's tokens in another order, and 596 of them not there."""
    pair = relabelled(load_pair("embedded:target", "embedded:draft", dtype="float32"), 3500)
    return dataclasses.replace(pair, target=pair.target.cuda(), draft=pair.draft.cuda())


@pytest.fixture(scope="module", params=[embedded, fewer_shared], ids=["same vocabulary", "different vocabularies"])
def on_gpu(request):
    return request.param()


def asking(pair, count):
    """Requests of different lengths, samplers, gammas, penalties, bans and ends."""
    made = []
    for i, request in enumerate(make_requests(pair, count)):
        sampling = dataclasses.replace(MIXED[i % 3 and 3 - i % 2], **ASKED[i % 5])
        sampling = resolve(sampling, pair.encode, pair.stop_ids, pair.vocab_size)
        lasts = {"max_new_tokens": 5 + 6 * (i % 5), "gamma": (None, 2, 0)[i % 3]}
        stops = None if i % 4 else frozenset({*pair.stop_ids, 30, 31, 32, 33})
        made.append(dataclasses.replace(request, sampling=sampling, stop_ids=stops, **lasts))
    return made


def decoder(pair, way, engine):
    drafter, verifier, gamma = WAYS[way]
    return cases.decoder(pair, gamma, drafter=drafter, verifier=verifier, engine=engine)


@pytest.mark.parametrize("way", WAYS)
def test_captured_steps_write_what_eager_ones_do(on_gpu, way):
    """A graph that holds on to a request's own parameters, counts or drafts would give them to the next one."""
    requests = asking(on_gpu, 15)
    expected = logs(decoder(on_gpu, way, EagerEngine()).run(requests, 6))
    captured = decoder(on_gpu, way, GraphEngine())
    assert logs(captured.run(requests, 6)) == expected
    assert logs(captured.run(requests[::-1], 4)) == expected[::-1]
    assert captured.engine.preparation > 0


@pytest.mark.parametrize("way", ["token", "tree", "prompt_lookup"])
def test_prompts_in_pieces_are_fed_between_captured_steps(on_gpu, way):
    requests = asking(on_gpu, 12)
    expected = logs(decoder(on_gpu, way, EagerEngine()).run(requests, 5))
    assert logs(decoder(on_gpu, way, GraphEngine(prompt_chunk=7)).run(requests, 5)) == expected


def test_greedy_texts_are_those_of_plain_decoding(on_gpu):
    requests, cold = asking(on_gpu, 15), {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
    greedy = [dataclasses.replace(r, sampling=dataclasses.replace(r.sampling, **cold)) for r in requests]
    plain = texts(decoder(on_gpu, "plain", GraphEngine()).run(greedy, 6))
    for way in set(WAYS) - {"plain", "synthetic"}:
        assert texts(decoder(on_gpu, way, GraphEngine()).run(greedy, 6)) == plain, way


def test_parameters_are_what_shapes_these_texts(on_gpu):
    """Else the tests above would compare nothing of them."""
    requests = asking(on_gpu, 15)
    free = [dataclasses.replace(request, sampling=SamplingParams(), stop_ids=None) for request in requests]
    with_all, without = (logs(decoder(on_gpu, "token", GraphEngine()).run(batch, 6)) for batch in (requests, free))
    assert sum(a[0] != b[0] for a, b in zip(with_all, without, strict=True)) >= 10
