"""A causal language model and its key-value cache, with a row for each request and a length of its own for each row.

No token is computed twice: the cache holds every token that was fed, and ``truncate`` forgets the rejected ones of each
request. Tokens may be fed as a tree, of which ``truncate`` keeps one path. Hidden states come with the logits if they
are requested. A cached model knows nothing of drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from transformers import PreTrainedModel

from specbench.core.fusion import fusible
from specbench.core.machine.devices import to_tensor
from specbench.kernels import cpu_rows
from specbench.models.cache import RaggedCache
from specbench.models.forward import CausalModel, Feature, Features, ModelOutput
from specbench.models.row_cache import RowCache
from specbench.sampling.batch import Batch, known_max

if TYPE_CHECKING:  # it imports this module
    from specbench.models.cpu_model import CpuModel

NATIVE_PROMPT = 256  # tokens of a longer prompt are rows enough for PyTorch's products
COMPARE_RANKS = "specbench_compare_ranks"  # attribute of a model that several processes compute (hook ``parallel``)


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device, filling: int = 0) -> Int64[Tensor, "B n"]:
    """Returns token ids of different lengths as one tensor, padded with ``filling``; id 0 is in any vocabulary."""
    longest = max(map(len, sequences))
    filled = [[*sequence, *[filling] * (longest - len(sequence))] for sequence in sequences]
    return to_tensor(filled, device)


@fusible
def _following(lengths: Int64[Tensor, " B"], n: int) -> Int64[Tensor, "B n"]:
    """Returns the positions of the next n tokens after the cached ones."""
    return lengths[:, None] if n == 1 else lengths[:, None] + torch.arange(n, device=lengths.device)


class CachedModel(CausalModel, RowCache):
    """One model and the cached tokens of the requests in the batch.

    Args:
        model, vocab_size, dtype: see :class:`CausalModel`.
        name: what messages call it ("target", "draft").

    Attributes:
        lengths: cached tokens of each request in the leading rows, int64 [B] on the model's device; changed in place.
        compare_ranks: of a model that other processes compute a part of, in the same steps: returns the requests, bool
            [B], of which they have other logits [B, width, V] or tokens [B, _]; None for a model of this process alone.
        native: takes the passes of steps of fixed shapes in one call each (models/cpu_model.py); None for a model that
            has none.
        least_width: tokens of a chain that steps of fixed shapes feed at least, padding included.
        lacks_tokens: whether the logits of some tokens are always -inf, so that a sampler may leave none.
    """

    native: CpuModel | None = None
    feeds_fixed: ClassVar[bool] = True
    lacks_tokens: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, vocab_size: int, name: str, dtype: torch.dtype | None = None):
        super().__init__(model, vocab_size, dtype)
        self.name = name
        self.compare_ranks: Callable[..., Tensor] | None = vars(model).get(COMPARE_RANKS)
        self._num_layers = int(model.config.get_text_config().num_hidden_layers)
        self._cache = RaggedCache(self._num_layers, self.device)
        self._reserved = (0, 0)
        self.least_width = 1
        self.layout = 0
        self._lengths = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.show(0, 0)

    @property
    def state(self) -> tuple[Tensor, ...]:
        return (self.lengths,)

    @property
    def capacity(self) -> int:
        """The most tokens of a request that there is memory for."""
        return self._cache.capacity

    def packed_memory(self, kv_heads: int, head_dim: int, columns: int) -> list[tuple[Tensor, Tensor]]:
        """Returns the keys and values of each layer, packed from here on until memory grows; allocated if need be."""
        like = torch.empty((0, kv_heads, 0, head_dim), dtype=self.model.dtype, device=self.device)
        return self._cache.packed(like, columns)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]], capacity: int, features: Sequence[Feature] = ()) -> Features:
        """Forgets all requests and feeds these prompts, which may be none, to the leading rows; see :meth:`place`.

        Args:
            capacity: the longest sequence that will be extended to.
        """
        rows = len(prompts)
        if rows > self._cache.rows or capacity > self._cache.capacity:
            self._cache = RaggedCache(self._num_layers, self.device)  # frees the memory of the last one
            self._grow(max(rows, self._reserved[0]), max(capacity, self._reserved[1]))
        self._lengths.zero_()
        hidden = self.place(prompts, range(rows), features)
        self.show(rows, max((len(prompt) - 1 for prompt in prompts), default=0))
        return hidden

    @torch.inference_mode()
    def reserve(self, rows: int, capacity: int) -> None:
        """Allocates memory for at least these requests and tokens, now and after any :meth:`start`."""
        self._reserved = (max(rows, self._reserved[0]), max(capacity, self._reserved[1]))
        needed = (max(rows, self._cache.rows), max(capacity, self._cache.capacity))
        if needed != (self._cache.rows, self._cache.capacity):
            self._grow(*needed)

    def _grow(self, rows: int, capacity: int) -> None:
        self._cache.grow(rows, capacity)
        self._lengths = torch.nn.functional.pad(self._lengths[:rows], (0, rows - min(rows, len(self._lengths))))
        self.lengths = self._lengths[: len(self.lengths)]
        self.layout += 1

    @torch.inference_mode()
    def place(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[int], features: Sequence[Feature] = ()
    ) -> Features:
        """Feeds whole prompts, each of at least one token less than the capacity, to these rows.

        The last token of a prompt is left for the first :meth:`extend`, so that decoding begins like any later step.
        Equal prompts are computed once and shared.

        Returns:
            The hidden states of each prompt's tokens but the last, right-padded.
        """
        if not prompts:
            return {}
        pieces, first = [tuple(prompt[:-1]) for prompt in prompts], [0] * len(prompts)
        if not any(pieces) or self._native(features, prompts):
            return self.feed(pieces, rows, first, features)
        index_of = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
        at, source = (self._integers(numbers) for numbers in (rows, [index_of[piece] for piece in pieces]))
        fed = right_padded(list(index_of), self.device)
        self._cache.begin(at, source, fed.shape[1])
        begin = torch.zeros(len(fed), dtype=torch.int64, device=self.device)
        output = self._forward(self._cache, fed, begin, _following(begin, fed.shape[1]), features, last=True)
        self._set_fed(pieces, rows, first)
        return {name: states[source] for name, states in output.features.items()}

    @torch.inference_mode()
    def feed(
        self,
        pieces: Sequence[Sequence[int]],
        rows: Sequence[int],
        first: Sequence[int],
        features: Sequence[Feature] = (),
    ) -> Features:
        """Feeds a piece of each prompt, which needs memory for the pieces alone.

        Returns:
            The hidden states of each piece, right-padded; see :meth:`place`.
        """
        if native := self._native(features, pieces):
            native.feed(pieces, rows, first)
            self._set_fed(pieces, rows, first)
            return {}
        begun = [row for row, place in zip(rows, first, strict=True) if place == 0]
        at, begin, cleared = (self._integers(numbers) for numbers in (rows, first, begun))
        self._cache.clear(cleared)
        if any(pieces):
            fed = right_padded(pieces, self.device)
            n = fed.shape[1]
            written = _following(begin, n)
            self._cache.extend(written, max(first) + n, at)
            hidden = self._forward(self._cache, fed, begin, written, features, last=True).features
        else:
            shape = (len(pieces), 0, int(self.model.config.get_text_config().hidden_size))
            hidden = {name: torch.zeros(shape, dtype=self.model.dtype, device=self.device) for name in features}
        self._set_fed(pieces, rows, first)
        return hidden

    @torch.inference_mode()
    def feed_fixed(
        self,
        tokens: Int64[Tensor, "1 n"],
        row: Int64[Tensor, " 1"],
        first: Int64[Tensor, " 1"],
        count: Int64[Tensor, " 1"],
    ) -> None:
        """Feeds a piece of a prompt as :meth:`feed` does, in shapes that depend on its width alone.

        A row has to be cleared before its first piece.

        Args:
            tokens: of the piece, right-padded with any valid id; fewer than the capacity.
            count: of them without padding.
        """
        written = _following(first, tokens.shape[1]).clamp(max=self.capacity - 1)  # of padding
        self._cache.extend(written, self.capacity, row)
        self._forward(self._cache, tokens, first, written, (), fixed=True, last=True)
        self._lengths[row] = first + count

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Sets the memory of a row's tokens to zero, before :meth:`feed_fixed` begins a text there."""
        self._cache.clear_row(row)

    def _set_fed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """Sets the lengths of the requests whose pieces were fed."""
        lengths = [place + len(piece) for place, piece in zip(first, pieces, strict=True)]
        self._lengths[self._integers(rows)] = self._integers(lengths)
        self._longest = max(self._longest, *lengths)

    def show(self, rows: int, longest: int | None = None) -> None:
        """Sets the rows of later steps. Without ``longest`` attention reads the whole capacity."""
        self.lengths, self._fixed = self._lengths[:rows], longest is None
        self._longest = 0 if longest is None else longest

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if len(sources) > 0:
            at, to = self._integers(sources), self._integers(targets)
            self._lengths[to] = self._lengths[at]
            self._cache.move(at, to)

    def native_draft(self, batch: Batch) -> CpuModel | None:
        """Returns ``native`` if it drafts for these requests in one call: logits alone decide what is drawn."""
        native, plain = self._native(), not batch.params.truncates and not batch.params.looks_back
        return native if native and plain and self._fixed else None

    def _native(self, features: Sequence[Feature] = (), pieces: Sequence[Sequence[int]] = ()) -> CpuModel | None:
        short = all(len(piece) <= NATIVE_PROMPT for piece in pieces)
        return self.native if cpu_rows.drawing.on and not features and short else None

    @torch.inference_mode()
    def extend(
        self,
        token_ids: Int64[Tensor, "B n"],
        counts: Int64[Tensor, " B"],
        ancestors: Bool[Tensor, "B n k"] | None = None,
        features: Sequence[Feature] = (),
    ) -> ModelOutput:
        """Feeds ``counts[b]`` tokens to each request of the leading rows and returns the logits after each token.

        Args:
            token_ids: right-padded with any valid id; a count may be 0.
            ancestors: if the tokens are part of a tree: which of its k tokens fed so far, these n as the last of them,
                are on the path to each (:func:`specbench.core.trees.ancestors`). A token attends to the text before the
                tree and to its path, and its position is by its depth. None for tokens that follow one another.
            features: the hidden states to return. While the pass runs, those of all layers are in memory.

        Returns:
            Logits and hidden states; rows at or beyond a request's count are meaningless.
        """
        native = self._native(features)
        if native and self._fixed:
            logits = native.extend(token_ids, ancestors)
            self.lengths += counts
            return ModelOutput(logits, {})
        n, capacity = token_ids.shape[1], self.capacity
        padding = max(self.least_width - n, 0) if self._fixed and ancestors is None else 0
        fed = torch.nn.functional.pad(token_ids, (0, padding)) if padding else token_ids
        written = _following(self.lengths, n + padding)
        longest = capacity if self._fixed else known_max(self.lengths, self._longest)
        self._cache.extend(written, min(longest + n, capacity))
        output = self._forward(self._cache, fed, self.lengths, written, features, ancestors, fixed=self._fixed)
        self.lengths += counts
        self._longest += n
        if padding:
            hidden = {name: states[:, :n] for name, states in output.features.items()}
            return ModelOutput(output.logits[:, :n], hidden)
        return output

    def _integers(self, numbers: Sequence[int]) -> Int64[Tensor, " n"]:
        return to_tensor(list(numbers), self.device)

    @torch.inference_mode()
    def truncate(self, lengths: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"] | None = None) -> None:
        """Takes rejected tokens back. A path ends before its first token that was not fed."""
        if path is not None:
            root = lengths - (path >= 0).sum(dim=1)  # tokens before the tree
            lengths = root + ((path >= 0) & (path < (self.lengths - root)[:, None])).sum(dim=1)
            goal = _following(root, path.shape[1])
            self._cache.shift(torch.where(path < 0, goal, root[:, None] + path), goal)
        torch.minimum(self.lengths, lengths, out=self.lengths)
