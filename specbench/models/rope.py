"""Rotary positions that change with the length of a text, held to those of the original context.

A cached key keeps the rotation with which it was computed. Two types of rotary positions choose theirs by the longest
text of a batch: dynamic (arXiv 2309.00071, section 3.3) and longrope (arXiv 2402.13753). Beyond the original context
cached keys would be of other positions than new ones, and a text would depend on its neighbours. Up to it nothing
changes, so the context ends there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

CHANGING = ("dynamic", "longrope")


def _parameters(config: PreTrainedConfig) -> Iterator[Mapping[str, Any]]:
    """The rotary parameters of a model's text layers: one set, or one for each kind of layer."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None)
    if isinstance(parameters, Mapping):
        sets = [parameters] if "rope_type" in parameters else parameters.values()
        yield from (values for values in sets if isinstance(values, Mapping))


def original_contexts(config: PreTrainedConfig) -> list[int]:
    """Lengths beyond which a model's rotary positions would change."""
    changing = [parameters for parameters in _parameters(config) if _changes(parameters.get("rope_type"))]
    lengths = [parameters.get("original_max_position_embeddings") for parameters in changing]
    return [int(length) for length in lengths if length is not None]


def hold(model: PreTrainedModel) -> None:
    """Keeps rotary positions from asking for the longest text, which would also wait for the device at each call."""
    modules: Iterator[Any] = model.modules()
    for module in modules:
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, Mapping):
            module.rope_type = {layers: "default" if _changes(value) else value for layers, value in kind.items()}
        elif _changes(kind):
            module.rope_type = "default"  # says that they do not change; the frequencies stay those computed at first


def _changes(kind: object) -> bool:
    return isinstance(kind, str) and kind in CHANGING
