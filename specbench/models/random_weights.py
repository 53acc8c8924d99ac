"""Models of a stated shape with random weights, made on the device: speed can be measured without any checkpoint.

What they write, and how many drafted tokens they accept, means nothing. No file is read but the embedded tokenizer's.
The vocabulary is the shape's whole one, so that logits are as wide as the real model's.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.core.machine.files import Origin
from specbench.models.attention import implementation
from specbench.models.shapes import shape
from specbench.models.tokenizer import load_tokenizer
from specbench.models.trial import check_runs

_TOKENIZER = Path(__file__).parent / "embedded" / "target"


@dataclass(frozen=True)
class RandomModel:
    """A model of random weights, with the methods of a Checkpoint. Made by ``opened``.

    Attributes:
        tokenizer: the embedded pair's; ids beyond its own stand for no text.
    """

    source: Origin
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @staticmethod
    def opened(key: str, name: str) -> RandomModel:
        """The shape of that name.

        Args:
            name: ``random:`` and a name of shapes.py.

        Raises:
            ConfigError: no such shape; the message lists the shapes.
        """
        source = Origin(key, name, "Use a smaller shape, dtype=bfloat16 or device=cpu.")
        return RandomModel(source, shape(source), load_tokenizer(_TOKENIZER, source))

    @property
    def vocab_size(self) -> int:
        """Ids that may be emitted: all outputs."""
        return int(self.config.vocab_size)

    def complete(self) -> None:
        """Nothing is to be fetched."""

    def load(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """The model on its device, in eval mode. Its weights follow from ``source``, device and dtype alone.

        Raises:
            ConfigError: the device has no room.
        """
        with self.source.library_errors(f"it cannot be made on {device}"):
            model = self._made(dtype, device)
        check_runs(model, self.vocab_size, self.source)
        return model

    def _made(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), device:
            # Another seed for each key and shape: a target and a draft of one shape are different models.
            torch.manual_seed(self.seed())
            kind = implementation(self.config)
            return AutoModelForCausalLM.from_config(self.config, dtype=dtype, attn_implementation=kind).eval()

    def seed(self, *more: object) -> int:
        """Returns the seed of the weights that ``more`` names; of all of them without."""
        return zlib.crc32("/".join([f"{self.source.key}={self.source.value}", *map(str, more)]).encode())

    def stop_ids(self, model: PreTrainedModel) -> frozenset[int]:
        """None: every text has its full length."""
        return frozenset()
