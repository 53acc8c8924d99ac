"""A causal language model that extends many sequences at once and can take tokens back.

Nothing is ever computed twice: the cache holds every token that was fed, and ``truncate`` forgets the tail of each
request by its own amount. Tokens may be fed as a tree; ``keep_path`` then makes a text of one of its paths. The engine
knows nothing of drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel

from specbench import trees
from specbench.batch import known_max
from specbench.models.cache import RaggedCache

# Without cuDNN's attention, which builds a new plan for every length of the keys, that is, at every step.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def context_length(config: PreTrainedConfig) -> int:
    """The longest sequence a model can hold; practically unlimited where its configuration names none.

    A sliding window, as Mistral's first model has it, sees all of a sequence that is no longer than itself; the engine
    knows no windows, so that nothing longer is held.
    """
    text = config.get_text_config()
    longest = [getattr(text, "max_position_embeddings", None)]
    if getattr(text, "layer_types", None) is None:  # those that name them have no window where they are full attention
        longest.append(getattr(text, "sliding_window", None))
    return min([2**31, *(int(each) for each in longest if each is not None)])


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Int64[Tensor, "B n"]:
    """Token ids of different lengths as one tensor, filled up with id 0, which any vocabulary has."""
    longest = max(map(len, sequences))
    return torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences], device=device)


def _tree_mask(seen: Bool[Tensor, "B n k"], root: Int64[Tensor, " B"], visible: int) -> Bool[Tensor, "B n visible"]:
    """What each of n tokens of a tree may attend to: all that is cached before the tree, and its own path."""
    batch, n, k = seen.shape
    place = torch.arange(visible, device=seen.device) - root[:, None]
    own = seen.gather(2, place.clamp(0, k - 1)[:, None].expand(batch, n, visible))
    return (place < 0)[:, None] | (own & ((place >= 0) & (place < k))[:, None])


class Engine:
    """One model and the cached sequences of the requests in the batch.

    Args:
        model: a decoder with full attention in every layer, in eval mode.
        vocab_size: ids the tokenizer knows; an output layer padded wider is cut, so a padding id is never emitted.
        name: what messages call it ("target", "draft").

    Attributes:
        lengths: tokens cached of each request, int64 [B] on the model's device.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, name: str):
        self.model, self.vocab_size, self.name = model, vocab_size, name
        self.device = model.device
        self.context = context_length(model.config)
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
    def extend(
        self,
        token_ids: Int64[Tensor, "B n"],
        counts: Int64[Tensor, " B"],
        seen: Bool[Tensor, "B n k"] | None = None,
    ) -> Float[Tensor, "B n V"]:
        """Feeds ``counts[b]`` tokens to each request and returns the logits after each.

        Args:
            token_ids: right-padded with any valid id; a count may be 0.
            seen: if the tokens are part of a tree: which of its k tokens fed so far, these n as the last of them, are
                on the path to each (:func:`specbench.trees.ancestors`). A token attends to the text before the tree
                and to its path, and its position is by its depth. None for tokens that follow one another.

        Returns:
            Logits in the model's dtype; rows at or beyond a request's count are meaningless.
        """
        logits = self._forward(token_ids, seen=seen)
        self.lengths = self.lengths + counts
        self._longest += token_ids.shape[1]
        return logits

    @torch.inference_mode()
    def _forward(
        self, token_ids: Int64[Tensor, "B n"], logits_to_keep: int = 0, seen: Bool[Tensor, "B n k"] | None = None
    ) -> Float[Tensor, "B kept V"]:
        n = token_ids.shape[1]
        visible = min(known_max(self.lengths, self._longest) + n, self._cache.capacity)
        positions = self.lengths[:, None] + torch.arange(n, device=self.device)
        self._cache.prepare(positions, visible)
        if seen is None:
            mask = torch.arange(visible, device=self.device) <= positions[:, :, None]
        else:
            root = self.lengths + n - seen.shape[2]  # where the tree begins
            mask = _tree_mask(seen, root, visible)
            positions = root[:, None] + trees.depths(seen) - 1
        with sdpa_kernel(_ATTENTION):
            output = self.model(
                input_ids=token_ids,
                attention_mask=mask[:, None],
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

    @torch.inference_mode()
    def keep_path(self, root: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"]) -> None:
        """Moves one path of a tree to where its tokens would stand had they alone been fed; follow with ``truncate``.

        Args:
            root: tokens cached of each request before the tree.
            path: the tokens of the path, as indices in the tree, in order; negative behind its end.
        """
        goal = root[:, None] + torch.arange(path.shape[1], device=path.device)
        self._cache.move(torch.where(path < 0, goal, root[:, None] + path), goal)

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
