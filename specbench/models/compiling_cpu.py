"""Prepares a cached model for compiled steps on a CPU: by C++ code of ours, or through torch.compile."""

import functools
import inspect
import os
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from specbench.kernels import cpu_product
from specbench.models import cpu_model, packed, recompiling
from specbench.models.cached_model import CachedModel
from specbench.models.layer_copies import with_own_layers

SHAPES = 64  # kinds of passes that a model may be compiled for
LEAST_WIDTH = 2  # a pass of one token would be compiled apart, and takes as long as one of two tokens

prepared_capacities: weakref.WeakKeyDictionary[PreTrainedModel, set[int]] = weakref.WeakKeyDictionary()
_compiled_calls: weakref.WeakKeyDictionary[nn.Module, Callable[..., Any]] = weakref.WeakKeyDictionary()
_hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models that have returned hidden states


def compile_on_cpu(cached: CachedModel, features: bool = False) -> None:
    """Makes C++ code take the passes of a model if there is any (cpu_model.py), else code that torch.compile writes.

    torch.compile writes it at the first pass of a kind. One code serves all widths from two tokens on; another
    capacity, or another number of rows, is compiled anew. Float32 products are ours (kernels/cpu_product.h), and those
    of other dtypes PyTorch's.

    Args:
        features: whether hidden states are read, which C++ code does not return.

    Raises:
        ConfigError, ModelError: see :func:`specbench.kernels.cpu_product.load`.
    """
    cpu_product.load()
    if not features and cpu_model.takes(cached):
        cached.native = cpu_model.CpuModel(cached)
        return
    layers = with_own_layers(cached.model)
    packed.install(layers)
    cached.fixed_forward = cached.placed(functools.partial(_packed_call, layers, _compiled(cached.model)))
    cached.least_width = LEAST_WIDTH


def _packed_call(model: Any, compiled: Callable[..., Any], **inputs: Any) -> Any:
    observed = inputs.get("output_hidden_states", False)
    if not all(layer.is_initialized for layer in inputs["past_key_values"].layers) or (
        observed and model not in _hooked
    ):
        # Allocates them: compiled code that does would do so in every pass of its shape (_kept). transformers installs
        # hooks at a model's first pass that returns hidden states, under a lock that cannot be compiled.
        model(**inputs)
        _hooked.update([model] if observed else [])
    widths = {"input_ids": 1, "position_ids": 1, "attention_mask": 2}
    for name, dim in widths.items():
        torch._dynamo.maybe_mark_dynamic(inputs[name], dim)
    torch._dynamo.maybe_mark_dynamic(inputs["past_key_values"].write_at, 1)
    return compiled(model, **inputs)


def _compiled(model: nn.Module) -> Callable[..., Any]:
    """Returns the compiled call of a model, with its own cache of code. A later job of the process uses it again."""
    if model not in _compiled_calls:
        code = inspect.unwrap(_call).__code__.replace()  # a copy: PyTorch keeps what it compiles with a function's code
        call = types.FunctionType(code, globals())
        options: dict[str, Any] = {"guard_filter_fn": _kept, "size_asserts": False, "alignment_asserts": False}
        if not os.environ.get("CXX"):
            options["cpp.cxx"] = (cpu_product.find_compiler(),)
        # By fullgraph it is an error if a part cannot be compiled.
        _compiled_calls[model] = recompiling.compiled(call, SHAPES, fullgraph=True, options=options)
    return _compiled_calls[model]


def _kept(guards: Sequence[Any]) -> list[bool]:
    """Keeps the conditions on what differs from pass to pass, among the conditions PyTorch would check in each pass.

    Those are the inputs and PyTorch's own state, which has no name. Modules, a model and the layers of its cache stay
    as they are; their thousand conditions take longer than a draft's pass.
    """
    return [_differs(guard.name) for guard in guards]


def _differs(name: str) -> bool:
    of_layers = "['past_key_values'].layers" in name and not name.endswith(".layers[0].keys")
    return not name or (name.startswith("inputs") and not of_layers)


def _call(model: Any, **inputs: Any) -> Any:
    return model(**inputs)
