"""Trains the embedded pair on one GPU: ``python -m specbench.training --out pair``.

Writes OUT/target and OUT/draft-SHAPE (tokenizer.json, config.json, model.safetensors in bf16) and OUT/training.json
with the data, the steps and the held-out measurements of the weights as they were written.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.corpus import END_OF_TEXT, collect, encode, train_tokenizer
from specbench.training.evaluate import evaluate_pair
from specbench.training.optimise import build, distillation_loss, next_token_loss, train

SHAPES = {  # layers, width, heads, kv_heads, inner
    "12x256": (12, 256, 4, 2, 704),
    "2x192": (2, 192, 3, 3, 512),
    "3x192": (3, 192, 3, 3, 512),
    "2x256": (2, 256, 4, 2, 512),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="specbench.training", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=64, help="sequences a step")
    parser.add_argument("--target", default="12x256", choices=SHAPES)
    parser.add_argument("--target-steps", type=int, default=8000)
    parser.add_argument("--drafts", default="2x192", help="comma-separated shapes")
    parser.add_argument("--draft-steps", type=int, default=4000)
    parser.add_argument("--teacher", help="a finished target folder; only drafts are trained")
    parser.add_argument("--share-of-tv", type=float, default=0.5)
    parser.add_argument("--learning-rate", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> LlamaForCausalLM:
    """Writes the checkpoint in bf16 and returns the model as a reader of the file gets it."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    started = time.perf_counter()
    corpus = collect()
    if args.teacher:
        bpe = Tokenizer.from_file(str(Path(args.teacher) / "tokenizer.json"))
    else:
        bpe = train_tokenizer(corpus.train, args.vocab_size)
    tokens = torch.from_numpy(encode(bpe, corpus.train)).cuda()
    held_out = torch.from_numpy(encode(bpe, corpus.held_out)).cuda()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, model_max_length=args.context
    )
    facts: dict[str, Any] = {
        "train_tokens": len(tokens),
        "held_out_tokens": len(held_out),
        "train_files": len(corpus.train),
        "held_out_files": len(corpus.held_out),
        "bytes_per_token": sum(len(t.encode()) for t in corpus.held_out) / len(held_out),
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "hardware": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "sources": corpus.sources,
    }
    print(
        f"corpus ready after {time.perf_counter() - started:.0f} s",
        {k: v for k, v in facts.items() if k != "sources"},
        flush=True,
    )

    common = {
        "context": args.context,
        "sequences": args.sequences,
        "learning_rate": args.learning_rate,
        "seed": args.seed,
    }
    if args.teacher:
        target = LlamaForCausalLM.from_pretrained(args.teacher, dtype=torch.float32).cuda().eval()
    else:
        target = build(args.vocab_size, *SHAPES[args.target], args.context).cuda()
        compiled = torch.compile(target)
        facts["target_log"] = train(
            target, tokens, lambda _, x: next_token_loss(compiled, x), steps=args.target_steps, label="target", **common
        )
        target = save(target, tokenizer, args.out / "target")

    facts["drafts"] = {}
    for shape in args.drafts.split(","):
        draft = build(args.vocab_size, *SHAPES[shape], args.context).cuda()
        loss = torch.compile(distillation_loss(target, args.share_of_tv))
        log = train(draft, tokens, loss, steps=args.draft_steps, label=shape, **common)
        draft = save(draft, tokenizer, args.out / f"draft-{shape}")
        measured = evaluate_pair(target, draft, held_out, args.context)
        facts["drafts"][shape] = {"log": log, **measured}
        print(shape, measured, flush=True)
        (args.out / "training.json").write_text(json.dumps(facts, indent=1))
    print(f"done after {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
