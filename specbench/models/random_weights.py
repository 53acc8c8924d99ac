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

from specbench.files import Source
from specbench.foreign import foreign
from specbench.models.attention import implementation
from specbench.models.shapes import RANDOM, shape
from specbench.models.tokenizer import load_tokenizer
from specbench.models.trial import check_engine

_TOKENIZER = Path(__file__).parent / "embedded" / "target"


@dataclass(frozen=True)
class RandomModel:
    """Stands where a Checkpoint does. Made by ``opened``.

    Attributes:
        source: the key and value that ask for it.
        tokenizer: the embedded pair's; ids beyond its own stand for no text.
    """

    source: Source
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @staticmethod
    def asked(name: str) -> bool:
        """Whether a name asks for random weights."""
        return name.startswith(RANDOM)

    @staticmethod
    def opened(key: str, name: str) -> RandomModel:
        """The shape of that name.

        Args:
            key: of the configuration, such as "pair.target".
            name: ``random:`` and a name of shapes.py.

        Raises:
            ConfigError: no such shape; the message lists those that there are.
        """
        source = Source(key, name, "Use a smaller shape, dtype=bfloat16 or device=cpu.")
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
        devices = [device] if device.type == "cuda" else []
        with (
            foreign(self.source.key, self.source.value, f"it cannot be made on {device}", self.source.remedy),
            torch.random.fork_rng(devices),
            device,
        ):
            # Another seed for each key and shape: a target and a draft of one shape are different models.
            torch.manual_seed(zlib.crc32(f"{self.source.key}={self.source.value}".encode()))
            kind = implementation(self.config)
            model = AutoModelForCausalLM.from_config(self.config, dtype=dtype, attn_implementation=kind).eval()
        check_engine(model, self.vocab_size, self.source)
        return model

    def stop_ids(self, model: PreTrainedModel) -> frozenset[int]:
        """None: every text has its full length."""
        return frozenset()
