"""A model in one GGUF file, as llama.cpp keeps them -> a checkpoint folder (safetensors) as everything here reads it.

transformers reads the file: configuration, tokenizer, chat template and weights, which it turns back into numbers of
one dtype if they are quantised. What is lost by quantising stays lost.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specbench.disk import writing
from specbench.errors import ConfigError, NotInstalledError
from specbench.files import problem_of
from specbench.foreign import foreign
from specbench.models import hub

MAGIC = b"GGUF"
REMEDY = "Give a whole file, of a decoder that transformers reads from GGUF."


def convert(file: Path, out: Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes a checkpoint folder from a GGUF file: config.json, model.safetensors, tokenizer, chat template.

    Args:
        out: a folder that is not there yet; it is whole, or is not there.
        dtype: of the weights in the folder. float32 holds those of every quantisation without rounding.

    Raises:
        ConfigError: no such file, no GGUF, or an architecture that transformers does not read from one; ``out`` is
            taken.
        NotInstalledError: the package gguf is missing.
        WriteError: the folder cannot be written.
    """
    _check(file, out)
    with hub.offline(), foreign("FILE", file, "transformers cannot read it", REMEDY):
        place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**place)  # ty: ignore[invalid-assignment]
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=dtype)
        if (begins := _begins_with_bos(file)) is not None:
            tokenizer.add_bos_token = begins
    plain = _without_quantisation(model)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            plain.save_pretrained(beside)
            tokenizer.save_pretrained(beside)
            beside.chmod(0o755)  # mkdtemp's are for nobody else
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
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        remedy = "Install it: pip install 'specbench[gguf]'."
        raise NotInstalledError("FILE", file, "the package gguf, which reads it, is not installed", remedy) from error


def _begins_with_bos(file: Path) -> bool | None:
    """Whether texts begin with a token for it, which transformers does not read; None if the file leaves it open."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    if (said := fields.get("tokenizer.ggml.add_bos_token")) is not None:
        return bool(said.contents())
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
