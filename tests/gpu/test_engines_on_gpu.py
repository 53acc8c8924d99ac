"""Captured steps on a GPU: the texts of eager ones, errors by name, memory that does not grow."""

import dataclasses
import gc
import random
import weakref

import pytest
import torch

from specbench.core.errors import ConfigError, ModelError
from specbench.decoding import Decoder
from specbench.decoding.engines.auto import AutoEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.fixed_prompts import FixedPrompts
from specbench.decoding.engines.graph import GraphEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.extras.compiled import early_code
from specbench.extras.compiled.engine import CompiledEngine
from specbench.models import CachedModel, load_pair
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.decoding.test_engines import logs
from tests.helpers import cases
from tests.helpers.cases import bound
from tests.helpers.kernel_cases import on_a_gpu

pytestmark = on_a_gpu


@pytest.fixture(scope="module")
def on_gpu():
    return load_pair("embedded:target", "embedded:draft", device="cuda", dtype="float32")


def decoder(pair, engine, drafter=None, verifier=None, gamma=4):
    return cases.decoder(pair, gamma, drafter=drafter, verifier=verifier or FusedVerifier(), engine=engine)


class Ban:
    """No token 5: nothing of it comes from the host, so that a CUDA graph can hold it."""

    def __call__(self, logits, history):
        return logits.masked_fill(torch.arange(logits.shape[1], device=logits.device) == 5, -torch.inf)


def various(pair, count):
    """Requests of several lengths and samplers, the third with a processor.

    Of their seeds no uniform is within float32's rounding of a threshold.
    """
    requests = [
        dataclasses.replace(request, seed=2000 + i, max_new_tokens=4 + 7 * (i % 6))
        for i, request in enumerate(make_requests(pair, count))
    ]
    banned = SamplingParams(processors=(Ban(),))
    return [dataclasses.replace(r, sampling=banned) if i == 2 else r for i, r in enumerate(requests)]


@pytest.mark.parametrize("at_once", [1, 5, 16])
@pytest.mark.parametrize(
    ("drafter", "verifier", "gamma"),
    [
        (ModelDrafter(), FusedVerifier(), 4),
        (ModelDrafter(), FusedVerifier(block=True), 6),
        (ModelDrafter(), MaskedVerifier(), 3),
        (PromptLookupDrafter(), FusedVerifier(), 3),
        (None, None, 0),
    ],
    ids=["token", "block", "masked", "prompt_lookup", "plain"],
)
def test_captured_steps_write_what_eager_ones_do(on_gpu, drafter, verifier, gamma, at_once):
    requests = various(on_gpu, 20)
    expected = decoder(on_gpu, EagerEngine(), drafter, verifier, gamma).run(requests, at_once)
    captured = decoder(on_gpu, GraphEngine(), drafter, verifier, gamma)
    assert logs(captured.run(requests, at_once)) == logs(expected)
    assert logs(captured.run(requests[::-1], at_once)) == logs(expected[::-1])
    assert captured.engine.preparation > 0


