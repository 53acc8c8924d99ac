"""Copies of models, in which an engine may replace layers. They share all weights with the models.

The jobs of a sweep share their models, and transformers' own decoders are timed with them. So no engine changes the
layers of a model itself: later jobs, whatever their engine is, would compute with what it left.
"""

import copy
import weakref

from torch import nn

_Children = dict[str, nn.Module | None]
# The copy of each module, and the copies of its children when it was made.
_copies: weakref.WeakKeyDictionary[nn.Module, tuple[nn.Module, _Children]] = weakref.WeakKeyDictionary()


def with_own_layers(model: nn.Module) -> nn.Module:
    """Returns the copy of a model. Its modules are copies; parameters, buffers and hooks are the model's own.

    Later calls return the same copy, with the layers that were replaced in it, unless the model has other modules by
    then. Modules that models share have one copy: an early exit and its target replace their common layers once.
    """
    children: _Children = {
        name: None if child is None else with_own_layers(child) for name, child in model._modules.items()
    }
    copied, known_children = _copies.get(model, (None, None))
    if copied is None or known_children != children:
        copied = copy.copy(model)  # its dictionaries of parameters, buffers and hooks are the model's
        copied._modules = dict(children)
        _copies[model] = copied, children
    return copied
