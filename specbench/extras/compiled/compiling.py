"""Has torch.compile make the code of steps of fixed shapes: of models, around products of our own, and of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from specbench.core.machine import ranks
from specbench.extras.compiled import few_rows, joined, products
from specbench.kernels import dependent
from specbench.models import recompiling
from specbench.models.cache import RaggedCache
from specbench.models.cached_model import CachedModel
from specbench.models.layer_copies import with_own_layers

_SHAPES = 256  # that a function may be compiled for


def compile_model(cached: CachedModel, early: bool = True) -> None:
    """Has torch.compile make the code of every later ``extend`` of fixed shapes, when a shape first comes.

    Kernels of ours take passes over few tokens of Llama-like models, pieces of prompts among them (few_rows.py). Other
    pieces of prompts run PyTorch's own kernels, uncompiled. In all other passes layers that read the same input become
    one product (joined.py), and products of few rows are ours (products.py).
    PyTorch's kernels start early too, where the GPU can (kernels/dependent.py). PyTorch chooses some kernels by their
    speed on this machine, so each process may round in its own way. Ranks have to agree to the last bit, and take
    kernels that were chosen without timing.

    Args:
        early: whether PyTorch's kernels start early. The caller has to check their code (early_code.py).
    """
    plain, layers = few_rows.takes(cached), with_own_layers(cached.model)
    joined.join(layers)
    products.install_sums(layers)
    products.install(layers)
    early = early and dependent.possible(cached.device)
    compiled = compile_fixed(cached.placed(layers), early, post_grad_custom_pre_pass=OuterProducts())
    few = few_rows.FewRows(cached, layers) if plain else None
    of_prompts = cached.placed(cached.model)

    def forward(
        lengths: Tensor, positions: Tensor, ancestors: Tensor | None, past_key_values: RaggedCache, **inputs: Any
    ) -> Any:
        is_prompt = bool(inputs["logits_to_keep"])
        if few is not None and few.takes(inputs["input_ids"], ancestors, "output_hidden_states" in inputs):
            return few(past_key_values, lengths, inputs["input_ids"], is_prompt)
        if is_prompt:
            return of_prompts(lengths, positions, ancestors, past_key_values, **inputs)
        with products.ours():
            return compiled(lengths, positions, ancestors, past_key_values, **inputs)

    cached.fixed_forward = forward


class OuterProducts(CustomGraphPass):
    """Multiplies number by number where a sum of a product has a single term, as in rotary angles.

    A library's product would be a kernel by itself, with copies of what it reads. The result is the same.
    """

    def __call__(self, graph: Graph) -> None:
        for product in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            for node in graph.find_nodes(op="call_function", target=product):
                if node.args[0].meta["val"].shape[-1] == 1:
                    node.target = torch.ops.aten.mul.Tensor

    def uuid(self) -> str:
        return "specbench outer products 1"


def compile_fixed(function: Callable[..., Any], early: bool, **options: Any) -> Callable[..., Any]:
    """Returns what calls the compiled form of a function, which is compiled for each new shape.

    Args:
        early: see :func:`compile_model`.
        options: of torch.compile, more of them.
    """
    options |= {"deterministic": ranks.launched(), "triton.enable_pdl": early}
    return recompiling.compiled(function, _SHAPES, dynamic=False, options=options)
