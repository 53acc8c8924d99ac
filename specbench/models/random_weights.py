"""Models of a stated shape with random weights, made on the device: speed can be measured without any checkpoint.

What they write, and how many drafted tokens they accept, means nothing. No file is read but the embedded tokenizer's.
The vocabulary is the shape's whole one, so that logits are as wide as the real model's.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from specbench.core.machine import ranks
from specbench.core.machine.files import Source, wrap_library_errors
from specbench.models import sharding
from specbench.models.attention import implementation
from specbench.models.shapes import RANDOM, shape
from specbench.models.tokenizer import load_tokenizer
from specbench.models.trial import check_runs

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

    def load(self, dtype: torch.dtype, device: torch.device, sharded: bool = False) -> PreTrainedModel:
        """The model on its device, in eval mode. Its weights follow from ``source``, device, dtype and ranks alone.

        Args:
            sharded: each rank makes its shard and no more, so that a model may be larger than a GPU (sharding.py).

        Raises:
            ConfigError: the device has no room.
        """

        def made() -> PreTrainedModel:
            problem = f"it cannot be made on {device}"
            with wrap_library_errors(self.source.key, self.source.value, problem, self.source.remedy):
                return self._shard(dtype) if sharded else self._whole(dtype, device)

        model = ranks.together(made) if sharded else made()
        check_runs(model, self.vocab_size, self.source)
        return model

    def _whole(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), device:
            # Another seed for each key and shape: a target and a draft of one shape are different models.
            torch.manual_seed(self._seed())
            kind = implementation(self.config)
            return AutoModelForCausalLM.from_config(self.config, dtype=dtype, attn_implementation=kind).eval()

    def _shard(self, dtype: torch.dtype) -> PreTrainedModel:
        """transformers makes it as it would that of a checkpoint whose files lack every weight."""
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(self.config)]
        with torch.random.fork_rng(), _without_report():
            model = model_class.from_pretrained(
                None,
                config=self.config,
                state_dict={},
                dtype=dtype,
                attn_implementation=implementation(self.config),
                **sharding.loading(True),
            )
        # It has the same numbers on every rank. Now each shard has its own, and what all ranks have whole is the same.
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                held = sharding.local(weight.detach())
                seed = self._seed(name, ranks.rank() if sharding.is_shard(weight) else "all")
                generator = torch.Generator(held.device).manual_seed(seed)
                held.normal_(0, self.config.initializer_range, generator=generator)
        return model.eval()

    def _seed(self, *more: object) -> int:
        return zlib.crc32("/".join([f"{self.source.key}={self.source.value}", *map(str, more)]).encode())

    def stop_ids(self, model: PreTrainedModel) -> frozenset[int]:
        """None: every text has its full length."""
        return frozenset()


@contextmanager
def _without_report() -> Generator[None]:
    """Keeps to itself what transformers has to say of weights that no file has."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="DTensor random operators")
            yield
    finally:
        transformers_logging.set_verbosity(before)
