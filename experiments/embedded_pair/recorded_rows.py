"""Rows of the embedded pair, recorded for certificates: ``python -m experiments.embedded_pair.recorded_rows OUT``.

The exactness suite verifies requests with rows of real models (exactness/inputs/rows.py) and must not load a model to
do so. It reads specbench/exactness/inputs/recorded.safetensors, which this script wrote before the weights of the draft
were rounded. The target continues the prompts of the embedded workload at temperature 1, both models score the texts,
and positions that are spread over all texts are kept, in bfloat16.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

import specbench

POSITIONS, TOKENS, SEED = 64, 64, 0
PROMPTS = Path(specbench.__file__).parent / "runs" / "workloads" / "embedded.jsonl"


@torch.inference_mode()
def record(path: Path) -> None:
    """Writes tensors "target" and "draft", bfloat16 [POSITIONS, vocabulary]."""
    pair = specbench.load_pair("embedded:target", "embedded:draft", dtype="float32")
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    texts = specbench.decode(pair, prompts, gamma=0, max_new_tokens=TOKENS, seed=SEED)
    of_models: dict[str, list[torch.Tensor]] = {"target": [], "draft": []}
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([[*pair.tokenizer.encode(prompt), *text.token_ids]])
        for name, model in (("target", pair.target), ("draft", pair.draft)):
            assert model is not None
            of_models[name].append(model(ids).logits[0, -TOKENS:])
    rows = {name: torch.cat(parts) for name, parts in of_models.items()}
    kept = torch.linspace(0, len(rows["target"]) - 1, POSITIONS).long()
    save_file({name: logits[kept].bfloat16().contiguous() for name, logits in rows.items()}, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the file to write, in safetensors")
    record(parser.parse_args().out)
