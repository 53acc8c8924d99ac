"""Engines compute with copies of a model's layers, so that later jobs of a sweep meet the model as it was loaded."""

import functools
import gc
import weakref
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from specbench.decoding.engines.graph import GraphEngine
from specbench.extras.compiled import joined, products
from specbench.kernels import cpu_product
from specbench.models import CachedModel
from specbench.models.compiling_cpu import compile_on_cpu
from specbench.models.early_exit import first_layers
from specbench.models.layer_copies import with_own_layers
from specbench.models.packed import PackedLinear, install
from tests.extras.test_products import logits
from tests.helpers.families import VOCABULARY, made


def layers_of(model):
    return [(name, type(module), id(module)) for name, module in model.named_modules(remove_duplicate=False)]


def test_compiling_leaves_the_layers_of_a_model_alone():
    """As for a drafter that reads hidden states. transformers' decoders are timed with the same models."""
    cpu_product.load()
    model = made("llama")
    before, expected = layers_of(model), logits(model)
    compile_on_cpu(CachedModel(model, VOCABULARY, "target"), features=True)
    assert layers_of(model) == before
    assert torch.equal(logits(model), expected)


def test_joined_products_leave_the_layers_of_a_model_alone():
    """They move its weights into one matrix. No memory is added."""
    model = made("llama")
    before, expected = layers_of(model), logits(model)
    layers = with_own_layers(model)
    assert joined.join(layers) == 2 * model.config.num_hidden_layers
    products.install(layers)
    assert layers_of(model) == before
    assert torch.equal(logits(model), expected)
    own, replaced = dict(model.named_parameters()), dict(layers.named_parameters())
    assert own.keys() == replaced.keys()
    assert all(own[name] is replaced[name] for name in own)
    product = layers.model.layers[0].self_attn.q_proj.product
    assert model.model.layers[0].self_attn.q_proj.weight.data_ptr() == product.weight.data_ptr()


@pytest.mark.usefixtures("unchecked")
def test_a_captured_step_keeps_what_it_reads(monkeypatch):
    """Weights that were moved, and what the pass of a model that is compiled again has beside them.

    A CUDA graph reads them where they were when it was captured, and has no reference to them.
    """
    for name in ("CUDAGraph", "current_stream", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    model = made("llama")
    cached, engine = CachedModel(model, VOCABULARY, "target"), GraphEngine()
    engine.components = SimpleNamespace(target=cached, caches=[cached])
    engine._stream, engine._pool, engine._weights, engine._passes = MagicMock(), None, {}, {}
    table = torch.zeros(3)
    cached.fixed_forward = functools.partial(torch.clone, table)
    engine._capture(lambda: None, "a step")
    table, cached.fixed_forward = StorageWeakRef(table.untyped_storage()), None
    weights = [StorageWeakRef(weight.untyped_storage()) for weight in model.parameters()]
    joined.join(with_own_layers(model))
    gc.collect()
    assert not any(memory.expired() for memory in (*weights, table))
    del engine
    gc.collect()
    assert any(weight.expired() for weight in weights)
    assert table.expired()


def test_a_copy_keeps_what_was_replaced_in_it():
    cpu_product.load()
    model = made("llama")
    layers = with_own_layers(model)
    install(layers)
    assert with_own_layers(model) is layers
    projection = layers.model.layers[0].mlp.up_proj
    assert isinstance(projection, PackedLinear)
    shortened = with_own_layers(first_layers(model, 1))
    assert shortened.model.layers[0].mlp.up_proj is projection, "an early exit shares the target's layers"


def test_a_model_that_got_another_layer_gets_another_copy():
    cpu_product.load()
    model = made("llama")
    before = with_own_layers(model)
    install(before)
    mlp = model.model.layers[0].mlp
    mlp.up_proj = nn.Linear(mlp.up_proj.in_features, mlp.up_proj.out_features, bias=False)
    after = with_own_layers(model)
    assert after is not before
    install(after)
    torch.testing.assert_close(logits(after), logits(model), rtol=0, atol=1e-5)
    assert after.model.layers[1].mlp.up_proj is before.model.layers[1].mlp.up_proj


def test_parameters_that_are_replaced_are_the_copys_too():
    cpu_product.load()
    layer = nn.Sequential(nn.Linear(8, 8))
    layers = with_own_layers(layer)
    install(layers)
    layer[0].weight = nn.Parameter(torch.randn(8, 8))
    install(layers)
    x = torch.randn(2, 8)
    torch.testing.assert_close(layers(x), layer(x))


def test_copies_go_with_their_model():
    cpu_product.load()
    model = made("llama")
    compile_on_cpu(CachedModel(model, VOCABULARY, "target"), features=True)
    gone = weakref.ref(model), weakref.ref(with_own_layers(model)), weakref.ref(model.lm_head.weight)
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
