"""A model in one GGUF file, as llama.cpp keeps them -> a checkpoint folder (safetensors) as everything here reads it.

transformers reads the file: configuration, tokenizer, chat template and weights, which it turns back into numbers of
one dtype if they are quantised. What is lost by quantising stays lost.
"""

import copy
import os
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specbench.core.errors import ConfigError
from specbench.core.extensions import import_optional
from specbench.core.machine.disk import writing
from specbench.core.machine.files import Origin, problem_of
from specbench.models import hub, weights
from specbench.models.weight_files import named

MAGIC = b"GGUF"
REMEDY = "Give a whole file, of a decoder that transformers reads from GGUF."
_INCOMPLETE = "The file is incomplete or was made for another program: fetch it again, or take another one."


@weights.alone()
def convert(file: Path, out: Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes a checkpoint folder from a GGUF file: config.json, model.safetensors, tokenizer, chat template.

    Args:
        out: a folder that is not there yet; it is whole, or is not there.
        dtype: of the weights in the folder. float32 holds those of every quantisation without rounding.

    Raises:
        ConfigError: no such file, no GGUF, or an architecture that transformers does not read from one; ``out`` is
            taken.
        ModelError: the file lacks weights of the model, holds more than the model has, or holds NaN.
        NotInstalledError: the package gguf is missing.
        WriteError: the folder cannot be written.
    """
    _check(file, out)
    source, unread = Origin("FILE", file, REMEDY), "transformers cannot read it"
    with hub.offline():
        with source.library_errors(unread):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)  # ty: ignore[invalid-assignment]
            if (begins := _begins_with_bos(file)) is not None:
                tokenizer.add_bos_token = begins
        model = weights.from_files(source, unread, file.parent, _INCOMPLETE, gguf_file=file.name, dtype=dtype)
    _check_all_used(model, source)
    weights.check_values(model, source)
    plain = _without_quantisation(model)
    with writing(out, "Free space there, or name another folder by --out."):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            plain.save_pretrained(beside)
            tokenizer.save_pretrained(beside)
            beside.chmod(0o755)  # mkdtemp's can be read by their owner alone
            beside.rename(out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _check(file: Path, out: Path) -> None:
    if os.path.lexists(out):
        raise ConfigError("--out", out, "is there already", "Name a folder that is not there yet.")
    if problem := problem_of(file):
        raise ConfigError("FILE", file, problem, REMEDY)
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise ConfigError("FILE", file, "no GGUF file, which begins with these letters", REMEDY)
    import_optional("gguf", "gguf", "FILE", file)


def _check_all_used(model: PreTrainedModel, source: Origin) -> None:
    """Raises ModelError if the file holds more weights than the model: transformers passes over the others.

    Tensors are renamed, split and stacked on the way, so that their numbers are counted and not their names.
    """
    from gguf import GGUFReader

    # Frequencies of rotary positions are no weights. A tied output layer may be written twice.
    spare = ("rope_", "output.") if model.config.get_text_config().tie_word_embeddings else ("rope_",)
    sizes = {tensor.name: int(tensor.n_elements) for tensor in GGUFReader(str(source.value)).tensors}
    in_file = sum(size for name, size in sizes.items() if not name.startswith(spare))
    in_model = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    if in_file > in_model:
        layers = model.config.get_text_config().num_hidden_layers
        beyond = [name for name in sizes if name.startswith("blk.") and int(name.split(".")[1]) >= layers]
        which = f", such as {named(beyond)} of a model with {layers} layers" if beyond else ""
        problem = f"the file holds {in_file:,} weights, and the model that it describes has {in_model:,}{which}"
        raise source.model_error(problem, _INCOMPLETE)


def _begins_with_bos(file: Path) -> bool | None:
    """Whether texts begin with a token for it, which transformers does not read; None if the file leaves it open."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    if (field := fields.get("tokenizer.ggml.add_bos_token")) is not None:
        return bool(field.contents())
    model = fields.get("tokenizer.ggml.model")
    return True if model is not None and model.contents() == "llama" else None  # sentencepiece: llama.cpp's default


def _without_quantisation(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not say that they are quantised, which they are no more."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    with torch.device("meta"):  # whose weights are never made
        plain = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
