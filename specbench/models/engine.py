"""A causal language model that extends many sequences at once and can take tokens back.

Nothing is ever computed twice: the cache holds every token that was fed, and ``truncate`` forgets the tail of each
request by its own amount. Requests stand in rows: they are placed in some, moved to others, and the leading rows are
extended together. Tokens may be fed as a tree; ``keep_path`` then makes one path of it the text. The engine knows
nothing of drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel

from specbench.core import trees
from specbench.core.machine import ranks
from specbench.kernels import dependent
from specbench.models import attention, joined, products, rope, summed
from specbench.models.cache import RaggedCache
from specbench.models.plain_attention import places, seen
from specbench.models.sharding import Shards
from specbench.sampling.batch import known_max

# Without cuDNN's attention, which builds a new plan for every length of the keys, that is, at every step.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_SHAPES = 256  # that a model may be compiled for


def context_length(config: PreTrainedConfig) -> int:
    """The longest sequence a model can hold; practically unlimited where its configuration names none.

    Sliding windows do not bound it (models/attention.py); rotary positions that change with the length do (rope.py).
    """
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min([2**31, *rope.original_contexts(config), *([] if longest is None else [int(longest)])])


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device, filling: int = 0) -> Int64[Tensor, "B n"]:
    """Token ids of different lengths as one tensor, filled up with id 0, which any vocabulary has, or another."""
    longest = max(map(len, sequences))
    filled = [[*sequence, *[filling] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(filled, dtype=torch.int64, device=device)


class Engine:
    """One model and the cached sequences of the requests in the batch.

    Args:
        model: a decoder with attention in every layer, in eval mode. It runs the attention of models/attention.py from
            here on, if it can.
        vocab_size: ids the tokenizer knows; an output layer padded wider is cut, so a padding id is never emitted.
        name: what messages call it ("target", "draft").
        dtype: that logits are returned in; None is whatever the model gives.

    Attributes:
        lengths: tokens cached of each request in the leading rows, int64 [B] on the model's device; changed in place.
        layout: changes whenever memory is allocated anew, which a captured CUDA graph would not notice.
        shards: the ranks that the model is sharded over; None for a whole one. The cache has this rank's heads.
    """

    shards: Shards | None = None

    def __init__(self, model: PreTrainedModel, vocab_size: int, name: str, dtype: torch.dtype | None = None):
        self.model, self.vocab_size, self.name = model, vocab_size, name
        self._dtype = dtype
        self.device = model.device
        self.shards = Shards.of(model)
        self.context = context_length(model.config)
        self._takes_places = attention.install(model)
        rope.hold(model)
        self._num_layers = int(model.config.get_text_config().num_hidden_layers)
        self._cache = RaggedCache(self._num_layers)
        self._reserved = (0, 0)
        self._compiled: Callable[..., Any] | None = None
        self.layout = 0
        self._lengths = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.show(0)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """Drops everything cached and feeds new prompts, which may be none, to the leading rows; see :meth:`place`.

        Args:
            capacity: the longest sequence that will be extended to.
        """
        rows = len(prompts)
        if rows > self._cache.rows or capacity > self._cache.capacity:
            self._cache = RaggedCache(self._num_layers)  # frees the memory of the last one
            self._grow(max(rows, self._reserved[0]), max(capacity, self._reserved[1]))
        self._lengths.zero_()
        self._longest = 0
        self.place(prompts, range(rows))
        self.show(rows)

    def reserve(self, rows: int, capacity: int) -> None:
        """Makes room for so many requests and positions of each, now and after any :meth:`start`; nothing is lost."""
        self._reserved = (max(rows, self._reserved[0]), max(capacity, self._reserved[1]))
        wanted = (max(rows, self._cache.rows), max(capacity, self._cache.capacity))
        if wanted != (self._cache.rows, self._cache.capacity):
            self._grow(*wanted)

    def _grow(self, rows: int, capacity: int) -> None:
        self._cache.grow(rows, capacity)
        self._lengths = torch.nn.functional.pad(self._lengths[:rows], (0, rows - min(rows, len(self._lengths))))
        self.lengths = self._lengths[: len(self.lengths)]
        self.layout += 1

    @torch.inference_mode()
    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        """Feeds the prompts of further requests, each of at least one token less than the capacity, to these rows.

        The last token of a prompt is left for the first :meth:`extend`, so that decoding begins like any later step.
        Equal prompts are computed once and shared.
        """
        if not prompts:
            return
        unique = list(dict.fromkeys(tuple(prompt[:-1]) for prompt in prompts))
        index_of = {prompt: i for i, prompt in enumerate(unique)}
        at = torch.tensor(list(rows), dtype=torch.int64, device=self.device)
        if any(unique):
            source = torch.tensor([index_of[tuple(prompt[:-1])] for prompt in prompts], device=self.device)
            fed = right_padded(unique, self.device)
            self._cache.begin(at, source, fed.shape[1])
            start = torch.zeros(len(unique), dtype=torch.int64, device=self.device)
            self._forward(fed, start, self._behind(start, fed.shape[1]), last=True)
        else:
            self._cache.clear(at)
        lengths = [len(prompt) - 1 for prompt in prompts]
        self._lengths[at] = torch.tensor(lengths, device=self.device)
        self._longest = max(self._longest, *lengths)

    @torch.inference_mode()
    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """Feeds a piece of each prompt to its row. All pieces of a prompt do what :meth:`place` does at once, with
        memory for a piece alone.

        Args:
            pieces: tokens of each prompt that follow one another, which may be none; never its last token.
            rows: that the prompts stand in.
            first: how many tokens of each prompt were fed before. At 0 the row forgets what it held.
        """
        begun = [row for row, place in zip(rows, first, strict=True) if place == 0]
        at, start, begin = (
            torch.tensor(list(each), dtype=torch.int64, device=self.device) for each in (rows, first, begun)
        )
        self._cache.clear(begin)
        if any(pieces):
            fed = right_padded(pieces, self.device)
            n = fed.shape[1]
            written = self._behind(start, n)
            self._cache.extend(written, max(first) + n, at)
            self._forward(fed, start, written, last=True)
        lengths = [place + len(piece) for place, piece in zip(first, pieces, strict=True)]
        self._lengths[at] = torch.tensor(lengths, device=self.device)
        self._longest = max(self._longest, *lengths)

    def show(self, rows: int, fixed: bool = False) -> None:
        """Says that the leading rows, so many, are extended from now on.

        Args:
            fixed: attention reads the whole capacity at every step, so that no shape depends on what was cached.
        """
        self.lengths, self._fixed = self._lengths[:rows], fixed
        if rows == 0:
            self._longest = 0  # no request has more cached tokens; what the host knows without asking the device

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Writes the requests of some rows to others, whose own are lost; no row may be in both."""
        if len(sources) > 0:
            at, to = (torch.tensor(list(rows), dtype=torch.int64, device=self.device) for rows in (sources, targets))
            self._lengths[to] = self._lengths[at]
            self._cache.move(at, to)

    @torch.inference_mode()
    def extend(
        self,
        token_ids: Int64[Tensor, "B n"],
        counts: Int64[Tensor, " B"],
        ancestors: Bool[Tensor, "B n k"] | None = None,
    ) -> Float[Tensor, "B n V"]:
        """Feeds ``counts[b]`` tokens to each request of the leading rows and returns the logits after each.

        Args:
            token_ids: right-padded with any valid id; a count may be 0.
            ancestors: if the tokens are part of a tree: which of its k tokens fed so far, these n as the last of them,
                are on the path to each (:func:`specbench.core.trees.ancestors`). A token attends to the text before
                the tree and to its path, and its position is by its depth. None for tokens that follow one another.

        Returns:
            Logits; rows at or beyond a request's count are meaningless.
        """
        n, capacity = token_ids.shape[1], self._cache.capacity
        written = self._behind(self.lengths, n)
        longest = capacity if self._fixed else known_max(self.lengths, self._longest)
        self._cache.extend(written, min(longest + n, capacity))
        logits = self._forward(token_ids, self.lengths, written, ancestors, self._compiled if self._fixed else None)
        self.lengths += counts
        self._longest += n
        return logits

    def compile(self, sums: str = "nccl", early: bool = True) -> None:
        """Has torch.compile make the code of every later :meth:`extend` of fixed shapes, when it first comes.

        Layers that are given the same input become one product (models/joined.py), and products of few rows are ours
        (models/products.py). PyTorch's kernels start early too, where the GPU can (kernels/dependent.py). PyTorch
        chooses some kernels by how fast they are here, and so each process may round in its own way: ranks, which have
        to agree to the last bit, take kernels that nobody has timed.

        Args:
            sums: how a sharded model adds up over ranks (models/summed.py).
            early: whether PyTorch's kernels start early. Who wants them to looks at their code (models/early_code.py).
        """
        # Beyond the limit PyTorch would go on without compiling, and say nothing.
        torch._dynamo.config.recompile_limit = _SHAPES  # ty: ignore[invalid-assignment]
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # ty: ignore[invalid-assignment]
        joined.join(self.model)
        if self.shards is not None:
            summed.install(self.model, sums)
        products.install(self.model)
        options: dict[str, Any] = {
            "deterministic": ranks.launched(),
            "triton.enable_pdl": early and dependent.possible(self.device),
        }
        self._compiled = torch.compile(self.model, dynamic=False, options=options)

    def _forward(
        self,
        token_ids: Int64[Tensor, "B n"],
        lengths: Int64[Tensor, " B"],
        positions: Int64[Tensor, "B n"],
        ancestors: Bool[Tensor, "B n k"] | None = None,
        compiled: Callable[..., Any] | None = None,
        last: bool = False,
    ) -> Float[Tensor, "B kept V"]:
        if ancestors is not None:
            lengths = lengths + token_ids.shape[1] - ancestors.shape[2]  # where the tree begins
            positions = lengths[:, None] + trees.depths(ancestors) - 1
        at = places(lengths, positions, ancestors)
        with sdpa_kernel(_ATTENTION), nullcontext() if compiled is None else products.ours():
            output = (self.model if compiled is None else compiled)(
                input_ids=token_ids,
                attention_mask=at if self._takes_places else seen(at, self._cache.visible, None)[:, None],
                # Padding may lie beyond the context, where learned position embeddings have no row.
                position_ids=positions.clamp(max=self.context - 1),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1 if last else 0,
            )
        return self._returned(output.logits)

    def _behind(self, lengths: Int64[Tensor, " B"], n: int) -> Int64[Tensor, "B n"]:
        """The places of n tokens behind what is cached."""
        return lengths[:, None] + torch.arange(n, device=self.device)

    def _returned(self, logits: Float[Tensor, "*n outputs"]) -> Float[Tensor, "*n V"]:
        known = logits[..., : self.vocab_size]
        return known if self._dtype is None else known.to(self._dtype)

    @torch.inference_mode()
    def truncate(self, lengths: Int64[Tensor, " B"]) -> None:
        """Takes tokens back: each request keeps at most the given number of cached tokens."""
        torch.minimum(self.lengths, lengths, out=self.lengths)

    @torch.inference_mode()
    def keep_path(self, root: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"]) -> None:
        """Moves one path of a tree to where its tokens would stand had they alone been fed; follow with ``truncate``.

        Args:
            root: tokens cached of each request before the tree.
            path: the tokens of the path, as indices in the tree, in order; negative behind its end.
        """
        goal = root[:, None] + torch.arange(path.shape[1], device=path.device)
        self._cache.shift(torch.where(path < 0, goal, root[:, None] + path), goal)

    def state(self) -> tuple[Tensor, ...]:
        """What a step changes in place and the next one goes by."""
        return (self.lengths,)

    def bound(self, longest: int) -> None:
        """Says that no request has more than so many cached tokens, which saves asking the device."""
        self._longest = min(self._longest, longest)

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> Float[Tensor, "n V"]:
        """Logits after every token of one sequence, in one pass without a cache: what the cache is held against."""
        ids = torch.tensor([list(token_ids)], device=self.device)
        return self._returned(self.model(input_ids=ids, use_cache=False).logits[0])

    def synchronize(self) -> None:
        """Waits for the device, so that a clock read afterwards means something."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
