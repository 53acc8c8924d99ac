"""Checkpoint folders, hub ids and shapes -> a pair of models ready to decode; the embedded pair takes the same path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.errors import ConfigError
from specbench.models import sharding
from specbench.models.checkpoint import EMBEDDED, Checkpoint, locate
from specbench.models.engine import context_length
from specbench.models.random_weights import RandomModel
from specbench.models.tokenizer import token_ids, wants_chat
from specbench.models.vocabulary import check_same_vocabulary
from specbench.sampling import SamplingParams, constrained

__all__ = ["EMBEDDED", "Pair", "choose_device", "choose_dtype", "load_pair", "locate"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Pair:
    """A target, a draft and the tokenizer they share.

    Attributes:
        vocab_size: ids that may be emitted.
        stop_ids: ids that end a text (the tokenizer's and the target's generation config's).
        chat: whether prompts are wrapped in the tokenizer's chat template.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    stop_ids: frozenset[int]
    chat: bool

    @property
    def context(self) -> int:
        """The longest sequence that both models can hold."""
        return min(context_length(self.target.config), context_length(self.draft.config))

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, through the chat template where the pair uses one. Raises ModelError."""
        return token_ids(self.tokenizer, prompt, self.chat, self.vocab_size)

    def resolved(self, sampling: SamplingParams) -> SamplingParams:
        """Sampling parameters in this vocabulary's ids. Raises ConfigError for a structure that cannot be."""
        return constrained(sampling, self.tokenizer, self.vocab_size, self.stop_ids)


def choose_device(device: str) -> torch.device:
    """The device by its name; ``auto`` is the GPU where there is one, and a GPU without a number is the first.

    Raises:
        ConfigError: a device that torch does not know or that is not here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError("device", device, "not a device", "Use auto, cpu, cuda or cuda:N.") from error
    if chosen.type not in ("cpu", "cuda") or (chosen.type == "cpu" and chosen.index):
        raise ConfigError("device", device, "not supported", "Use auto, cpu, cuda or cuda:N.")
    if chosen.type == "cpu":
        return chosen
    number = chosen.index or 0
    if number >= torch.cuda.device_count():
        raise ConfigError("device", device, f"{torch.cuda.device_count()} GPUs here", "Use device=auto or device=cpu.")
    return torch.device("cuda", number)  # torch.cuda.set_device takes none without a number


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU, where reduced precision is slower and less exact."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, "not a dtype", f"Use auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def load_pair(
    target: str,
    draft: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    chat: bool | None = None,
    download: bool = False,
    parallel: str = "none",
) -> Pair:
    """Loads a target and a draft model after comparing their vocabularies.

    Args:
        target, draft: a local folder, a hub id, ``embedded:target`` and ``embedded:draft``, or ``random:`` and a name
            of shapes.py, for random weights.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        dtype: "auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16" or "float16".
        chat: use the chat template; None uses it if the target's tokenizer has one.
        download: whether a hub id may be fetched; otherwise only what the local hub cache holds is used.
        parallel: "tensor" shards the target over the processes that torchrun started, a GPU each, and every one of
            them has to call this; "none" keeps it whole.

    Returns:
        Pair: both models, their tokenizer, and the ids that end a text.

    Raises:
        ConfigError: a folder that is missing or broken, pickled weights, an unknown device or dtype.
        ModelError: different vocabularies, weights that the files lack, or an architecture that the engine cannot run,
            or cannot be sharded.

    Example:
        >>> import specbench
        >>> pair = specbench.load_pair("embedded:target", "embedded:draft")
        >>> pair.vocab_size
        4096
    """
    sharded = sharding.asked(parallel)
    chosen_device = choose_device(sharding.device_of_rank(device) if sharded else device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    of_target = _opened("pair.target", target, download)
    of_draft = _opened("pair.draft", draft, download)
    tokenizer = of_target.tokenizer
    check_same_vocabulary(tokenizer, of_draft.tokenizer)
    if of_draft.vocab_size != of_target.vocab_size:  # shapes, which share a tokenizer
        problem = f"its vocabulary has {of_draft.vocab_size} ids, and that of {target} {of_target.vocab_size}"
        raise of_draft.source.wrong(problem, "Use two shapes of one family, or two checkpoints.")
    uses_chat = wants_chat(tokenizer, chat)
    if sharded:
        sharding.check_divisible(of_target.config, of_target.source)
        sharding.join(chosen_device)
    for each in (of_target, of_draft):
        each.complete()
    models = [of_target.load(chosen_dtype, chosen_device, sharded), of_draft.load(chosen_dtype, chosen_device)]
    return Pair(models[0], models[1], tokenizer, of_target.vocab_size, of_target.stop_ids(models[0]), uses_chat)


def _opened(key: str, name: str, download: bool) -> Checkpoint | RandomModel:
    return RandomModel.opened(key, name) if RandomModel.asked(name) else Checkpoint.opened(key, name, download)
