"""Passes of Llama-like models in C++ have the logits of transformers' own, and texts those of eager steps."""

import dataclasses
from unittest import mock

import pytest
import torch

from experiments.embedded_pair.rounding import round_to_bytes
from specbench.core import trees
from specbench.core.errors import ArgumentError
from specbench.decoding.engines.compiled_cpu import CompiledCpuEngine
from specbench.drafters.model import ModelDrafter
from specbench.kernels import cpu_product, cpu_rows
from specbench.models import CachedModel, cached_model, cpu_model
from specbench.models.cache import PackedLayer, RaggedCache
from specbench.models.compiling_cpu import compile_on_cpu
from tests.decoding.test_decoding import GREEDY, make_requests
from tests.decoding.test_engines import logs
from tests.helpers import families
from tests.helpers.cases import decoder
from tests.helpers.toy import toy_decoder, toy_pair, toy_requests

NATIVE = {
    "llama", "llama, one key head", "llama, no groups", "llama3 positions", "yarn positions", "dynamic positions",
    "qwen2", "qwen3", "mistral",
}  # fmt: skip


@pytest.fixture(autouse=True)
def library():
    cpu_product.load()


def made_native(engine):
    engine.native = cpu_model.CpuModel(engine)


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_logits_are_those_of_transformers(name):
    """Ragged requests that are extended and cut back: biases, norms of queries and keys, groups, scaled positions."""
    with cpu_rows.drawing():
        assert families.apart(name, prepare=made_native) < 1e-4


def test_logits_of_rounded_weights_are_those_of_transformers(monkeypatch):
    """A byte a weight, as the embedded draft has it, in every matrix of a pass."""
    wide = families.made

    def rounded(name):
        model = wide(name)
        round_to_bytes(model)
        return model

    monkeypatch.setattr(families, "made", rounded)
    assert cpu_model.CpuModel(cached(rounded("llama")))._weights.dtype == torch.int8
    with cpu_rows.drawing():
        assert families.apart("llama", prepare=made_native) < 1e-4


def test_other_models_are_left_to_pytorch():
    """Windows, positions that change with the length, other architectures; hooks and replaced layers of any."""
    taken = {name for name in families.CONFIGS if cpu_model.takes(cached(families.made(name)))}
    assert taken == NATIVE
    hooked, patched, half = (families.made("llama") for _ in range(3))
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    patched.model.layers[0].mlp.forward = lambda x: x
    for model in (hooked, patched, half.double()):
        assert not cpu_model.takes(cached(model))


def cached(model):
    return CachedModel(model, families.VOCABULARY, "target")


def test_nodes_of_a_tree_have_the_logits_of_their_paths():
    """A tree fed in two parts, as it is drafted, to texts of different lengths beside a row without a request."""
    parents = torch.tensor([[-1, 0, 0, 2, 1, 1, 4]] * 3)
    whole, fed = (
        trees.ancestors(parents, 4),
        torch.randint(1, families.VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(3)),
    )
    model, logits = cached(families.made("qwen3")), {}
    for native in (None, cpu_model.CpuModel(model)):
        model.native = native
        model.start([[1, 2, 3, 4, 5, 6, 7], [8, 9], [5]], 40)
        model.show(3)
        with cpu_rows.drawing():
            parts = [
                model.extend(fed[:, a:b], torch.tensor([b - a, b - a, b - a]), whole[:, a:b, :b]).logits
                for a, b in ((0, 3), (3, 7))
            ]
        logits[native is None] = torch.cat(parts, dim=1)
    assert (logits[True] - logits[False]).abs().max() < 1e-4 * logits[True].std()
    with pytest.raises(ArgumentError, match="a tree of 65 tokens"), cpu_rows.drawing():
        model.extend(fed, torch.tensor([1, 1, 1]), torch.ones((3, 7, 65), dtype=torch.bool))


@pytest.mark.parametrize("draft", ["model", "probability", "block", "prompt_lookup", "suffix_lookup", "tree"])
def test_texts_are_those_of_eager_steps(pair, draft):
    """Requests of several samplers that come and end in two rows; then a text that needs more memory."""
    toy, requests = toy_pair(pair, "llama"), toy_requests((5, 2, 9, 7, 3, 1))
    compiled, eager = (toy_decoder(toy, draft, engine) for engine in (CompiledCpuEngine(), None))
    assert compiled.components.target.native is not None
    for some, at_once in ((requests, 2), (toy_requests((30,)), 1)):
        assert logs(compiled.run(some, at_once)) == logs(eager.run(some, at_once))


def test_jobs_that_read_hidden_states_may_come_first(pair):
    """Those take other passes, whose layers are not those of the models that a sweep's jobs share."""
    toy, requests = toy_pair(pair, "llama"), toy_requests((5, 2))
    eager = logs(toy_decoder(toy).run(requests))
    for model in (toy.target, toy.draft):
        compile_on_cpu(cached(model), features=True)
    compiled = toy_decoder(toy, engine=CompiledCpuEngine())
    assert compiled.components.target.native is not None
    assert logs(compiled.run(requests)) == eager


