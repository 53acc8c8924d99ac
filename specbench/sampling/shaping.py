"""The sampling parameters that change logits, as tensors with one row a request; shaped.py has the formulas."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int32, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.machine.devices import to_tensor
from specbench.core.mask import BITS
from specbench.core.sampling_params import PENALTIES, SamplingParams
from specbench.core.types import PADDING
from specbench.sampling.resolved import ResolvedParams

PENALISE, BIAS, RESTRICT, FORBID, DELAY = "penalties", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"
THINK = "thinking_token_budget"
_COLUMNS = ("bias_ids", "bias", "allowed", "ending_ids")  # two-dimensional, as wide as the widest row needs
# Values of rows without the parameter, and of columns after a row's last.
_OFF: dict[str, tuple[torch.dtype, float | int]] = {
    **dict.fromkeys(("presence", "frequency"), (torch.float64, 0.0)),
    "repetition": (torch.float64, 1.0),
    "bias_ids": (torch.int64, PADDING),
    "bias": (torch.float64, 0.0),
    "restricted": (torch.bool, False),
    "allowed": (torch.int32, 0),
    "bad_words": (torch.int64, PADDING),
    "min_tokens": (torch.int64, 0),
    "ending_ids": (torch.int64, PADDING),
    "thinking_budget": (torch.int64, -1),
    **dict.fromkeys(("thinking_start", "thinking_end"), (torch.int64, PADDING)),
}


@dataclass(frozen=True)
class Shaping:
    """The parameters of n rows that change logits.

    Attributes:
        bias_ids, bias: ids, each once in a row, and the numbers added to their logits; ids of -1 after a row's last.
        restricted: whether only the ids of ``allowed`` may come.
        allowed: one bit an id: id 32 * i + j is bit j of word i. Ids beyond the words are banned.
        bad_words: sequences of ids in reverse order: id [.., 0] is banned if [.., 1], [.., 2], ... are the tokens one,
            two, ... before it in the continuation; -1 after a sequence's first token, and for no sequence.
        min_tokens: the number of tokens of the continuation before which all of ``ending_ids`` are banned.
        ending_ids: the ids that end a text; -1 after a row's last.
        thinking_budget: the most tokens between ``thinking_start`` and ``thinking_end``; -1 is no limit.
        thinking_start, thinking_end: the ids that begin and end thinking; -1 for none.
        kinds: those of PENALISE, BIAS, RESTRICT, FORBID, DELAY, THINK that any row uses; the others are skipped.
    """

    presence: Float64[Tensor, " n"]
    frequency: Float64[Tensor, " n"]
    repetition: Float64[Tensor, " n"]
    bias_ids: Int64[Tensor, "n biases"]
    bias: Float64[Tensor, "n biases"]
    restricted: Bool[Tensor, " n"]
    allowed: Int32[Tensor, "n words"]
    bad_words: Int64[Tensor, "n sequences longest"]
    min_tokens: Int64[Tensor, " n"]
    ending_ids: Int64[Tensor, "n endings"]
    thinking_budget: Int64[Tensor, " n"]
    thinking_start: Int64[Tensor, " n"]
    thinking_end: Int64[Tensor, " n"]
    kinds: frozenset[str]

    @staticmethod
    def of(params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> Shaping | None:
        """Returns one row a request; None if no request has a parameter that changes logits.

        Raises:
            ArgumentError: a parameter needs ids of a vocabulary, and is not resolved (Pair.resolved does that).
        """
        if not any(request.shaping for request in params):
            return None
        for request in params:
            name = next((name for name in (FORBID, DELAY, THINK) if name in request.shaping), None)
            if name is not None and not isinstance(request, ResolvedParams):
                raise ArgumentError(f"{name}: needs the ids of a vocabulary; use Pair.resolved(sampling)")
        biases = [dict(request.logit_bias or ()) for request in params]
        budgets = [request.thinking_token_budget for request in params]
        thinking = [getattr(request, "thinking_ids", None) or (PADDING, PADDING) for request in params]
        penalties = {
            name.removesuffix("_penalty"): [float(getattr(request, name)) for request in params] for name in PENALTIES
        }
        rows: dict[str, list] = {
            **penalties,
            "bias_ids": [list(bias) for bias in biases],
            "bias": [list(bias.values()) for bias in biases],
            "restricted": [request.allowed_token_ids is not None for request in params],
            "allowed": [_bits(request.allowed_token_ids or ()) for request in params],
            "bad_words": [[ids[::-1] for ids in getattr(request, "bad_word_ids", ())] for request in params],
            "min_tokens": [request.min_tokens for request in params],
            "ending_ids": [list(getattr(request, "ending_ids", ())) for request in params],
            "thinking_budget": [-1 if budget is None else budget for budget in budgets],
            "thinking_start": [start for start, _ in thinking],
            "thinking_end": [end for _, end in thinking],
        }
        kinds = {PENALISE if name in PENALTIES else name for request in params for name in request.shaping}
        tensors = {name: _tensor(rows[name], name, device) for name in _OFF}
        return Shaping(**tensors, kinds=frozenset(kinds))

    @staticmethod
    def off(rows: int, device: torch.device) -> Shaping:
        """Returns rows without parameters."""
        shapes = dict.fromkeys(_COLUMNS, (0,)) | {"bad_words": (0, 1)}
        tensors = {
            name: torch.full((rows, *shapes.get(name, ())), off, dtype=dtype, device=device)
            for name, (dtype, off) in _OFF.items()
        }
        return Shaping(**tensors, kinds=frozenset())

    @property
    def layout(self) -> tuple[object, ...]:
        """The key of steps captured with these parameters; other rows of the same layout can take their place."""
        return (tuple(sorted(self.kinds)), *(getattr(self, name).shape[1:] for name in _OFF))

    def select(self, rows: Int64[Tensor, " m"] | slice) -> Shaping:
        """Returns the given rows, repeats allowed; those of a slice in the same memory."""
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in _OFF})

    def put(self, rows: Int64[Tensor, " m"], other: Shaping) -> Shaping:
        """Replaces the given rows by the other's, in the same memory unless the other's have more columns."""
        shapes = self._common(other)
        parts = {name: _widened(getattr(self, name), shape, _OFF[name][1]) for name, shape in shapes.items()}
        for name, part in parts.items():
            part[rows] = _widened(getattr(other, name), shapes[name], _OFF[name][1])
        return Shaping(**parts, kinds=self.kinds | other.kinds)

    def joined(self, other: Shaping) -> Shaping:
        """Returns these rows, then the other's."""
        parts = {}
        for name, shape in self._common(other).items():
            parts[name] = torch.cat([_widened(getattr(rows, name), shape, _OFF[name][1]) for rows in (self, other)])
        return Shaping(**parts, kinds=self.kinds | other.kinds)

    def _common(self, other: Shaping) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each part that fits both."""
        pairs = {name: (getattr(self, name).shape[1:], getattr(other, name).shape[1:]) for name in _OFF}
        return {name: tuple(max(sizes) for sizes in zip(*shapes, strict=True)) for name, shapes in pairs.items()}


def _tensor(rows: list, name: str, device: torch.device | str) -> Tensor:
    """Returns a tensor of numbers, or of lists or lists of lists extended to equal lengths."""
    dtype, off = _OFF[name]
    if name in _COLUMNS:
        rows = _even(rows, off)
    elif name == "bad_words":
        longest, most = max((len(ids) for row in rows for ids in row), default=1), max(map(len, rows))
        nothing = [off] * longest
        rows = _even([[[*ids, *nothing][:longest] for ids in row] for row in rows], nothing)
        return to_tensor(rows, device, dtype).view(len(rows), most, longest)
    return to_tensor(rows, device, dtype)


def _even(rows: list[list], off: object) -> list[list]:
    longest = max(map(len, rows))
    return [[*row, *[off] * (longest - len(row))] for row in rows]


def _bits(ids: Sequence[int]) -> list[int]:
    """Returns words of 32 bits in which the bit of each id is set, as signed numbers."""
    words = [0] * (max(ids) // BITS + 1 if ids else 0)
    for token in ids:
        words[token // BITS] |= 1 << token % BITS
    return [word - (1 << BITS) if word >> BITS - 1 else word for word in words]


def _widened(part: Tensor, shape: tuple[int, ...], value: float | int) -> Tensor:
    """Returns the part itself, or with more columns of a value."""
    if part.shape[1:] == shape:
        return part
    wide = part.new_full((len(part), *shape), value)
    wide[tuple(slice(size) for size in part.shape)] = part
    return wide
