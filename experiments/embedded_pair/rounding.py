"""Rounds the weights of a draft to one byte each: ``python -m experiments.embedded_pair.rounding DRAFT OUT``.

Each row of a matrix becomes whole multiples, up to 127, of a power of two. bfloat16 holds these numbers exactly. So the
file is an ordinary checkpoint, and compiled steps on a CPU read a byte a weight (specbench/kernels/cpu_product.py).
Prints how much of the target's probability the draft covers before and after, on texts that the target writes itself.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import PreTrainedModel

import specbench
from specbench.kernels import cpu_product
from specbench.runs.workloads import load_prompts

PROMPTS, TOKENS = 72, 96


@torch.no_grad()
def round_to_bytes(model: PreTrainedModel) -> None:
    """Rounds the matrices of a model in place. A table of embeddings is one."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            scales = cpu_product.byte_scales(parameter)
            parameter.copy_((parameter / scales).round() * scales)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path, help="the folder of a draft of the embedded target")
    parser.add_argument("out", type=Path, help="the folder of the rounded one")
    args = parser.parse_args()
    prompts = [prompt.text for prompt in load_prompts("embedded:embedded.jsonl", PROMPTS)]
    pair = specbench.load_pair("embedded:target", args.draft, device="cpu")
    draft = pair.draft
    assert draft is not None
    shutil.copytree(args.draft, args.out)
    for name in ("before", "rounded"):
        if name == "rounded":
            round_to_bytes(draft)
        texts = specbench.decode(pair, prompts, gamma=0, max_new_tokens=TOKENS, overlap=True)  # of the target alone
        low, high = (texts.results[f"overlap_{end}"] for end in ("low", "high"))
        print(f"{name}: overlap {texts.overlap:.4f} [{low:.4f}, {high:.4f}]", flush=True)
    draft.to(torch.bfloat16).save_pretrained(args.out)


if __name__ == "__main__":
    main()