@pytest.mark.parametrize("chunk", [None, 50])
@pytest.mark.parametrize("drafter", [ModelDrafter(), PromptLookupDrafter()], ids=["model", "prompt_lookup"])
def test_captured_pieces_of_prompts_leave_what_whole_prompts_do(on_gpu, drafter, chunk, monkeypatch):
    requests = [dataclasses.replace(r, prompt=(r.prompt * 9)[: 1 + 37 * i]) for i, r in enumerate(various(on_gpu, 9))]
    expected = logs(decoder(on_gpu, EagerEngine(), drafter).run(requests, 3))
    fed, feed = set(), FixedPrompts.feed
    monkeypatch.setattr(FixedPrompts, "feed", lambda self, cache, *to: (fed.add(cache.name), feed(self, cache, *to)))
    captured = decoder(on_gpu, GraphEngine(prompt_chunk=chunk), drafter)
    assert logs(captured.run(requests, 3)) == expected
    assert logs(captured.run(requests[::-1], 3)) == expected[::-1]
    assert fed == ({"target", "draft"} if drafter.needs_draft_model else {"target"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # PyTorch's own, while it compiles
@pytest.mark.usefixtures("unchecked")  # checks of shapes would be compiled too
def test_compiled_steps_write_what_eager_ones_do(on_gpu):
    requests = various(on_gpu, 8)
    compiled = decoder(on_gpu, CompiledEngine())
    expected = logs(decoder(on_gpu, EagerEngine()).run(requests, 4))
    for _ in range(5):  # kernels that start early and read too soon would not do so each time
        assert logs(compiled.run(requests, 4)) == expected
    assert compiled.engine.batch_sizes == (4,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("unchecked")
def test_steps_that_are_compiled_again_leave_graphs_of_before_as_they_are(on_gpu, monkeypatch):
    """Prompts are captured before the first step, whose code is refused then; another engine has captured its steps."""
    requests = various(on_gpu, 6)
    target = CachedModel(on_gpu.target, on_gpu.vocab_size, "target")
    drafter = bound(ModelDrafter(), on_gpu)
    decoders = [
        Decoder(target, None, None, 0, on_gpu.stop_ids, CompiledEngine()),
        Decoder(target, drafter, FusedVerifier(), 3, on_gpu.stop_ids, CompiledEngine()),
    ]
    expected = [logs(decoder(on_gpu, EagerEngine(), gamma=g).run(requests, 2)) for g in (0, 3)]
    monkeypatch.setattr(early_code, "check", lambda: (_ for _ in ()).throw(ModelError("refused")))
    for _ in range(2):
        for decoding, texts in zip(decoders, expected, strict=True):
            gc.collect()
            torch.cuda.empty_cache()
            assert logs(decoding.run(requests, 2)) == texts


def test_two_decoders_share_a_target_whose_memory_grows(on_gpu):
    """A graph that held on to memory that is gone would write other texts, or none."""
    target, requests = CachedModel(on_gpu.target, on_gpu.vocab_size, "target"), various(on_gpu, 12)
    speculative = Decoder(target, bound(ModelDrafter(), on_gpu), FusedVerifier(), 4, on_gpu.stop_ids, GraphEngine())
    plain = Decoder(target, None, None, 0, on_gpu.stop_ids, GraphEngine())
    expected = [logs(decoder(on_gpu, EagerEngine(), gamma=g).run(requests)) for g in (4, 0)]
    for count in (2, 5, 12, 3):
        for decoding, texts in zip((speculative, plain), expected, strict=True):
            assert logs(decoding.run(requests[:count])) == texts[:count]


def test_memory_does_not_grow_and_no_text_differs(on_gpu):
    """Hundreds of requests of random lengths and samplers come and go; a leak of one row a request would show."""
    requests = various(on_gpu, 48)
    eager = logs(decoder(on_gpu, EagerEngine()).run(requests))
    expected = {request.name: log for request, log in zip(requests, eager, strict=True)}
    rng, decoding = random.Random(1), decoder(on_gpu, GraphEngine())
    decoding.reserve(requests, 8)
    decoding.run(requests, 8)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(4):
        chosen = rng.sample(requests, 40)
        for completion in decoding.run(chosen, 8):
            assert logs([completion])[0] == expected[completion.request.name]
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 2**20


class Collecting(FusedVerifier):
    """Drops a decoder in a cycle of references during a capture, and collects it as Python itself might."""

    def __init__(self, lost):
        super().__init__()
        self.lost = [lost]

    def verify(self, draft, target, streams):
        if torch.cuda.is_current_stream_capturing():
            self.lost.clear()
            if gc.isenabled():
                gc.collect()
        return super().verify(draft, target, streams)


def test_graphs_that_nothing_uses_do_not_end_a_capture(on_gpu):
    """They are freed at once; those in a cycle of references, such as a traceback makes, not while others are made."""
    requests = various(on_gpu, 2)
    gc.collect()
    gc.disable()
    try:
        lost = decoder(on_gpu, engine=GraphEngine())
        expected, graphs = logs(lost.run(requests)), weakref.ref(lost.engine._fixed_prompts)
        del lost
        assert graphs() is None
    finally:
        gc.enable()
    lost = decoder(on_gpu, engine=GraphEngine())
    lost.run(requests)
    lost.itself = lost
    collecting = decoder(on_gpu, verifier=Collecting(lost), engine=GraphEngine())
    del lost
    assert logs(collecting.run(requests)) == expected


@pytest.mark.parametrize("name", ["target model", "drafter"])
def test_nan_is_named(on_gpu, name):
    """Weights that are NaN from some layer on: nobody waits for the logits, and the error still says whose they are."""
    broken = load_pair("embedded:target", "embedded:draft", device="cuda", dtype="float32")
    model = broken.target if name == "target model" else broken.draft
    with torch.no_grad():
        model.lm_head.weight[7] = torch.nan
    requests = make_requests(broken, 2)
    with pytest.raises(ModelError, match=rf"The {name} returned NaN .* prompt '{requests[0].name}' at step 0\."):
        decoder(broken, GraphEngine()).run(requests)


def test_what_waits_for_the_device_is_named():
    pair = load_pair("embedded:target", "embedded:draft", device="cuda", dtype="float32")
    layer = pair.target.model.layers[0].mlp

    def waits(module, args, out):
        return out * float(out.abs().max() > 0)

    layer.register_forward_hook(waits)
    says = r"cannot be captured in a CUDA graph: .*test_engines_on_gpu.*in waits: .*eager"
    with pytest.raises(ModelError, match=says):
        decoder(pair, GraphEngine()).run(make_requests(pair, 1))
    assert decoder(pair, EagerEngine()).run(make_requests(pair, 1))[0].token_ids  # the device is as it was


def test_auto_captures_what_can_be_captured(on_gpu):
    assert decoder(on_gpu, AutoEngine()).engine.name == "graph"
    with pytest.raises(ConfigError, match=r"engine\.batch_sizes=\[2\]: no place for 3"):
        decoder(on_gpu, GraphEngine([2])).run(make_requests(on_gpu, 3))
