"""One model of a pair: found, checked, then loaded, so that a bad pair is refused before weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.core.checks import is_whole
from specbench.core.machine.files import Origin, shown
from specbench.core.machine.progress import say
from specbench.models import hub
from specbench.models.architecture import load_config
from specbench.models.folder import check_folder
from specbench.models.shapes import RANDOM, shape
from specbench.models.tokenizer import load_tokenizer
from specbench.models.trial import check_runs
from specbench.models.vocabulary import check_output_width, vocabulary_size
from specbench.models.weight_files import read_headers
from specbench.models.weights import check_size, check_values, load_weights, output_weight

EMBEDDED = "embedded:"
_WHOLE = "Give a folder that is complete, as save_pretrained writes it."
_INCOMPLETE = "It is incomplete in the local hub cache: add pair.download=true to fetch it."


def locate(key: str, name: str) -> str:
    """Where to load a model from: a folder of this package, a local folder, a hub id, or nowhere (``random:SHAPE``).

    Raises:
        ConfigError: a folder that is missing or broken (folder.py), or no such shape; found out before anything is
            loaded.
    """
    source = Origin(key, name, _WHOLE)
    if name.startswith(RANDOM):
        shape(source)
        return name
    folder = _folder(source)
    if folder is None:
        return name
    check_folder(folder, source)
    return str(folder)


def _folder(source: Origin) -> Path | None:
    """The folder that a name means, whether or not there is one; None for a hub id."""
    name = str(source.value)
    if name.startswith(EMBEDDED):
        folder = Path(__file__).parent / "embedded" / name.removeprefix(EMBEDDED)
        if not (folder / "config.json").is_file():
            raise source.wrong("no such embedded model", "Use embedded:target or embedded:draft.")
        return folder
    folder = Path(os.path.expanduser(name))
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1 or os.path.lexists(folder)
    return folder if looks_local else None


@dataclass(frozen=True)
class Checkpoint:
    """The facts of a model that are known before its weights are read. Made by ``opened``.

    Attributes:
        remote: whether its weights are yet to be fetched from the hub.
        raw: what config.json holds.
    """

    source: Origin
    folder: Path
    remote: bool
    raw: Mapping[str, Any]
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @staticmethod
    def opened(key: str, name: str, download: bool) -> Checkpoint:
        """Finds a model and reads all of it but the weights.

        Args:
            key: of the configuration, such as "pair.target".
            download: whether a hub id may be fetched; otherwise the local hub cache has to have it.

        Raises:
            ConfigError: it is not there or broken.
            ModelError: it is nothing that specbench can run.
        """
        source = Origin(key, name, _WHOLE)
        folder = _folder(source)
        remote = folder is None and download
        if remote:
            folder = hub.fetch(source)
        elif folder is None:
            source = Origin(key, name, _INCOMPLETE)
            folder = hub.cached(source)
        with hub.offline():
            raw = check_folder(folder, source, weights=not remote)
            config = load_config(folder, source)
            if code := raw.get("auto_map"):
                own = type(config).__name__
                say(f"{key}={name}: its code ({shown(code)}) is not run, but transformers' for {own}.", style="yellow")
            return Checkpoint(source, folder, remote, raw, config, load_tokenizer(folder, source))

    @property
    def vocab_size(self) -> int:
        """Ids that may be emitted: the tokenizer's, whose outputs may be padded."""
        return vocabulary_size(self.tokenizer)

    @property
    def quantised(self) -> bool:
        return self.raw.get("quantization_config") is not None

    def complete(self) -> None:
        """Fetches the weights if they are missing, and checks their files.

        Raises:
            ConfigError: they cannot be fetched, or are not those of config.json.
        """
        if self.remote:
            hub.fetch_weights(self.source, self.folder)
        headers = read_headers(self.folder, self.raw, self.source)
        if not self.quantised:
            check_size(self.config, headers, self.source)

    def load(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """The model on its device, in eval mode, with every weight from the files.

        Raises:
            ConfigError: the files are broken, or the device has no room.
            ModelError: weights that are missing or no numbers; an architecture that a cached model cannot run.
        """
        with hub.offline():
            model = self.read(dtype, device)
            check_runs(model, self.vocab_size, self.source)
        return model

    def read(
        self, dtype: torch.dtype, device: torch.device, placed: Mapping[str, Any] | None = None
    ) -> PreTrainedModel:
        """The model as :meth:`load` returns it, before it is tried.

        Args:
            placed: further arguments of ``from_pretrained`` that have weights read to where they stay.
        """
        model = load_weights(self.folder, self.config, dtype, self.source, **(placed or {}))
        # Some quantised models refuse to be moved.
        if not placed and not (self.quantised and model.device.type == device.type):
            problem, remedy = f"it does not fit on {device}", "Use a smaller model, dtype=bfloat16 or device=cpu."
            with self.source.library_errors(problem, remedy):
                model = model.to(device)
        width = output_weight(model, self.source).shape[0]
        check_output_width(self.source, width, self.vocab_size)
        check_values(model, self.source)
        return model

    def stop_ids(self, model: PreTrainedModel) -> frozenset[int]:
        """Returns the ids that end a text: the tokenizer's and those of the model's generation config.

        Raises:
            ConfigError: an id that the tokenizer does not have.
        """
        eos_ids, last = getattr(model.generation_config, "eos_token_id", None), self.vocab_size - 1
        ids = [*(eos_ids if isinstance(eos_ids, list) else [eos_ids]), self.tokenizer.eos_token_id]
        for token in ids:
            if token is not None and (not is_whole(token) or not 0 <= token <= last):
                problem = f"eos_token_id {shown(token)} is not an id of its tokenizer, which has ids 0 to {last}"
                remedy = "Mend eos_token_id in generation_config.json, or in config.json where there is none."
                raise self.source.wrong(problem, remedy)
        return frozenset(token for token in ids if token is not None)
