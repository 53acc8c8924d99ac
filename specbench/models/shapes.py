"""Shapes of known models, without their weights: what a step costs depends on these alone.

Numbers are those of each model's published config.json.
"""

from collections.abc import Callable
from typing import Any

from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from specbench.core.machine.files import Origin

RANDOM = "random:"  # what stands before the name of a shape


def _llama3(factor: float, **sizes: Any) -> PreTrainedConfig:
    rope: dict[str, Any] = {
        **{"rope_type": "llama3", "rope_theta": 500_000.0, "factor": factor, "low_freq_factor": 1.0},
        **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    }
    return _llama(vocab_size=128_256, rms_norm_eps=1e-5, max_position_embeddings=131_072, rope_parameters=rope, **sizes)


def _smollm2(theta: float, **sizes: Any) -> PreTrainedConfig:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    context = {"max_position_embeddings": 8192, "rope_parameters": rope}
    return _llama(vocab_size=49_152, rms_norm_eps=1e-5, tie_word_embeddings=True, **context, **sizes)


def _qwen3(**sizes: Any) -> PreTrainedConfig:
    fixed: dict[str, Any] = {
        **{"vocab_size": 151_936, "head_dim": 128, "rms_norm_eps": 1e-6, "max_position_embeddings": 40_960},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}},
    }
    return Qwen3Config(**fixed, bos_token_id=None, eos_token_id=None, **sizes)


def _tiny(**sizes: Any) -> PreTrainedConfig:
    return _llama(vocab_size=5000, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True, **sizes)


def _llama(**sizes: Any) -> PreTrainedConfig:
    return LlamaConfig(bos_token_id=None, eos_token_id=None, **sizes)


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        **{"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers},
        **{"num_attention_heads": heads, "num_key_value_heads": kv_heads},
    }


SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama-8b": lambda: _llama3(8.0, tie_word_embeddings=False, **_sizes(4096, 14_336, 32, 32, 8)),  # Llama 3.1
    "llama-1b": lambda: _llama3(32.0, tie_word_embeddings=True, **_sizes(2048, 8192, 16, 32, 8)),  # Llama 3.2
    "smollm2-1.7b": lambda: _smollm2(130_000.0, **_sizes(2048, 8192, 24, 32, 32)),
    "smollm2-135m": lambda: _smollm2(100_000.0, **_sizes(576, 1536, 30, 9, 3)),
    "qwen3-32b": lambda: _qwen3(tie_word_embeddings=False, **_sizes(5120, 25_600, 64, 64, 8)),
    "qwen3-0.6b": lambda: _qwen3(tie_word_embeddings=True, **_sizes(1024, 3072, 28, 16, 8)),
    # For tests: more ids than the embedded tokenizer has, as the others.
    "tiny": lambda: _tiny(**_sizes(64, 128, 2, 4, 2)),
    "tiny-draft": lambda: _tiny(**_sizes(32, 64, 1, 2, 1)),
}


def shape(source: Origin) -> PreTrainedConfig:
    """The configuration that ``random:NAME`` asks for. Raises ConfigError for a name that is not in SHAPES."""
    name = str(source.value).removeprefix(RANDOM)
    if name not in SHAPES:
        raise source.wrong("no such shape", f"Use one of {', '.join(RANDOM + shape for shape in SHAPES)}.")
    return SHAPES[name]()
