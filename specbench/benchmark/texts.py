"""Made-up texts before synthetic steps, for the sampling parameters that look at them.

Ids are drawn by Zipf's law, the probability of id k near (k + 1)^-1.15, so that a low id is a frequent token, as in a
vocabulary of merges. Of 1,024 tokens from a vocabulary of 128,256 about 465 are different ones.
"""

from __future__ import annotations

import zlib

import torch

from specbench.benchmark.grid import CaseSpec
from specbench.sampling import History, SamplingParams, resolve

_EXPONENT = 1.15
_PIECE = 4  # characters of a made-up token


def some_history(spec: CaseSpec, generator: torch.Generator) -> History:
    """What precedes each place of a step whose drafts are still to come: texts of ``spec.context`` tokens, the first
    half of each its prompt."""
    batch, gamma, context, vocabulary = spec.batch_size, spec.gamma, spec.context, spec.vocabulary
    device = generator.device
    u = torch.rand((batch, context), dtype=torch.float64, generator=generator, device=device)
    flat = 1 - _EXPONENT  # the inverse of the distribution function of a density that falls as x^-1.15 from 1 on
    texts = (1 - u * (1 - vocabulary**flat)) ** (1 / flat)
    texts = texts.long().clamp(1, vocabulary) - 1
    room = torch.zeros((batch, gamma + 1), dtype=torch.int64, device=device)  # for what the step emits
    return History(
        texts=torch.cat([texts, room], dim=1),
        prompt_lengths=torch.full((batch,), context // 2, device=device),
        text_lengths=torch.full((batch,), context, device=device),
        drafted=torch.zeros((batch, gamma), dtype=torch.int64, device=device),
        request=torch.arange(batch, device=device).repeat_interleave(gamma + 1),
        offset=torch.arange(gamma + 1, device=device).repeat(batch),
    )


def resolved(sampling: SamplingParams, vocabulary: int) -> SamplingParams:
    """The parameters in made-up ids, if they need any: every four characters are a token, the last two ids end
    texts, and the first two begin and end thinking.

    Raises:
        ConfigError: an id beyond the vocabulary.
    """
    stops = range(vocabulary - 2, vocabulary)
    return resolve(sampling, lambda text: encode(text, vocabulary), stops, vocabulary, thinking_ids=(0, 1))


def encode(text: str, vocabulary: int) -> tuple[int, ...]:
    """Made-up ids of a text, always the same."""
    pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    return tuple(zlib.crc32(piece.encode()) % vocabulary for piece in pieces)
