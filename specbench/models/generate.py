"""transformers' own ``generate`` with a pair's models: decoders to time ours against, on the very same requests."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from specbench.core.sampling_params import SamplingParams
from specbench.models.loading import Pair

PLAIN, STATIC, ASSISTED = "transformers", "transformers_static", "transformers_assisted"
WAYS = {
    PLAIN: "generate as it comes: eager modules and a cache that grows",
    STATIC: "generate with a static cache, which transformers compiles on a GPU",
    ASSISTED: "assisted generation, speculative decoding with the pair's draft (of one request)",
}


def obstacle(pair: Pair, way: str, batch: int, sampling: SamplingParams, gamma: int) -> str:
    """Why ``generate`` cannot decode such requests that way; empty if it can."""
    if sampling.processors:
        return "generate does not take sampler.processors"
    if sampling.beside_numbers:
        return f"generate is not asked for sampler.{next(iter(sampling.beside_numbers))}"
    if sampling.stop:
        return "generate looks for sampler.stop by rules of its own"
    return _obstacle_of_assistance(pair, batch, gamma) if way == ASSISTED else ""


def _obstacle_of_assistance(pair: Pair, batch: int, gamma: int) -> str:
    if pair.translation is not None:
        return "assisted generation takes a draft of the same vocabulary here"
    if batch > 1:
        return f"assisted generation takes one request, and the batch has {batch}"
    if pair.draft is None:
        return "assisted generation needs a draft model, and pair.draft is null"
    return "assisted generation drafts, and gamma is 0" if gamma == 0 else ""


def generate(
    pair: Pair,
    way: str,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    max_new_tokens: int,
    gamma: int = 0,
    seed: int = 0,
) -> list[list[int]]:
    """Decodes a batch to its end with transformers' attention, caches and loop.

    Args:
        way: one of WAYS; see :func:`obstacle`.
        prompts: token ids; shorter ones are padded on the left, as generate wants them.
        sampling: at a temperature above 0 texts are of this distribution, but not those of other decoders.

    Returns:
        The new tokens of each request, up to its first stop token.
    """
    more: dict[str, Any] = {"assistant_model": pair.draft} if way == ASSISTED else {}
    settings = {"cache_implementation": "static"} if way == STATIC else {}
    return run(pair, prompts, sampling, max_new_tokens, seed, {**constant(gamma), **settings}, more)


def constant(gamma: int) -> dict[str, Any]:
    """Returns settings by which an assistant proposes gamma tokens a step, however sure it is, as our drafter does."""
    return {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


def run(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    max_new_tokens: int,
    seed: int,
    settings: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> list[list[int]]:
    """Calls ``generate`` and returns the new tokens of each request, up to its first stop token.

    Args:
        settings: of its GenerationConfig, beside those of sampling.
        arguments: of the call, such as assistant_model.
    """
    stop_ids = sampling.ids_that_end(pair.stop_ids)
    width, device = max(map(len, prompts)), pair.target.device
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    target: Any = pair.target
    whole = GenerationConfig(
        **_sampling(sampling),
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=0,
        **settings,
    )
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _stock(pair, whole):
        torch.manual_seed(seed)
        made = target.generate(ids, attention_mask=mask, **arguments)
    return [_to_stop(text, stop_ids) for text in made[:, width:].tolist()]


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    penalty = {"repetition_penalty": float(sampling.repetition_penalty)}  # generate refuses an int
    if sampling.greedy:
        return {"do_sample": False, **penalty}
    numbers = {"top_k": max(sampling.top_k, 0), "top_p": sampling.top_p, "min_p": sampling.min_p or None}
    return {"do_sample": True, "temperature": sampling.temperature, **numbers, **penalty}


@contextmanager
def _stock(pair: Pair, settings: GenerationConfig) -> Generator[None]:
    """Gives both models transformers' own attention and these settings, and what they had afterwards.

    ``generate`` fills up what a configuration leaves open from the model's own, such as ids that end a text.
    """
    models: list[Any] = [model for model in (pair.target, pair.draft) if model is not None]
    before = [(model.config._attn_implementation, model.generation_config) for model in models]
    try:
        for model in models:
            model.generation_config = settings
            if getattr(model, "_supports_sdpa", False):
                model.set_attn_implementation("sdpa")
        yield
    finally:
        for model, (attention, own) in zip(models, before, strict=True):
            model.generation_config = own
            model.set_attn_implementation(attention)


def _to_stop(text: list[int], stop_ids: frozenset[int]) -> list[int]:
    """A text without what stands behind its first stop token."""
    end = next((i + 1 for i, token in enumerate(text) if token in stop_ids), len(text))
    return text[:end]
