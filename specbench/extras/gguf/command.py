"""``python -m specbench convert FILE --out FOLDER``: a GGUF file, as llama.cpp keeps models, to a checkpoint folder."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from specbench.core.machine.progress import console, say
from specbench.runs.config import DTYPES
from specbench.runs.overrides import typed

ABOUT = """\
Makes a checkpoint folder (safetensors, tokenizer, chat template) of a model in one GGUF file, so that pair.target or
pair.draft can name it. Quantised weights become numbers of one dtype; what quantising lost stays lost. Needs
pip install 'specbench[gguf]'."""


def convert(arguments: Sequence[str]) -> int:
    """Converts a file; returns the exit status.

    Raises:
        ConfigError: see :func:`specbench.extras.gguf.conversion.convert`.
    """
    parser = argparse.ArgumentParser(prog="python -m specbench convert", description=ABOUT)
    parser.add_argument("file", metavar="FILE", type=Path, help="a model in GGUF")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="not there yet")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: float32)")
    options = parser.parse_args(arguments)
    if not console.is_terminal:  # bars of transformers would fill a log
        os.environ.setdefault("TQDM_DISABLE", "1")
    from specbench.core.machine.devices import DTYPES as OF_TORCH
    from specbench.extras.gguf import conversion  # which imports PyTorch

    conversion.convert(options.file, options.out, OF_TORCH[options.dtype])
    named = f"pair=hf {typed('pair.target', str(options.out))}"
    say(f"Checkpoint: {options.out}. To use it: {named} pair.draft=..., or alone: {named} drafter=prompt_lookup")
    return 0
