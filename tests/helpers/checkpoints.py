"""Checkpoints that tests make: a tiny one, and ways to change its files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

EMBEDDED = Path(__file__).parents[2] / "specbench" / "models" / "embedded" / "target"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
SECOND = "model-00002-of-00002.safetensors"
Change = Callable[[Path], Any]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def tiny(folder: Path, *, outputs: int = 4096, seed: int = 0, **changes: object) -> Path:
    """A random one-layer Llama with the embedded tokenizer, written as any checkpoint is."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": outputs, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**{**config, **changes})).save_pretrained(folder)
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    """Adds the embedded pair's tokenizer to a folder."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, folder / name)
    return folder


def edit_json(name: str, **changes: object) -> Change:
    """Sets keys of a JSON file; a key with the value ... is removed."""

    def change(folder: Path) -> None:
        path = folder / name
        content = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))

    return change


def config(**changes: object) -> Change:
    return edit_json("config.json", **changes)


def write(name: str, content: str | bytes) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Changes the weights."""

    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        edit(weights)
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)

    return change


def first_value(name: str, value: float) -> Change:
    return tensors(lambda weights: weights[name].view(-1)[:1].fill_(value))


def cut(keep: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / WEIGHTS).write_bytes(keep((folder / WEIGHTS).read_bytes()))


def instead(name: str, make: Callable[[Path], object]) -> Change:
    """Puts what ``make`` makes in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def sharded(edit: Callable[[Path, dict[str, Any]], object]) -> Change:
    """Splits the weights into two shards with an index, which ``edit`` then changes."""

    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        names = {name: f"model-0000{1 + (name == HEAD)}-of-00002.safetensors" for name in weights}
        for shard in set(names.values()):
            save_file({name: weights[name] for name in weights if names[name] == shard}, folder / shard)
        index = {"metadata": {}, "weight_map": names}
        edit(folder, index)
        (folder / INDEX).write_text(json.dumps(index))

    return change


def all_of(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def quantised(**settings: object) -> Change:
    return config(quantization_config=settings)


def tokenizer(edit: Callable[[dict[str, Any]], object]) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        edit(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change