@pytest.mark.parametrize("policy", [("probability", 0.4), ("entropy", 2.0), ("entropy", 0.0)])
def test_drafts_end_where_those_of_eager_steps_do(pair, policy):
    """A greedy request beside one at temperature 1; at last drafts of no token."""
    requests = make_requests(pair, 4, max_new_tokens=16)
    requests[1:3] = [dataclasses.replace(request, sampling=GREEDY) for request in requests[1:3]]
    compiled, eager = (
        decoder(pair, 6, drafter=ModelDrafter(None, *policy), engine=engine) for engine in (CompiledCpuEngine(), None)
    )
    with mock.patch.object(cpu_model.CpuModel, "draft", autospec=True, side_effect=cpu_model.CpuModel.draft) as draft:
        completions = compiled.run(requests, 2)
    assert draft.called
    assert logs(completions) == logs(eager.run(requests, 2))
    drafted = {step.num_draft_tokens for completion in completions for step in completion.steps}
    assert drafted == {0} if policy[1] == 0 else len(drafted) > 3


@pytest.mark.parametrize("chunk", [None, 6])
def test_long_prompts_that_pytorch_feeds_are_extended_in_packed_memory(pair, chunk, monkeypatch):
    """As a whole, and in pieces of which each attends to those before it; in rows that other requests left."""
    monkeypatch.setattr(cached_model, "NATIVE_PROMPT", 4)
    toy, requests = toy_pair(pair, "qwen3"), toy_requests((15, 2, 20, 7, 3, 18))
    compiled, eager = (toy_decoder(toy, engine=engine) for engine in (CompiledCpuEngine(prompt_chunk=chunk), None))
    assert logs(compiled.run(requests, 2)) == logs(eager.run(requests, 2))
    assert all(isinstance(layer, PackedLayer) for layer in compiled.components.target._cache.layers)


@pytest.mark.parametrize(("capacity", "head_dim"), [(21, 5), (24, 8)])
def test_packed_memory_holds_what_plain_memory_does(capacity, head_dim):
    """Texts that begin, are extended, move, end and grow; sizes of whole blocks, and others."""
    generator, caches = torch.Generator().manual_seed(0), (RaggedCache(1), RaggedCache(1))

    def fed(rows, n):
        states = torch.randn(2, rows, 2, n, head_dim, generator=generator)
        return [[read.clone() for read in cache.layers[0].update(*states)] for cache in caches]

    def both(call):
        for cache in caches:
            call(cache)

    both(lambda cache: cache.grow(3, capacity))
    both(lambda cache: cache.begin(torch.tensor([2, 0, 1]), torch.tensor([1, 0, 1]), 9))
    fed(2, 9)
    for more in (0, 7):
        both(lambda cache: cache.grow(3, capacity + more))  # noqa: B023
        ((keys, values),) = caches[1].packed(torch.zeros(0), 4)
        assert keys.shape == (3, 2, -(-(capacity + more) // 4), head_dim, 4)
        assert values.shape == (3, 2, -(-head_dim // 4), len(keys[0, 0]) * 4, 4)
        for rows in (None, torch.tensor([2, 0])):
            at = torch.tensor([[9 + more, 10 + more, 11 + more], [7, 8, 9]])
            both(lambda cache: cache.extend(at, 12 + more, rows))  # noqa: B023
            plain, packed = fed(2, 3)
            assert all(map(torch.equal, plain, packed))
        both(lambda cache: cache.move(torch.tensor([2]), torch.tensor([1])))
        both(lambda cache: cache.clear(torch.tensor([2])))
        both(lambda cache: cache.begin(torch.tensor([2]), torch.tensor([0]), 4))
        fed(1, 4)
        plain, unpacked = caches[0].layers[0], caches[1].layers[0].plain()
        assert torch.equal(plain.keys, unpacked.keys)
        assert torch.equal(plain.values, unpacked.values)


def test_weights_that_change_are_read_anew():
    model, ids = families.made("llama"), torch.tensor([[3, 4, 5]])
    with torch.no_grad(), cpu_rows.drawing():
        for _ in range(2):
            engine = cached(model)
            engine.native = cpu_model.CpuModel(engine)
            engine.start([[3]], 16)
            engine.show(1)
            logits = engine.extend(ids, torch.tensor([3])).logits[0]
            torch.testing.assert_close(logits, model(input_ids=ids).logits[0], atol=1e-3, rtol=1e-3)
            model.model.layers[1].mlp.down_proj.weight.mul_(2)


def test_scores_that_overflow_are_seen_in_the_logits():
    """They are NaN, which the decoder reports, and not those of equal weights for all tokens."""
    model, ids = families.made("llama"), torch.tensor([[3, 4, 5]])
    with torch.no_grad(), cpu_rows.drawing():
        for projection in (model.model.layers[1].self_attn.q_proj, model.model.layers[1].self_attn.k_proj):
            projection.weight.mul_(1e25)
        engine = cached(model)
        engine.native = cpu_model.CpuModel(engine)
        engine.start([[3]], 16)
        engine.show(1)
        assert engine.extend(ids, torch.tensor([3])).logits.isnan().all()


def test_tokens_and_texts_beyond_the_model_are_refused():
    engine = cached(families.made("llama"))
    engine.native = cpu_model.CpuModel(engine)
    with cpu_rows.drawing():
        engine.start([[3, 4]], 8)
        engine.show(1)
        for token in (-1, families.VOCABULARY):
            with pytest.raises(IndexError, match="vocabulary"):
                engine.extend(torch.tensor([[token]]), torch.tensor([1]))
        with pytest.raises(IndexError, match="longer"):
            engine.place([list(range(10))], [0])
