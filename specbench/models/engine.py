"""A causal language model that extends many sequences at once and can take tokens back.

Nothing is ever computed twice: the cache holds every token that was fed, and ``truncate`` forgets the tail of each
request by its own amount. The engine knows nothing of drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel

from specbench.batch import known_max
from specbench.models import attention, rope
from specbench.models.cache import RaggedCache
from specbench.models.plain_attention import places, seen

# Without cuDNN's attention, which builds a new plan for every length of the keys, that is, at every step.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def context_length(config: PreTrainedConfig) -> int:
    """The longest sequence a model can hold; practically unlimited where its configuration names none.

    Sliding windows do not bound it (models/attention.py); rotary positions that change with the length do (rope.py).
    """
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min([2**31, *rope.original_contexts(config), *([] if longest is None else [int(longest)])])


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Int64[Tensor, "B n"]:
    """Token ids of different lengths as one tensor, filled up with id 0, which any vocabulary has."""
    longest = max(map(len, sequences))
    return torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences], device=device)


class Engine:
    """One model and the cached sequences of the requests in the batch.

    Args:
        model: a decoder with attention in every layer, in eval mode. It runs the attention of models/attention.py from
            here on, if it can.
        vocab_size: ids the tokenizer knows; an output layer padded wider is cut, so a padding id is never emitted.
        name: what messages call it ("target", "draft").

    Attributes:
        lengths: tokens cached of each request, int64 [B] on the model's device.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, name: str):
        self.model, self.vocab_size, self.name = model, vocab_size, name
        self.device = model.device
        self.context = context_length(model.config)
        self._takes_places = attention.install(model)
        rope.hold(model)
        self._num_layers = int(model.config.get_text_config().num_hidden_layers)
        self._clear(0)

    def _clear(self, capacity: int) -> None:
        self._cache = RaggedCache(self._num_layers, capacity)
        self.lengths = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._longest = 0  # no request has more cached tokens; what the host knows without asking the device

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """Drops everything cached and feeds new prompts; see :meth:`admit`."""
        self._clear(capacity)
        self.admit(prompts, capacity)

    def admit(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """Feeds the prompts of further requests, each of at least one token less than ``capacity``.

        The last token of a prompt is left for the first :meth:`extend`, so that decoding begins like any later step.
        Equal prompts are computed once and shared. Capacity is the longest sequence that will be extended to.
        """
        before = (self._cache, self.lengths, self._longest)
        self._clear(max(capacity, self._cache.capacity))
        unique = list(dict.fromkeys(tuple(prompt[:-1]) for prompt in prompts))
        self.lengths = torch.zeros(len(unique), dtype=torch.int64, device=self.device)
        if any(unique):
            self._forward(right_padded(unique, self.device), logits_to_keep=1)
        index_of = {prompt: i for i, prompt in enumerate(unique)}
        rows = [index_of[tuple(prompt[:-1])] for prompt in prompts]
        lengths = [len(unique[row]) for row in rows]
        self.lengths, self._longest = torch.tensor(lengths, device=self.device), max(lengths)
        if rows != list(range(len(unique))):
            self._cache.select(torch.tensor(rows, device=self.device))
        cache, earlier, longest = before
        if len(earlier):
            self._cache = cache.joined(self._cache, len(earlier), len(rows))
            self.lengths, self._longest = torch.cat([earlier, self.lengths]), max(longest, self._longest)

    @torch.inference_mode()
    def extend(self, token_ids: Int64[Tensor, "B n"], counts: Int64[Tensor, " B"]) -> Float[Tensor, "B n V"]:
        """Feeds ``counts[b]`` tokens to each request and returns the logits after each.

        Args:
            token_ids: right-padded with any valid id; a count may be 0.

        Returns:
            Logits in the model's dtype; rows at or beyond a request's count are meaningless.
        """
        logits = self._forward(token_ids)
        self.lengths = self.lengths + counts
        self._longest += token_ids.shape[1]
        return logits

    @torch.inference_mode()
    def _forward(self, token_ids: Int64[Tensor, "B n"], logits_to_keep: int = 0) -> Float[Tensor, "B kept V"]:
        n = token_ids.shape[1]
        visible = min(known_max(self.lengths, self._longest) + n, self._cache.capacity)
        positions = self.lengths[:, None] + torch.arange(n, device=self.device)
        self._cache.prepare(positions, visible)
        at = places(self.lengths, positions)
        with sdpa_kernel(_ATTENTION):
            output = self.model(
                input_ids=token_ids,
                attention_mask=at if self._takes_places else seen(at, visible, None)[:, None],
                # Padding may lie beyond the context, where learned position embeddings have no row.
                position_ids=positions.clamp(max=self.context - 1),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=logits_to_keep,
            )
        return output.logits[..., : self.vocab_size]

    def truncate(self, lengths: Int64[Tensor, " B"]) -> None:
        """Takes tokens back: each request keeps at most the given number of cached tokens."""
        self.lengths = torch.minimum(self.lengths, lengths)

    def bound(self, longest: int) -> None:
        """Says that no request has more than so many cached tokens, which saves asking the device."""
        self._longest = min(self._longest, longest)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only the given requests of the batch, in that order."""
        if list(rows) != list(range(len(self.lengths))):
            index = torch.tensor(list(rows), dtype=torch.int64, device=self.device)
            self.lengths = self.lengths[index]
            if rows:
                self._cache.select(index)

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> Float[Tensor, "n V"]:
        """Logits after every token of one sequence, in one pass without a cache: what the cache is held against."""
        ids = torch.tensor([list(token_ids)], device=self.device)
        return self.model(input_ids=ids, use_cache=False).logits[0, :, : self.vocab_size]

    def synchronize(self) -> None:
        """Waits for the device, so that a clock read afterwards means something."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
