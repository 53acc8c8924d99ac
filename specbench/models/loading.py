"""Checkpoint folders and hub ids -> a pair of models ready to decode; the embedded pair takes the same path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from specbench.errors import ConfigError, ModelError
from specbench.models.engine import context_length
from specbench.models.vocabulary import check_output_width, check_same_vocabulary, vocabulary_size

EMBEDDED = "embedded:"
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
        return min(context_length(self.target), context_length(self.draft))

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, through the chat template where the pair uses one."""
        if not self.chat:
            return list(self.tokenizer(prompt).input_ids)
        message = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        # The template writes its own beginning of text.
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)


def choose_device(device: str) -> torch.device:
    """``auto`` is the GPU where there is one.

    Raises:
        ConfigError: a device that torch does not know or that is not here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError("device", device, "not a device", "Use auto, cpu, cuda or cuda:N.") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ConfigError("device", device, "not supported", "Use auto, cpu, cuda or cuda:N.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError("device", device, f"{torch.cuda.device_count()} GPUs here", "Use device=auto or device=cpu.")
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU, where reduced precision is slower and less exact."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, "not a dtype", f"Use auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def locate(key: str, name: str) -> str:
    """Where to load a model from: a folder of this package, a local folder, or a hub id.

    Raises:
        ConfigError: a folder that is missing or holds no safetensors; found out before anything is loaded.
    """
    if name.startswith(EMBEDDED):
        folder = Path(__file__).parent / "embedded" / name.removeprefix(EMBEDDED)
        if not (folder / "config.json").is_file():
            raise ConfigError(key, name, "no such embedded model", "Use embedded:target or embedded:draft.")
        return str(folder)
    folder = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1 or folder.exists()
    if not looks_local:
        return name
    if not folder.is_dir():
        raise ConfigError(
            key, name, "no such folder", "Give a folder with config.json and *.safetensors, or a hub id (owner/name)."
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(key, name, "no config.json in the folder", "Give a folder written by save_pretrained.")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        held = f"only pickled weights ({', '.join(pickled)})" if pickled else "no weights"
        raise ConfigError(
            key,
            name,
            f"{held} in the folder",
            "Only safetensors are read, since pickles can run code: convert them with save_pretrained.",
        )
    return str(folder)


def load_pair(
    target: str,
    draft: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    chat: bool | None = None,
    download: bool = False,
) -> Pair:
    """Loads both models after comparing their vocabularies.

    Args:
        target, draft: a local folder, a hub id, or ``embedded:target`` and ``embedded:draft``.
        chat: use the chat template; None uses it where the target's tokenizer has one.
        download: whether a hub id may be fetched; otherwise only what the local hub cache holds is used.

    Raises:
        ConfigError: a missing folder, pickled weights, an unknown device or dtype.
        ModelError: different vocabularies, or an architecture that the engine cannot run.
    """
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    places = {name: locate(f"pair.{name}", value) for name, value in (("target", target), ("draft", draft))}
    tokenizers = {name: _tokenizer(name, place, download) for name, place in places.items()}
    check_same_vocabulary(tokenizers["target"], tokenizers["draft"])
    vocab_size = vocabulary_size(tokenizers["target"])
    models = {name: _model(name, place, chosen_dtype, download).to(chosen_device) for name, place in places.items()}
    for name, model in models.items():
        check_output_width(name, model.get_output_embeddings().weight.shape[0], vocab_size)
    tokenizer = tokenizers["target"]
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if chat and not has_template:
        raise ConfigError("pair.chat", chat, "the target's tokenizer has no chat template", "Use pair.chat=false.")
    return Pair(
        models["target"],
        models["draft"],
        tokenizer,
        vocab_size,
        _stop_ids(models["target"], tokenizer),
        has_template if chat is None else chat,
    )


def _tokenizer(name: str, place: str, download: bool) -> PreTrainedTokenizerBase:
    with _explained(name, place, download):
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=not download, trust_remote_code=False)
    assert tokenizer is not None
    return tokenizer


def _model(name: str, place: str, dtype: torch.dtype, download: bool) -> PreTrainedModel:
    transformers_logging.disable_progress_bar()
    with _explained(name, place, download):
        config = AutoConfig.from_pretrained(place, local_files_only=not download, trust_remote_code=False)
        _check_full_attention(name, config)
        model = AutoModelForCausalLM.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=not download,
            trust_remote_code=False,
        )
    return model.eval()


def _check_full_attention(name: str, config: object) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"pair.{name}: layers of kind {sorted(kinds - {'full_attention'}) or 'encoder-decoder'}; specbench's cache "
            "rolls back full attention only. Choose a decoder that has nothing else (Llama, Qwen3, SmolLM2)."
        )


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in [*listed, tokenizer.eos_token_id] if i is not None)


class _explained:
    """Turns the loading library's errors into ones that name the key and the remedy."""

    def __init__(self, name: str, place: str, download: bool):
        self.name, self.place, self.download = name, place, download

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, OSError | ValueError):
            return
        remedy = "Check that the folder is complete."
        if not Path(self.place).exists():
            remedy = (
                "Check the id."
                if self.download
                else "It is not in the local hub cache: add pair.download=true to fetch it, or give a folder."
            )
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(f"pair.{self.name}", self.place, f"could not be loaded ({first_line})", remedy) from error
