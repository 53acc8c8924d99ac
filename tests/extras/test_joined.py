"""Layers that are given the same input, as one product: the same logits, weights and memory."""

import copy

import pytest
import torch
from torch import nn

from specbench.extras.compiled.joined import JoinedLinear, join
from tests.extras.test_products import logits
from tests.helpers.families import CONFIGS, made


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_computes_the_same(name):
    model = made(name)
    plain = logits(copy.deepcopy(model))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    products = join(model)
    torch.testing.assert_close(logits(model), plain, rtol=0, atol=1e-5 * float(plain.std()))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert join(model) == 0, "once"
    assert all(module.product.of is None for module in model.modules() if isinstance(module, JoinedLinear))
    if name == "llama":
        assert products == 2 * model.config.num_hidden_layers


def test_weights_share_the_memory_of_the_product():
    model = made("llama")
    count = sum(parameter.numel() for parameter in model.parameters())
    join(model)
    layer = model.model.layers[0].self_attn
    assert layer.k_proj.weight.data_ptr() == layer.q_proj.product.weight[layer.q_proj.out_features :].data_ptr()
    assert sum(parameter.numel() for parameter in model.parameters()) == count


class Siblings(nn.Module):
    """Its layers are given what the test says."""

    def __init__(self, biases=(True, True)):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(3, 2, bias=biases[0]), nn.Linear(3, 5, bias=biases[1])


def test_other_inputs_and_other_orders_compute_the_same():
    """A layer that took its part of another input's product would be wrong in silence."""
    plain = Siblings()
    model = copy.deepcopy(plain)
    assert join(model) == 1
    x, y = torch.randn(2, 4, 3).unbind()
    calls = (("gate", x), ("gate", y), ("up", x), ("up", y), ("gate", y), ("gate", x), ("up", x), ("up", x))
    for layer, inputs in calls:
        name = f"{layer}_proj"
        torch.testing.assert_close(getattr(model, name)(inputs), getattr(plain, name)(inputs))


def test_what_cannot_be_joined_is_left_alone():
    assert join(Siblings((True, False))) == 0
    hooked, half = Siblings(), Siblings()
    hooked.up_proj.register_forward_hook(lambda module, args, out: 2 * out)
    half.up_proj.double()
    assert join(hooked) == join(half) == 0


@pytest.mark.usefixtures("unchecked")
def test_joined_models_are_traced_whole():
    """One graph without a break, which keeps nothing of an input."""
    torch.compiler.reset()
    model = made("llama")
    join(model)
    expected = logits(model)
    model.forward = torch.compile(model.forward, backend="eager", dynamic=False, fullgraph=True)
    torch.testing.assert_close(logits(model), expected)
    assert all(module.product.of is None for module in model.modules() if isinstance(module, JoinedLinear))
