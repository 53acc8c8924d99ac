"""What can be known of a checkpoint's folder before anything of it is loaded.

Broken files are found here as far as possible, where a message can name the file; transformers would pass over some
(a generation_config.json that is no JSON) and wait for others (a named pipe).
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers import __version__ as transformers_version

from specbench.core.checks import is_whole
from specbench.core.machine.files import Origin, is_text, problem_of, reason, shown
from specbench.models.weight_files import read_headers

_OBJECTS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.json"),
)
_READ = (".json", ".jinja", ".safetensors", ".model", ".txt")  # endings of the files that transformers may open
# Beyond any model. Lists of this length are made from config.json before weights are looked at.
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 1_000),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads", "n_head", "n_heads"), 100_000),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts"), 100_000),
    "num_labels": 1_000_000,
}


def check_folder(folder: Path, source: Origin, *, weights: bool = True) -> dict[str, Any]:
    """Checks a checkpoint's folder and returns the contents of config.json.

    Args:
        source: the key and value that named the folder.
        weights: whether the weights should be there already.

    Raises:
        ConfigError: no such folder, a file that is missing or broken, a model that needs code of its own.
    """
    present = _listed(folder, source)
    if "adapter_config.json" in present:
        remedy = "Merge it into its model (merge_and_unload of peft), and give the folder of that."
        raise source.wrong("an adapter (LoRA) in the folder, which would not be applied", remedy)
    if "config.json" not in present:
        raise source.wrong("no config.json in the folder", "Give a folder written by save_pretrained.")
    config = source.json_object(folder / "config.json")
    if weights:
        read_headers(folder, config, source)
    for path in _opened(folder):
        source.check(path, str(path.relative_to(folder)))
    for name in _OBJECTS:
        if name in present:
            source.json_object(folder / name)
    if not any(map(_of_tokenizer, present)):
        raise source.wrong("no tokenizer in the folder (tokenizer.json, tokenizer.model or vocab.json)")
    check_config(config, source)
    return config


def _listed(folder: Path, source: Origin) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        problem = "no such folder"
    except NotADirectoryError:
        problem = "a file, not a folder" if problem_of(folder) is None else f"{problem_of(folder)}"
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({reason(error)})"
    remedy = "Give a folder with config.json and *.safetensors, or a hub id (owner/name)."
    raise source.wrong(problem, remedy)


def _of_tokenizer(name: str) -> bool:
    return name.startswith(("tokenizer.", "vocab", "tekken.")) or name.endswith((".model", ".tiktoken", ".spm"))


def _opened(folder: Path) -> Iterator[Path]:
    """Yields the files that transformers may open; it passes over folders and links that lead nowhere."""
    for place in (folder, folder / "additional_chat_templates"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            needed = path.name in _OBJECTS or _of_tokenizer(path.name)
            if needed or (path.name.endswith(_READ) and path.exists() and not path.is_dir()):
                yield path


def check_config(config: Mapping[str, Any], source: Origin) -> None:
    """Checks what transformers would stumble over, run away with, or pass over in silence.

    Raises:
        ConfigError: no model_type, or one unknown to transformers; code of the checkpoint's own; numbers of
            layers or heads that are none; a quantization_config that is no object.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not is_text(kind):
        raise source.wrong(f"config.json has no model_type (it says {shown(kind)})")
    if kind not in CONFIG_MAPPING:
        code = config.get("auto_map")
        if code:
            raise source.wrong(
                f"its architecture, {shown(kind)}, is code of the checkpoint's own ({shown(code)}), which specbench "
                "does not run",
                "Choose a model whose architecture transformers has.",
            )
        raise source.wrong(
            f"model_type {shown(kind)} is not one of transformers {transformers_version}",
            "Check config.json; where the model is newer than transformers, update transformers.",
        )
    quantised = config.get("quantization_config")
    if quantised is not None and not isinstance(quantised, dict):
        raise source.wrong(f"quantization_config is {shown(quantised)} in config.json, not an object")
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        _check_counts(part, source)


def _check_counts(config: Mapping[str, Any], source: Origin) -> None:
    for name, most in _MOST.items():
        value = config.get(name)
        if value is None or isinstance(value, list):  # what is left to the model, or differs by layer
            continue
        if not is_whole(value) or not (name == "num_labels" or value > 0):
            raise source.wrong(f"{name} is {shown(value)} in config.json, not a whole number from 1")
        if value > most:
            raise source.wrong(f"{name} is {shown(value)} in config.json, more than any model has")
