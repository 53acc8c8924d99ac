"""A tiny pair that decodes in milliseconds, requests for it, and a decoder of each kind of draft."""

import dataclasses

import torch

from specbench.decoding import Decoder, DecodingEngine, Request
from specbench.drafters.layer_skip import LayerSkipDrafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.ngrams import NgramIndex
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.drafters.suffix_lookup import SuffixLookupDrafter
from specbench.drafters.synthetic import SyntheticDrafter
from specbench.drafters.tree import TopTreeDrafter, TreeDrafter
from specbench.models import Pair
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.synthetic import SyntheticVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.rules.token.tree import TreeVerifier
from tests.helpers import families
from tests.helpers.cases import MIXED, decoder


class TensorLookup(PromptLookupDrafter):
    """Has its index in tensors on a CPU too, as on a GPU."""

    def _attach(self, pair, target):
        self._index = NgramIndex(self.longest, self.shortest, target.device)
        self.caches = (self._index,)


DRAFTS = {
    "model": (ModelDrafter, MaskedVerifier, 3),
    "prompt_lookup": (PromptLookupDrafter, MaskedVerifier, 3),
    "tensor_lookup": (TensorLookup, MaskedVerifier, 3),
    "suffix_lookup": (lambda: SuffixLookupDrafter(remembered=0), MaskedVerifier, 3),
    "tree": (lambda: TreeDrafter([2]), TreeVerifier, 2),
    "deep_tree": (lambda: TreeDrafter([1, 2]), TreeVerifier, 3),
    "top_tree": (lambda: TopTreeDrafter([2, 1]), TreeVerifier, 2),
    "naive": (ModelDrafter, NaiveVerifier, 3),
    "block": (ModelDrafter, BlockVerifier, 3),
    "layer_skip": (lambda: LayerSkipDrafter(1), MaskedVerifier, 3),
    "probability": (lambda: ModelDrafter(1.5, "probability", 0.2), BlockVerifier, 3),
    "greedy_drafts": (lambda: ModelDrafter(temperature=0.0), MaskedVerifier, 3),
    "entropy": (lambda: LayerSkipDrafter(1, 0.8, "entropy", 1.5), MaskedVerifier, 3),
    "synthetic": (SyntheticDrafter, SyntheticVerifier, 3),
}


def toy_pair(pair: Pair, family: str = "gemma2", noise: float = 0.03) -> Pair:
    """Two tiny models in float32 that mostly agree, in place of a pair's; of gemma2, a window in every other layer.

    Greedy texts of gemma2 repeat a token; those of mistral do not, and need less noise to agree as often.
    """
    target, draft = families.made(family), families.made(family)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(noise * torch.randn(weight.shape, generator=generator))
    stops = frozenset({3, 7, 11})
    return dataclasses.replace(pair, target=target, draft=draft, vocab_size=families.VOCABULARY, stop_ids=stops)


def toy_requests(prompt_lengths: tuple[int, ...]) -> list[Request]:
    """Random prompts of these lengths, of different samplers and numbers of new tokens."""
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(families.VOCABULARY, (n,), generator=generator).tolist() for n in prompt_lengths]
    return [Request(str(i), tuple(prompt), 50 + i, MIXED[i % 3], 5 + 4 * (i % 4)) for i, prompt in enumerate(prompts)]


def toy_decoder(
    pair: Pair, draft: str = "model", engine: DecodingEngine | None = None, gamma: int | None = None
) -> Decoder:
    """A decoder of the toy pair; plain for gamma 0, and None takes the largest gamma of its kind."""
    drafter, verifier, most = DRAFTS[draft]
    return decoder(pair, most if gamma is None else gamma, drafter=drafter(), verifier=verifier(), engine=engine)
