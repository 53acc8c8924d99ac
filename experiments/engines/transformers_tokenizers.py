"""transformers alone, two random models: does a draft with another tokenizer change a text's second token?"""

from string import ascii_lowercase as letters

import torch
from scipy.stats import chi2_contingency
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed


class InOrder(PreTrainedTokenizerFast):
    def get_vocab(self):
        return dict(sorted(super().get_vocab().items(), key=lambda item: item[1]))


def made(tokens, seed, kind=PreTrainedTokenizerFast):
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.3, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), kind(tokenizer_object=words)


def counts(seed, kind=None):
    target, tokenizer = made(letters[:20], 0)
    how = {"do_sample": True, "max_new_tokens": 4, "top_k": 0, "pad_token_id": 0}
    if kind:
        draft, other = made(letters[5:26], 1, kind)
        draft.generation_config.update(num_assistant_tokens=3, assistant_confidence_threshold=0.0)
        how |= {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": other}
    set_seed(seed)
    prompt = tokenizer("f g h i", return_tensors="pt")["input_ids"]
    return torch.bincount(torch.stack([target.generate(prompt, **how)[0, 5] for _ in range(1000)]), minlength=20)


for seed in (1, 2):
    for name, kind in (("plain", None), ("speculative", PreTrainedTokenizerFast), ("speculative, in order", InOrder)):
        pair = torch.stack([counts(seed), counts(seed + 10, kind)])
        print(f"seed {seed}, plain against {name}: p = {chi2_contingency(pair[:, pair.sum(0) > 0])[1]:.2g}")
