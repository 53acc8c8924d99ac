"""Tiny random models of the families that people decode with, built from their configurations."""

from collections.abc import Callable

import torch
import transformers as t
from transformers import PreTrainedConfig, PreTrainedModel

from specbench.models import CachedModel

VOCABULARY, CONTEXT, WINDOW = 61, 64, 6
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "bos_token_id": 0,
    "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
}  # fmt: skip
KINDS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}

# What each is here for stands in its name, or behind it.
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: t.LlamaConfig(**SIZES),
    "llama, one key head": lambda: t.LlamaConfig(**{**SIZES, "num_key_value_heads": 1}),
    "llama, no groups": lambda: t.LlamaConfig(**{**SIZES, "num_key_value_heads": 4}),
    "llama3 positions": lambda: t.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "yarn positions": lambda: t.LlamaConfig(**SIZES, rope_parameters=YARN),
    "dynamic positions": lambda: t.LlamaConfig(**SIZES, rope_parameters=DYNAMIC),
    "qwen2": lambda: t.Qwen2Config(**SIZES),
    "qwen2, window in one layer": lambda: t.Qwen2Config(**SIZES, **WINDOWED),
    "qwen3": lambda: t.Qwen3Config(**SIZES, head_dim=16),
    "mistral": lambda: t.MistralConfig(**SIZES, sliding_window=None),
    "mistral, window": lambda: t.MistralConfig(**SIZES, sliding_window=WINDOW),
    "phi3": lambda: t.Phi3Config(**SIZES),
    "phi3, window": lambda: t.Phi3Config(**SIZES, sliding_window=WINDOW),
    "phi3, longrope": lambda: t.Phi3Config(**SIZES, rope_parameters=LONGROPE, original_max_position_embeddings=48),
    "gemma": lambda: t.GemmaConfig(**SIZES, head_dim=16),
    "gemma2": lambda: t.Gemma2Config(  # softcapping, and a window in every other layer
        **SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: t.Gemma3TextConfig(  # two kinds of rotary positions
        **SIZES, **KINDS, head_dim=16, query_pre_attn_scalar=16
    ),
    "olmo2": lambda: t.Olmo2Config(**SIZES),
    "smollm3": lambda: t.SmolLM3Config(**SIZES, no_rope_layers=[1, 0]),
    "granite": lambda: t.GraniteConfig(**SIZES, attention_multiplier=0.3, residual_multiplier=0.5),
    "gpt2": lambda: t.GPT2Config(  # positions are learned
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    ),
    "gpt-neox": lambda: t.GPTNeoXConfig(**SIZES),
    "opt": lambda: t.OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32),
    "qwen3-moe": lambda: t.Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4, head_dim=16),
    "mixtral": lambda: t.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "gpt-oss": lambda: t.GptOssConfig(  # sinks
        **SIZES, **KINDS, num_local_experts=4, num_experts_per_tok=2, head_dim=16
    ),
}
# Tokens that each of three requests is extended by, and how many of them are then taken back.
STEPS = (
    ((3, 1, 2), (0, 1, 0)),
    ((1, 4, 4), (1, 3, 2)),
    ((5, 5, 5), (4, 0, 5)),
    ((1, 1, 1), (0, 0, 0)),
    ((9, 2, 0), (0, 0, 0)),
)


def made(name: str) -> PreTrainedModel:
    """A model of the table in float32, with weights so large that a key too many or too few shows in every logit."""
    torch.manual_seed(0)
    model = t.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            elif parameter.std() == 0 or not parameter.isfinite().all():
                parameter.normal_(1, 0.1) if (parameter == 1).all() else parameter.normal_(0, 0.5)
    return model


def apart(
    name: str,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[CachedModel], None] | None = None,
) -> float:
    """The largest difference of a logit, in units of the logits' spread, between decoding in steps and whole passes.

    Three requests of different lengths are fed a prompt, extended by different numbers of tokens, cut back to different
    lengths and extended again, past the window. The whole passes are of transformers' own plain attention, and of
    CachedModel.score.

    Args:
        prepare: makes other code take the passes, which have fixed shapes then.
    """
    engine = CachedModel(made(name).to(device, dtype), VOCABULARY, name)
    reference = made(name).to(device, dtype)
    reference.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, VOCABULARY, (size,), generator=generator).tolist() for size in (17, 6, 1)]
    if prepare is not None:
        prepare(engine)
    engine.start(texts, CONTEXT)
    engine.show(3, 16 if prepare is None else None)
    texts, errors = [text[:-1] for text in texts], []
    for counts, cuts in STEPS:
        fed = torch.randint(1, VOCABULARY, (3, max(counts)), generator=generator)
        logits = engine.extend(fed.to(device), torch.tensor(counts, device=device)).logits
        for b, (count, cut) in enumerate(zip(counts, cuts, strict=True)):
            texts[b] += fed[b, :count].tolist()
            if count:
                with torch.no_grad():
                    ids = torch.tensor([texts[b]], device=device)
                    whole = reference(input_ids=ids, use_cache=False).logits[0, :, :VOCABULARY]
                errors.append((logits[b, :count] - whole[-count:]).abs().max() / whole.std())
                errors.append((engine.score(texts[b]) - whole).abs().max() / whole.std())
            texts[b] = texts[b][: len(texts[b]) - cut]
        engine.truncate(torch.tensor([len(text) for text in texts], device=device))
    return float(torch.stack(errors).max())
