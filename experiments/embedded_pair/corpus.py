"""Training and held-out text, and a byte-level BPE over it.

The text is that of a folder, or else Python source found on this machine: of the standard library and of installed
distributions whose metadata names a permissive licence. Files are deduplicated by content and split by a hash of it, so
the same file is never on both sides.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END_OF_TEXT = "<|endoftext|>"
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MIT-CMU|HPND|Unlicense)\b", re.IGNORECASE
)
RESTRICTED = re.compile(r"\b(L?GPL|AGPL|MPL|Mozilla|Proprietary|NVIDIA)\b", re.IGNORECASE)
MIN_BYTES, MAX_BYTES = 200, 400_000
MAX_LINE = 400  # longer lines are data or generated code


@dataclass
class Corpus:
    """Texts for training and for evaluation, and the distributions (name version) they came from."""

    train: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def licence_of(distribution: Distribution) -> str:
    """The licence fields of a distribution's metadata, joined; the free-text field only where it is a short name."""
    metadata: Any = distribution.metadata  # an email.message.Message, whatever the annotation says
    fields = [metadata.get("License-Expression") or ""]
    fields += [line for line in metadata.get_all("Classifier") or [] if line.startswith("License")]
    free_text = metadata.get("License") or ""
    return " ".join([*fields, free_text if len(free_text) < 80 else free_text[:80]])


def python_files() -> Iterator[tuple[str, Path]]:
    """(source, path) of every .py file of the standard library and of permissively licensed distributions."""
    standard_library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(standard_library.rglob("*.py")):
        if "site-packages" not in path.parts and "dist-packages" not in path.parts:
            yield "python-standard-library", path
    for distribution in distributions():
        licence = licence_of(distribution)
        if not PERMISSIVE.search(licence) or RESTRICTED.search(licence):
            continue
        source = f"{distribution.metadata['Name']} {distribution.version}"
        for file in distribution.files or []:
            if file.suffix == ".py":
                yield source, Path(str(distribution.locate_file(file)))


def readable(path: Path) -> str | None:
    """The file's text, or None where it is too small, too large, not UTF-8, or not written by hand."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if not MIN_BYTES <= len(data) <= MAX_BYTES or max(map(len, text.splitlines())) > MAX_LINE:
        return None
    return text.replace("\r\n", "\n")


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """(the folder's name, path) of every file below a folder, but for hidden ones."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield folder.name, path


def collect(held_out_share: float = 0.01, folder: Path | None = None) -> Corpus:
    """Reads and splits everything that :func:`files_of` finds in a folder; None is what :func:`python_files` finds."""
    corpus, seen, sources = Corpus(), set(), set()
    for source, path in python_files() if folder is None else files_of(folder):
        text = readable(path)
        if text is None:
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        sources.add(source)
        is_held_out = int.from_bytes(digest[:4], "big") < held_out_share * 2**32
        (corpus.held_out if is_held_out else corpus.train).append(text)
    corpus.sources = sorted(sources)
    return corpus


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE whose encodings begin with END_OF_TEXT, which separates documents in training."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, end)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str], batch: int = 2000) -> np.ndarray:
    """All documents as one int16 stream, each led by END_OF_TEXT."""
    parts = []
    for start in range(0, len(texts), batch):
        for encoding in tokenizer.encode_batch(texts[start : start + batch]):
            parts.append(np.asarray(encoding.ids, dtype=np.int16))
    return np.concatenate(parts)
