"""``python -m specbench convert FILE --out FOLDER``: a GGUF file, as llama.cpp keeps models, to a checkpoint folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specbench.core.machine.progress import say
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
    asked = _parser().parse_args(arguments)
    from specbench.core.machine.devices import DTYPES as OF_TORCH
    from specbench.extras.gguf import conversion  # which imports PyTorch

    conversion.convert(asked.file, asked.out, OF_TORCH[asked.dtype])
    say(f"Checkpoint: {asked.out}. To use it: pair=hf {typed('pair.target', str(asked.out))} pair.draft=...")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specbench convert", description=ABOUT)
    parser.add_argument("file", metavar="FILE", type=Path, help="a model in GGUF")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="not there yet")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: float32)")
    return parser
