"""Trains a pair as the embedded one was trained: ``python -m experiments.embedded_pair.train --out pair``.

``torchrun --nproc-per-node 4 -m experiments.embedded_pair.train --out pair`` divides each step over four GPUs.
Writes OUT/target and OUT/draft-SHAPE (tokenizer.json, config.json, model.safetensors in bf16) and OUT/training.json
with the data, the steps and the held-out measurements of the weights as they were written. If it is stopped after the
target, ``--teacher OUT/target`` trains the drafts. Without a GPU it runs too, for small shapes and few steps.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.embedded_pair.corpus import END_OF_TEXT, collect, encode, train_tokenizer
from experiments.embedded_pair.evaluate import evaluate_pair
from experiments.embedded_pair.optimise import alternating, build, crops, distillation_loss, next_token_loss, train
from experiments.embedded_pair.own_samples import LENGTH, sample_texts
from specbench.core.errors import SpecbenchError
from specbench.core.machine import ranks
from specbench.core.machine.devices import choose_device, device_of_rank
from specbench.core.machine.disk import read_json, write_json
from specbench.core.machine.files import Origin
from specbench.models.weights import check_values, from_files

TOKENIZER, FACTS = "tokenizer.json", "training.json"
SHAPES = {  # layers, width, heads, kv_heads, inner
    "20x256": (20, 256, 4, 2, 704),
    "2x192": (2, 192, 3, 3, 512),
    "3x192": (3, 192, 3, 3, 512),
    "2x256": (2, 256, 4, 2, 512),
}


LARGEST_VOCABULARY = 2**15  # what the token stream holds, in 16 bits
LEAST_VOCABULARY = 257  # every byte and END_OF_TEXT


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says, checked before anything is read."""
    parser = argparse.ArgumentParser(prog="experiments.embedded_pair.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, help="a folder of texts; else Python source found on this machine")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a sequence, and later of a text")
    parser.add_argument("--sequences", type=int, default=64, help="sequences a step")
    parser.add_argument("--target", default="20x256", choices=SHAPES)
    parser.add_argument("--target-steps", type=int, default=5000)
    parser.add_argument("--drafts", default="3x192", help="comma-separated shapes")
    parser.add_argument("--draft-steps", type=int, default=6000)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--teacher", type=Path, help="a finished target folder; only drafts are trained")
    kept.add_argument("--tokenizer", type=Path, help="the folder of one to keep; else one is fitted to the corpus")
    parser.add_argument("--share-of-tv", type=float, default=0.5)
    parser.add_argument("--own-samples", type=int, default=0, help="texts of the target for every second draft step")
    parser.add_argument("--learning-rate", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if wrong := next(problems(args), None):
        parser.error(wrong)
    return args


def problems(args: argparse.Namespace) -> Iterator[str]:
    """What is wrong with the arguments. Else it would show after minutes, or after hours of training."""
    drafts = args.drafts.split(",")
    if unknown := [shape for shape in drafts if shape not in SHAPES]:
        yield f"argument --drafts: {unknown[0]!r} is no shape. Use some of {','.join(SHAPES)}"
    if not LEAST_VOCABULARY <= args.vocab_size <= LARGEST_VOCABULARY:
        yield f"argument --vocab-size: {args.vocab_size} is outside {LEAST_VOCABULARY} to {LARGEST_VOCABULARY}"
    for name, least in {"context": 1, "sequences": 1, "target_steps": 1, "draft_steps": 1, "own_samples": 0}.items():
        if getattr(args, name) < least:
            yield f"argument --{name.replace('_', '-')}: {getattr(args, name)} is below {least}"
    if not args.learning_rate > 0:
        yield f"argument --learning-rate: {args.learning_rate} is not above 0"
    if not 0 <= args.share_of_tv <= 1:
        yield f"argument --share-of-tv: {args.share_of_tv} is outside 0 to 1"
    if args.sequences % ranks.size():
        yield f"argument --sequences: {args.sequences} cannot be divided among {ranks.size()} processes"
    yield from problems_of_folders(args, drafts)


def problems_of_folders(args: argparse.Namespace, drafts: list[str]) -> Iterator[str]:
    """What is wrong with the folders that the arguments name."""
    if args.corpus is not None and not args.corpus.is_dir():
        yield f"argument --corpus: {args.corpus} is no folder"
    for name, files in {"tokenizer": (TOKENIZER,), "teacher": ("config.json", TOKENIZER)}.items():
        folder: Path | None = getattr(args, name)
        if folder is not None and (missing := [file for file in files if not (folder / file).is_file()]):
            yield f"argument --{name}: {folder} has no {missing[0]}"
    if args.teacher is not None:
        kind = (read_json(args.teacher / "config.json") or {}).get("model_type")
        if kind != "llama":
            yield f"argument --teacher: {args.teacher} is a model of type {kind}, and llama is needed"
    made = [*([] if args.teacher else ["target"]), *(f"draft-{shape}" for shape in drafts)]
    if there := [name for name in made if (args.out / name).exists()]:
        remedy = "give another folder, or --teacher with the target and --drafts with those that are missing"
        yield f"argument --out: {args.out / there[0]} is there already and would be replaced; {remedy}"
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        yield f"argument --out: {args.out} cannot be made ({error.strerror})"


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> LlamaForCausalLM:
    """Writes the checkpoint in bf16 and returns the model as a reader of the file gets it, on the same device."""

    def write() -> None:
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    device = model.device
    ranks.broadcast_from_rank0(write)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()


def teacher(folder: Path) -> LlamaForCausalLM:
    """The model of a finished target's folder. Exits with a message if its files lack weights or hold NaN."""
    source = Origin("--teacher", folder, "Give the folder of a finished target.")
    try:
        model = from_files(source, "its weights cannot be loaded", folder, dtype=torch.float32)
        check_values(model, source)
    except SpecbenchError as error:
        sys.exit(str(error))
    assert isinstance(model, LlamaForCausalLM)  # the arguments' check has read its type
    return model


def prepare(seed: int) -> torch.device:
    """Seeds PyTorch and joins the processes that torchrun started; the device of this one."""
    device = choose_device(device_of_rank("auto"))
    if ranks.size() > 1:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    return device


def choose_tokenizer(args: argparse.Namespace, texts: list[str]) -> Tokenizer:
    """The tokenizer of the teacher or of the folder ``--tokenizer``, else one fitted to the texts.

    Exits if it has too many tokens.
    """
    folder = args.teacher or args.tokenizer
    if not folder:
        return train_tokenizer(texts, args.vocab_size)
    bpe = Tokenizer.from_file(str(folder / TOKENIZER))
    if (size := bpe.get_vocab_size()) > LARGEST_VOCABULARY:
        option = "--teacher" if args.teacher else "--tokenizer"
        sys.exit(f"argument {option}: its vocabulary has {size} tokens, above {LARGEST_VOCABULARY}")
    return bpe


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what the command line asks for."""
    args = arguments(argv)
    started = time.perf_counter()
    device = prepare(args.seed)
    # As CUDA graphs: the host takes longer to start a step's kernels than a GPU to run them.
    faster = partial(torch.compile, mode="reduce-overhead", dynamic=False) if device.type == "cuda" else lambda f: f
    corpus = collect(folder=args.corpus)
    if not corpus.train or not corpus.held_out:
        read, kept = len(corpus.train) + len(corpus.held_out), len(corpus.held_out)
        sys.exit(f"argument --corpus: {read} different texts, {kept} of them kept apart: too few. About 300 are needed")
    bpe = choose_tokenizer(args, corpus.train)
    tokens = torch.from_numpy(encode(bpe, corpus.train)).to(device)
    held_out = torch.from_numpy(encode(bpe, corpus.held_out)).to(device)
    if (fewest := min(len(tokens) - 1, len(held_out))) <= args.context:
        sys.exit(f"argument --context: {args.context} is too long for a corpus of which a part has {fewest} tokens")
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
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "processes": ranks.size(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "sources": corpus.sources,
    }
    say = print if ranks.is_rank0() else lambda *_, **__: None
    say(
        f"corpus ready after {time.perf_counter() - started:.0f} s",
        {k: v for k, v in facts.items() if k != "sources"},
        flush=True,
    )

    share, seed = args.sequences // ranks.size(), args.seed + ranks.rank()  # of this process
    crop = {"sequences": share, "context": args.context, "seed": seed}
    if args.teacher:
        target = teacher(args.teacher).to(device)
    else:
        target = build(bpe.get_vocab_size(), *SHAPES[args.target], args.context).to(device)
        compiled = faster(target)
        facts["target_log"] = train(
            target,
            crops(tokens, **crop),
            lambda _, x: next_token_loss(compiled, x),
            steps=args.target_steps,
            learning_rate=args.learning_rate,
            label="target",
        )
        target = save(target, tokenizer, args.out / "target")

    texts = None
    if args.own_samples:
        count = -(-args.own_samples // ranks.size())
        texts = sample_texts(target, tokens, count, min(LENGTH, args.context), seed)
    before = read_json(args.out / FACTS) if args.teacher else None  # of a training that was stopped
    facts = {**{name: before[name] for name in ("target_log", "drafts") if before and name in before}, **facts}
    facts.setdefault("drafts", {})
    write = write_json if ranks.is_rank0() else lambda *_: None
    write(args.out / FACTS, facts)
    for shape in args.drafts.split(","):
        draft = build(target.config.vocab_size, *SHAPES[shape], args.context).to(device)
        loss = faster(distillation_loss(target, args.share_of_tv))
        batches = crops(tokens, **crop) if texts is None else alternating(tokens, texts, **crop)
        log = train(draft, batches, loss, steps=args.draft_steps, learning_rate=args.learning_rate, label=shape)
        draft = save(draft, tokenizer, args.out / f"draft-{shape}")
        measured = evaluate_pair(target, draft, held_out, args.context)
        facts["drafts"][shape] = {"log": log, **measured}
        say(shape, measured, flush=True)
        write(args.out / FACTS, facts)
    say(f"done after {time.perf_counter() - started:.0f} s", flush=True)
    if ranks.size() > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
