"""A checkpoint's weights, all of them and none made up.

transformers initialises at random what the files lack and passes over what they hold beyond the model, with a warning.
Here its report decides: what is missing, has another shape or has no place is an error.
"""

import itertools
import logging
import re
import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specbench.core.errors import ModelError
from specbench.core.machine.files import Origin
from specbench.core.machine.progress import say
from specbench.models.attention import implementation
from specbench.models.hub import without_progress_bars
from specbench.models.weight_files import TensorHeader, elements, named

_MIXED = "Take config.json and all safetensors from the same release, and fetch what is missing."
# Buffers that old checkpoints carry and that are computed today: rotary frequencies, GPT-2's and GPT-NeoX's masks.
_HARMLESS = re.compile(r"(^|\.)(rotary(_pos)?_emb\.inv_freq|(attn|attention)\.(bias|masked_bias)|position_ids)$")
_MUCH = 100_000_000  # numbers that may be allocated beyond those of the files before a config is taken for a mistake


_LOADING = threading.RLock()


@contextmanager
def alone() -> Generator[None]:
    """Runs its block, or the function that it decorates, in one thread at a time.

    While transformers builds a model, its ``from_pretrained`` replaces PreTrainedModel.tie_weights and PyTorch's
    initialisers for the whole process, and puts back what it found. In two threads the second finds the replacements,
    which then stay. Being offline (hub.py) is a setting of the process, too.
    """
    with _LOADING:
        yield


def load_weights(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, source: Origin, **options: Any
) -> PreTrainedModel:
    """The model of a folder, in eval mode, on the CPU.

    Args:
        options: further arguments of ``from_pretrained``, which may name another place.

    Raises:
        ConfigError: whatever transformers raises while it loads.
        ModelError: weights that are missing, unknown, of another shape, or not tied where config.json ties them.
    """
    model = from_files(
        source,
        "its weights cannot be loaded",
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=implementation(config),
        use_safetensors=True,
        **options,
    )
    if getattr(config, "quantization_config", None) is None:
        _check_tied(model, source)
    return model


def from_files(source: Origin, problem: str, folder: Path, remedy: str = _MIXED, **options: Any) -> PreTrainedModel:
    """The model that files hold, in eval mode, with no weight made up: the one door to ``from_pretrained``.

    Args:
        problem: what the message says if transformers raises ("its weights cannot be loaded").
        remedy: what to do if files and configuration do not fit together.
        options: further arguments of ``from_pretrained``, such as ``dtype`` and ``gguf_file``.

    Raises:
        ConfigError: whatever transformers raises while it loads.
        ModelError: weights that are missing, unknown or of another shape.
    """
    with loading_report() as logged:
        try:
            with source.library_errors(problem):
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    folder,
                    local_files_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # reported below, with the shapes
                    **options,
                )
        except Exception as error:
            if conversion := _conversion_error(logged):
                raise source.wrong(f"{problem} ({conversion})") from error
            raise
    model, report = loaded
    _check_report(report, source, remedy)
    return model.eval()


def check_size(config: PreTrainedConfig, headers: Mapping[str, TensorHeader], source: Origin) -> None:
    """Refuses a config.json of far more weights than the files hold, before memory for them is asked for.

    Raises:
        ConfigError: that, or an architecture that config.json's numbers do not make.
    """
    with (
        source.library_errors("config.json describes no model that can be built", "Check config.json."),
        torch.device("meta"),
    ):
        model = AutoModelForCausalLM.from_config(
            config, trust_remote_code=False, attn_implementation=implementation(config)
        )
    described = sum(tensor.numel() for tensor in itertools.chain(model.parameters(), model.buffers()))
    if described > 2 * elements(headers) + _MUCH:
        problem = f"config.json describes a model of {described:,} weights, and the files hold {elements(headers):,}"
        raise source.wrong(problem, _MIXED)


@contextmanager
def loading_report() -> Generator[list[str]]:
    """Keeps transformers' table of missing and unknown weights, and its progress bar, off the console.

    Yields:
        The tables as text, once the block has loaded a model.
    """
    logger, messages = logging.getLogger("transformers.modeling_utils"), []

    def keep(record: logging.LogRecord) -> bool:
        if "LOAD REPORT" not in (message := record.getMessage()):
            return True
        messages.append(message)
        return False

    logger.addFilter(keep)
    try:
        with without_progress_bars():
            yield messages
    finally:
        logger.removeFilter(keep)


