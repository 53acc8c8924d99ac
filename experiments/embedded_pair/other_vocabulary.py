"""Makes drafts for the embedded target that have another tokenizer, in minutes on one CPU core.

Run ``python -m experiments.embedded_pair.other_vocabulary --out drafts``.

OUT/bytes has a byte-level BPE as the target has, of half the size and other merges. OUT/pieces has a tokenizer in the
form of sentencepiece: spaces are "▁", digits stand alone, and what no token has is written byte by byte. Each draft is
the embedded one, whose embeddings are those of the same tokens, or the mean of those that write a token, trained on
for some steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from experiments.embedded_pair.corpus import END_OF_TEXT, collect, encode, train_tokenizer
from experiments.embedded_pair.optimise import crops, next_token_loss, train
from specbench.extras.vocabularies.spelling import Spelling
from specbench.models import load_pair

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
TOKENIZERS = ("bytes", "pieces")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says, checked before anything is read."""
    parser = argparse.ArgumentParser(prog="experiments.embedded_pair.other_vocabulary", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizers", nargs="+", choices=TOKENIZERS, default=TOKENIZERS)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--files", type=int, default=2000, help="source files to read, the same for both")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sequences", type=int, default=8, help="sequences a step")
    parser.add_argument("--context", type=int, default=256, help="tokens of a sequence in training")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for name in ("files", "steps", "sequences", "context"):
        if getattr(args, name) < 1:
            parser.error(f"argument --{name}: {getattr(args, name)} is not above 0")
    try:  # now, and not after minutes of training
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {args.out} cannot be made ({error.strerror})")
    return args


def in_pieces(texts: Iterator[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A BPE as sentencepiece writes it: "▁" for a space, and 256 tokens for single bytes."""
    bpe = Tokenizer(models.BPE(unk_token=UNKNOWN, byte_fallback=True))
    bpe.normalizer = normalizers.Replace(" ", "▁")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"▁*\p{L}+|▁+|\n+|[^▁\n]"), "isolated"), pre_tokenizers.Digits(True)]
    )
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[UNKNOWN, START, END, *every_byte],
        limit_alphabet=128,
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    # The trainer made the bytes special, which they are not.
    content = json.loads(bpe.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in every_byte]
    bpe = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=START, eos_token=END, unk_token=UNKNOWN)


def in_bytes(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """The embedded pair's kind of tokenizer."""
    bpe = train_tokenizer(texts, vocab_size)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)


@torch.no_grad()
def transplanted(draft: PreTrainedModel, old: Spelling, new: Spelling) -> LlamaForCausalLM:
    """The draft with another vocabulary: a token's embedding is the mean over the old tokens of its text."""
    config: Any = copy.deepcopy(draft.config)
    config.vocab_size = len(new.tokens)
    model = LlamaForCausalLM(config)
    weights = {
        name: weight for name, weight in draft.state_dict().items() if "embed" not in name and "head" not in name
    }
    model.load_state_dict(weights, strict=False)
    table: Any = model.get_input_embeddings().weight
    before: Any = draft.get_input_embeddings().weight
    for i, spelled in enumerate(new.tokens):
        if ids := old.encode(spelled):
            table[i] = before[ids].mean(dim=0)
    return model


def made(kind: str, texts: list[str], args: argparse.Namespace) -> Path:
    """Trains one tokenizer and its draft, and returns the folder."""
    pair = load_pair("embedded:target", "embedded:draft", device="cpu")
    assert pair.draft is not None
    tokenizer = in_bytes(texts, args.vocab_size) if kind == "bytes" else in_pieces(iter(texts), args.vocab_size)
    tokenizer.model_max_length = pair.context
    new = Spelling(tokenizer, args.vocab_size)
    model = transplanted(pair.draft, Spelling(pair.tokenizer, pair.vocab_size), new)
    model.config.bos_token_id = model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    backend = tokenizer.backend_tokenizer
    parts = [f"{START}{text}" if kind == "pieces" else text for text in texts]
    tokens = torch.from_numpy(encode(backend, parts))
    batches = crops(tokens, args.sequences, args.context, args.seed)
    train(model, batches, next_token_loss, steps=args.steps, learning_rate=args.learning_rate, label=kind)
    folder = args.out / kind
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the drafts that the command line asks for."""
    args, began = arguments(argv), time.perf_counter()
    torch.manual_seed(args.seed)
    corpus = collect()
    texts = corpus.train[:: max(1, len(corpus.train) // args.files)]
    print(f"{len(texts)} files of {len(corpus.train)} after {time.perf_counter() - began:.0f} s", flush=True)
    for kind in args.tokenizers:
        print(made(kind, texts, args), f"after {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
