"""What config.json makes of a model, and whether specbench can run that: known before any weight is read."""

import copy
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.quantizers import AutoHfQuantizer

from specbench.core.machine.files import Origin, shown
from specbench.models.attention import takes_places
from specbench.models.forward import context_length, sliding_window

SHORTEST = 8  # tokens: a context that a prompt and some tokens fit in
_REMEDY = "Choose a decoder whose layers have attention, full or in a sliding window (Llama, Qwen3, Gemma 3)."


def load_config(folder: Path, source: Origin) -> PreTrainedConfig:
    """The configuration of a checked folder.

    Raises:
        ConfigError: values that transformers refuses, a window of no token, or a quantisation that cannot be loaded
            here.
        ModelError: a model that specbench cannot run: no language model, an encoder, layers without attention.
    """
    problem, remedy = "config.json describes no model", "Check config.json against the model's own release."
    with source.library_errors(problem, remedy):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = config.get_text_config()
        context = context_length(config)
    if (folder / "generation_config.json").exists():
        with source.library_errors("generation_config.json cannot be used", "Mend it, or remove it."):
            GenerationConfig.from_pretrained(folder, local_files_only=True)
    if getattr(config, "is_encoder_decoder", False):
        raise source.model_error("it has an encoder, and specbench runs decoders alone", _REMEDY)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        problem = f"model_type {config.model_type!r} is no language model that continues text"
        raise source.model_error(problem, _REMEDY)
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    replaces_attention = takes_places(model)
    if not replaces_attention and not getattr(model, "_supports_sdpa", True):
        problem = f"{config.model_type!r} computes attention in a way of its own, which cannot be replaced"
        raise source.model_error(problem, _REMEDY)
    if getattr(text, "alibi", False):
        problem = "alibi is True in config.json, biases in place of positions, which attention here does not take"
        raise source.model_error(problem, _REMEDY)
    if kinds := set(getattr(text, "layer_types", None) or ()) - {
        "full_attention",
        *(["sliding_attention"] * replaces_attention),
    }:
        problem = f"layers of kind {sorted(kinds)}; specbench's cache takes tokens back from attention only"
        raise source.model_error(problem, _REMEDY)
    if context < SHORTEST:
        raise source.wrong(f"a context of {context} tokens by config.json, below {SHORTEST}", remedy)
    if (window := sliding_window(config)) is not None and window < 1:
        problem = f"sliding_window is {window} in config.json, not a whole number from 1"
        raise source.wrong(problem, "Use null if layers see all tokens.")
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        _check_quantised(quantised, source)
    return config


def _check_quantised(quantised: Any, source: Origin) -> None:
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
    problem = f"it is quantised ({shown(method)}), and cannot be loaded here"
    remedy = "Install what is missing, or choose a checkpoint in bfloat16 or float32."
    with source.library_errors(problem, remedy):
        supported = AutoHfQuantizer.supports_quant_method(quantised)
        if supported:
            quantizer = AutoHfQuantizer.from_config(copy.deepcopy(quantised), pre_quantized=True)
            quantizer.validate_environment(device_map=None, weights_only=True)
    if not supported:  # transformers would take the packed integers for weights
        raise source.wrong(f"{problem} (transformers has no such method)", remedy)
