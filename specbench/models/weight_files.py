"""The safetensors of a checkpoint's folder: which files they are, and what their headers say. No weight is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from specbench.core.machine.files import Origin, plain, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_READ = (".safetensors", ".safetensors.index.json")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_OTHER = (".gguf", ".msgpack", ".h5", ".onnx")
_FLOATS = ("F64", "F32", "F16", "BF16")
_SHOWN = 5


@dataclass(frozen=True)
class TensorHeader:
    """The header of one tensor: its file, dtype and shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def named(names: Mapping[str, object] | list[str]) -> str:
    """The first few of many names, and how many there are beyond them."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(map(plain, ordered[:_SHOWN])) + more


def read_headers(folder: Path, config: Mapping[str, Any], source: Origin) -> dict[str, TensorHeader]:
    """Returns the headers of the files that transformers will read, by tensor.

    Raises:
        ConfigError: no safetensors; names that transformers does not look for; an index that cannot be right, or names
            a missing file; a file that is no safetensors, is cut off, or has a tensor of another file; weights of
            another dtype than float, if config.json has no quantization_config.
    """
    present = {path.name for path in folder.iterdir()}
    chosen = config.get("transformers_weights")
    if chosen is not None and not (isinstance(chosen, str) and chosen in present and chosen.endswith(_READ)):
        raise source.wrong(f"config.json names weights that are not there (transformers_weights: {shown(chosen)})")
    if any(name.startswith("shard-") and name.endswith(".safetensors") for name in present):
        raise source.wrong("its shards are those of a distributed run", "Gather them with save_pretrained.")
    first = chosen or next((name for name in (SINGLE, INDEX) if name in present), None)
    if first is None:
        raise _none(present, source)
    headers = _shards(folder / first, source) if first.endswith(".json") else _headers([folder / first], source)
    if config.get("quantization_config") is None:
        _check_dtypes(headers, source)
    return headers


def _none(present: set[str], source: Origin) -> Exception:
    def those(endings: tuple[str, ...]) -> str:
        return ", ".join(sorted(name for name in present if name.endswith(endings)))

    if names := those((".safetensors",)):
        problem = f"neither {SINGLE} nor {INDEX} in the folder, but {names}"
        return source.wrong(problem, f"Rename a single file to {SINGLE}, or write them anew with save_pretrained.")
    if names := those(_PICKLED):
        problem = f"only pickled weights ({names}) in the folder"
        return source.wrong(
            problem, "Only safetensors are read, since pickles can run code: convert them with save_pretrained."
        )
    problem = f"no weights ({names}) that can be read" if (names := those(_OTHER)) else "no weights"
    return source.wrong(f"{problem} in the folder", "Give a folder with *.safetensors, as save_pretrained writes it.")


def _shards(index: Path, source: Origin) -> dict[str, TensorHeader]:
    shard_of = source.json_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise source.wrong(f"{index.name} has no weight_map")
    names = set()
    for tensor, name in shard_of.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise source.wrong(
                f"{index.name} names {shown(name)} for {plain(tensor)}, which is no safetensors file of the folder"
            )
        names.add(name)
    missing = sorted(name for name in names if not (index.parent / name).exists())
    if missing:
        problem = f"{len(missing)} of the {len(names)} files that {index.name} names are missing: {named(missing)}"
        raise source.wrong(problem)
    headers = _headers([index.parent / name for name in sorted(names)], source)
    for tensor, name in shard_of.items():
        if tensor not in headers:
            raise source.wrong(f"{index.name} says that {name} holds {plain(tensor)}, and it does not")
    return headers


def _headers(files: list[Path], source: Origin) -> dict[str, TensorHeader]:
    headers: dict[str, TensorHeader] = {}
    for path in files:
        source.check(path, path.name)
        with source.library_errors(f"{path.name} is not a whole safetensors file"):
            with path.open("rb") as file:
                beginning = file.read(64)
            header = {} if beginning.startswith(b"version ") else _header(path)
        source.check_fetched(beginning, path.name)
        if not header:
            raise source.wrong(f"{path.name} holds no tensor")
        for tensor, entry in header.items():
            if tensor in headers:
                raise source.wrong(f"{plain(tensor)} is in {headers[tensor].file} and in {entry.file}")
            headers[tensor] = entry
    return headers


def _header(path: Path) -> dict[str, TensorHeader]:
    with safe_open(path, framework="pt") as file:  # refuses a file that is shorter or longer than its header says
        parts = {tensor: file.get_slice(tensor) for tensor in file.keys()}  # noqa: SIM118
        return {
            tensor: TensorHeader(path.name, part.get_dtype(), tuple(part.get_shape())) for tensor, part in parts.items()
        }


def _check_dtypes(headers: Mapping[str, TensorHeader], source: Origin) -> None:
    """Raises ConfigError for weights in integers or 8 bits, which transformers would take for the weights themselves.

    Their scales would be in a quantization_config.
    """
    odd = [tensor for tensor, entry in headers.items() if tensor.endswith(".weight") and entry.dtype not in _FLOATS]
    if odd:
        kinds = ", ".join(sorted({headers[tensor].dtype for tensor in odd}))
        raise source.wrong(
            f"{len(odd)} weights are held as {kinds}, and config.json has no quantization_config: {named(odd)}",
            "Give a checkpoint in bfloat16, float16 or float32, or one whose config.json says how it is quantised.",
        )


def elements(headers: Mapping[str, TensorHeader]) -> int:
    """Numbers in all tensors."""
    return sum(prod(entry.shape) for entry in headers.values())