def _conversion_error(logged: Collection[str]) -> str | None:
    """What a report says of weights that could not be brought into the model's form; its dictionary leaves it out."""
    lines = [line for text in logged for line in text.splitlines() if "CONVERSION" in line and "|" in line]
    return " ".join(lines[0].replace("|", " ").split()) if lines else None


def _check_report(report: Mapping[str, Any], source: Origin, remedy: str) -> None:
    missing = set(report["missing_keys"])
    unknown = {key for key in report["unexpected_keys"] if not _HARMLESS.search(key)}
    shapes = {key: f"{key} {_shape(actual)} instead of {_shape(due)}" for key, actual, due in report["mismatched_keys"]}
    problems = []
    if missing:
        problems.append(f"{len(missing)} weights of the model are not in the files: {named(list(missing))}")
    if shapes:
        problems.append(
            f"{len(shapes)} weights have other shapes than config.json says: {named(list(shapes.values()))}"
        )
    if unknown:
        problems.append(f"{len(unknown)} tensors of the files have no place in the model: {named(list(unknown))}")
    if report["error_msgs"]:
        problems.append("; ".join(map(str, report["error_msgs"])))
    if problems:
        raise source.model_error("; ".join(problems), remedy)


def _shape(shape: Collection[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _check_tied(model: PreTrainedModel, source: Origin) -> None:
    """Raises ModelError where config.json says that two weights are one, and the files hold two."""
    for one, other in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first, second = (local(model.get_parameter(name)) for name in (one, other))
        if first.data_ptr() != second.data_ptr():
            problem = f"config.json ties {one} to {other}, and the files hold two that differ"
            remedy = "Set tie_word_embeddings to false in config.json if both are meant"
            raise source.model_error(problem, f"{remedy}, or take all files from the same release.")


def check_values(model: PreTrainedModel, source: Origin) -> None:
    """Looks at every weight that this rank has once, where the model lies.

    Raises:
        ModelError: a weight that is NaN or infinite; an embedding or an output layer of zeros alone.
    """
    tensors = {
        name: part
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
        if (part := local(tensor)).is_floating_point() and part.numel()
    }
    ends = _ends(list(tensors.values()))
    if bad := [name for name, end in zip(tensors, ends, strict=True) if not all(map(torch.isfinite, end))]:
        computed = [name for name in bad if name not in model.state_dict()]
        if computed:  # no file holds these buffers, such as rotary frequencies
            problem = f"the numbers of config.json make NaN or infinite values: {named(computed)}"
            raise source.model_error(problem, "Mend config.json (rope_theta, for one).")
        remedy = "The files are damaged: fetch them again."
        if model.dtype == torch.float16:
            remedy = "The files are damaged, or hold more than float16 can: try dtype=bfloat16 or float32."
        raise source.model_error(f"{len(bad)} weights hold NaN or infinite values: {named(bad)}", remedy)
    zeros = [
        name for (name, tensor), end in zip(tensors.items(), ends, strict=True) if tensor.dim() > 1 and not end.any()
    ]
    if not zeros:
        return
    embedding: Any = model.get_input_embeddings()
    outer = {local(weight).data_ptr() for weight in (embedding.weight, output_weight(model, source))}
    if any(tensors[name].data_ptr() in outer for name in zeros):
        problem = f"all values are 0 in {named(zeros)}, so that every token is alike to the model"
        raise source.model_error(problem, "The files were not written to their end: fetch them again.")
    say(f"{source.key}={source.value}: all values are 0 in {named(zeros)}. Are the files whole?", style="yellow")


def local(tensor: Tensor) -> Tensor:
    """Returns what this process has of a tensor: its part of a DTensor, or the tensor itself."""
    part: Any = tensor
    return part.to_local() if hasattr(part, "to_local") else tensor


def output_weight(model: PreTrainedModel, source: Origin) -> Tensor:
    """The matrix of the output layer, a row for each id. Raises ModelError where there is none."""
    layer: Any = model.get_output_embeddings()
    if layer is None:
        raise ModelError(f"{source.key}={source.value}: {type(model).__name__} has no output layer over a vocabulary.")
    return layer.weight


def _ends(tensors: list[Tensor]) -> Tensor:
    """The smallest and the largest value of each tensor, NaN where it holds one; fetched from a GPU in one copy."""
    wide = (tensor.float() if tensor.element_size() == 1 else tensor for tensor in tensors)  # 8 bits have no aminmax
    return torch.stack([torch.stack(tensor.aminmax()).double() for tensor in wide]).cpu()
