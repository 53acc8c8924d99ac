"""Tokenizers that tests make, and pairs whose draft has another one than the target."""

import copy
import dataclasses
import json

import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specbench.extras.vocabularies.spelling import Spelling
from specbench.extras.vocabularies.translation import Translation
from specbench.models import Pair
from specbench.models.tokenizer import Chat

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "import os\n\n\nclass A:\n    x = 'é 😀'\n",
    "for i in range(10):\n  print(i)",
]


def relabelled(pair: Pair, ids: int) -> Pair:
    """The pair with a draft of its first ``ids`` tokens alone, which are numbered in another order.

    With all tokens it is the same draft: it has to draft the very same tokens.
    """
    order = torch.randperm(pair.vocab_size, generator=torch.Generator().manual_seed(1))
    kept = order[order < ids]
    number = {old: new for new, old in enumerate(kept.tolist())}
    content = json.loads(pair.tokenizer.backend_tokenizer.to_str())
    names = {name: number[i] for name, i in content["model"]["vocab"].items() if i in number}
    content["model"]["vocab"] = names
    merges = [merge for merge in content["model"]["merges"] if "".join(merge) in names]
    content["model"]["merges"] = merges
    for token in content["added_tokens"]:
        token["id"] = number[token["id"]]
    content["post_processor"] = None
    end, made = pair.tokenizer.eos_token, Tokenizer.from_str(json.dumps(content))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=end, eos_token=end)
    draft = copy.deepcopy(pair.draft)
    weight = pair.draft.get_input_embeddings().weight.detach()[kept].clone()
    draft.set_input_embeddings(nn.Embedding.from_pretrained(weight))
    head = nn.Linear(weight.shape[1], len(kept), bias=False, dtype=weight.dtype)
    head.weight = nn.Parameter(weight, requires_grad=False)
    draft.set_output_embeddings(head)
    target_spelling, draft_spelling = Spelling(pair.tokenizer, pair.vocab_size), Spelling(tokenizer, len(kept))
    return dataclasses.replace(pair, draft=draft, translation=Translation(target_spelling, draft_spelling))


def letters(tokens: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of these tokens, each of which joins an earlier one and a letter; the end of a text comes last."""
    merges = [(token[:-1], token[-1]) for token in tokens if len(token) > 1]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate([*tokens, "</s>"])}, merges))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>")


def random_model(vocabulary: int, seed: int) -> PreTrainedModel:
    """A tiny one whose distributions are far from flat, in float64."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, initializer_range=0.3, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


def letter_pair(of_target: list[str], of_draft: list[str]) -> Pair:
    """Tiny random models that write words of a few letters. No token ends a text."""
    tokenizers = [letters(of_target), letters(of_draft)]
    target, draft = (random_model(len(tokenizer), seed) for seed, tokenizer in enumerate(tokenizers))
    translation = Translation(*(Spelling(tokenizer, len(tokenizer)) for tokenizer in tokenizers))
    return Pair(target, draft, tokenizers[0], len(tokenizers[0]), frozenset(), Chat(False), translation)
