"""Texts that the target writes itself: what a draft is asked about in decoding, stranger than what files hold.

Distilling on them is on-policy distillation as DistillSpec has it (arXiv 2310.08461), with the target's samples.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

LENGTH = 320  # tokens of a sample at most, its prefix included
TOGETHER = 8192  # samples


@torch.no_grad()
def sample_texts(model: Any, tokens: Tensor, count: int, length: int, seed: int) -> Tensor:
    """At least ``count`` samples of a Llama model at temperature 1, int16 [n, length], behind beginnings of documents.

    ``tokens`` [N] is a stream of documents, each led by token 0. The prefixes of a batch have one length; those of all
    batches are spread evenly up to half of ``length``. A text goes on behind an end of text, as the stream does.
    """
    model = copy.deepcopy(model).to(torch.bfloat16) if tokens.is_cuda else model
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    torch.manual_seed(seed)  # what generate draws from
    starts = (tokens[: -length // 2] == 0).nonzero()
    batches = -(-count // TOGETHER)
    texts = []
    for batch in range(1, batches + 1):
        rows = torch.randint(len(starts), (min(count, TOGETHER),), generator=generator, device=tokens.device)
        window = torch.arange(max(1, length // 2 * batch // batches), device=tokens.device)
        prefixes = tokens[starts[rows] + window].long()
        written = model.generate(
            prefixes,
            attention_mask=torch.ones_like(prefixes),
            max_length=length,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            eos_token_id=None,
            pad_token_id=0,
        )
        texts.append(written.to(torch.int16))
    return torch.cat(texts)
