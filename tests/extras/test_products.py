"""Layers whose products of few rows are ours: the same logits and weights, and only where they are asked for."""

import copy

import pytest
import torch
from torch import nn

from specbench.extras.compiled import joined
from specbench.extras.compiled.products import OwnLinear, install, ours
from specbench.kernels import launch_product, product_tiles
from specbench.models import CachedModel
from specbench.models.early_exit import EarlyExit
from tests.helpers.families import CONFIGS, VOCABULARY, made
from tests.helpers.kernel_cases import DEVICE

pytestmark = pytest.mark.usefixtures("unchecked")


def logits(model):
    """Of two requests, two tokens each but for the last."""
    engine = CachedModel(model, VOCABULARY, "target")
    engine.start([[1, 2, 3, 4, 5], [6, 7]], 16)
    tokens, counts = torch.tensor([[6, 7], [8, 9]]), torch.tensor([2, 1])
    return engine.extend(tokens.to(model.device), counts.to(model.device)).logits


@pytest.fixture
def launched(monkeypatch):
    """The rows of every launch."""
    rows, linear = [], launch_product.linear

    def noted(x, *rest, **more):
        rows.append(x.numel() // x.shape[-1])
        return linear(x, *rest, **more)

    monkeypatch.setattr(launch_product, "linear", noted)
    return rows


def on_device(name):
    return made(name).to(DEVICE)


@pytest.mark.cases(1, 6)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_computes_the_same(name, launched):
    model = on_device(name)
    plain = logits(copy.deepcopy(model))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    places = {key: value.data_ptr() for key, value in model.state_dict().items()}
    joined.join(model)
    count = install(model)
    assert install(model) == 0, "once"
    launched.clear()
    with ours():
        output = logits(model)
    torch.testing.assert_close(output, plain, rtol=0, atol=1e-5 * float(plain.std()))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert bool(launched) == bool(count or joined.join(copy.deepcopy(model)))
    if name == "llama":
        layers = model.config.num_hidden_layers
        assert count == 2 * layers + 1, "what is not joined: two a layer, and the head"
        assert after["lm_head.weight"].data_ptr() == places["lm_head.weight"], "no memory is added"
        assert launched.count(4) == 4 * layers + 1, "two requests of two tokens"


def test_only_where_they_are_asked_for(launched):
    """transformers' own decoders are timed with the same model."""
    model = on_device("llama")
    joined.join(model)
    plain = logits(model)
    install(model)
    assert torch.equal(logits(model), plain)
    with ours():
        pass
    assert torch.equal(logits(model), plain)
    assert not launched


def test_many_rows_are_left_to_pytorch(launched):
    layer = OwnLinear(nn.Linear(16, 8, device=DEVICE))
    with ours(), torch.no_grad():
        for rows in (1, 32, 33):
            x = torch.randn(1, rows, 16, device=DEVICE)  # of one request: all of its tokens are rows
            torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert launched == [1, 32]
    assert product_tiles.worth(32, 8, 16)
    assert not product_tiles.worth(33, 8, 16)
    assert product_tiles.worth(64, 16384, 2048), "but those of a large matrix"
    assert not product_tiles.worth(65, 16384, 2048)
    assert product_tiles.worth(32, 16384, 2048, itemsize=4)
    assert not product_tiles.worth(33, 16384, 2048, itemsize=4)


def test_what_cannot_be_replaced_is_left_alone(launched):
    class Quantised(nn.Linear):
        pass

    hooked = nn.Linear(16, 8, device=DEVICE)
    hooked.register_forward_hook(lambda module, args, out: 2 * out)
    odd, double = nn.Linear(12, 8, device=DEVICE), nn.Linear(16, 8, device=DEVICE, dtype=torch.float64)
    model = nn.ModuleList([hooked, odd, double, Quantised(16, 8, device=DEVICE)])
    assert install(model) == 0
    shared = nn.Linear(16, 8, device=DEVICE)
    assert install(nn.ModuleList([shared, shared])) == 2, "at each place"


def test_an_early_exit_shares_layers_that_are_replaced(launched):
    model = on_device("llama")
    target = CachedModel(model, VOCABULARY, "target")
    draft = EarlyExit(target, 1)
    expected = logits(draft.model)
    for cached_model in (target, draft):
        joined.join(cached_model.model)
        install(cached_model.model)
    with ours():
        torch.testing.assert_close(logits(draft.model), expected, rtol=0, atol=1e-5 * float(expected.std()))
    assert launched


@pytest.mark.thorough
def test_steps_are_traced_whole(launched):
    """One graph without a break, whose products are ours; the same layers outside of it keep PyTorch's."""
    torch.compiler.reset()
    model = on_device("llama")
    joined.join(model)
    install(model)
    names = []

    def backend(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    expected = logits(model)
    model.forward = torch.compile(model.forward, backend=backend, dynamic=False, fullgraph=True)
    with ours():
        torch.testing.assert_close(logits(model), expected)
    assert sum("specbench.product" in name for name in names) == len(launched) > 0
    launched.clear()
    names.clear()
    torch.testing.assert_close(logits(model), expected)
    assert not launched
    assert names, "traced again"
