"""The parameters that change logits, as tensors with a row a request; what they do is in shaped.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int32, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.sampling_params import PENALTIES, SamplingParams
from specbench.core.types import PADDING
from specbench.sampling.resolved import ResolvedParams

PENALISE, BIAS, RESTRICT, FORBID, DELAY = "penalties", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"
THINK = "thinking_token_budget"
BITS = 32
_COLUMNS = ("bias_ids", "bias", "allowed", "ending_ids")  # as many as the row that needs most
_OFF: dict[str, tuple[torch.dtype, float | int]] = {  # of a row that does not ask, and of columns beyond its last
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
        presence, frequency, repetition: the penalties.
        bias_ids, bias: ids, each once in a row, and what is added to their logits; -1 behind a row's last.
        restricted: whether only some ids are allowed.
        allowed: which, a bit each: id 32 * i + j is bit j of word i. Ids beyond the words are not allowed.
        bad_words: sequences of ids, each from its end: [.., 0] may not come if [.., 1], [.., 2], ... are the tokens
            one, two, ... before it in the continuation; -1 behind a sequence's first token, and for no sequence.
        min_tokens: tokens of the continuation before which none of ``ending_ids`` may come.
        ending_ids: -1 behind a row's last.
        thinking_budget: tokens between ``thinking_start`` and ``thinking_end``, at most; -1 is no limit.
        thinking_start, thinking_end: the ids that begin and end thinking; -1 for none.
        asked: which of PENALISE, BIAS, RESTRICT, FORBID, DELAY, THINK any row has asked for; nothing is done for the
            others.
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
    asked: frozenset[str]

    @staticmethod
    def of(params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> Shaping | None:
        """One row a request; None if nobody asks for anything.

        Raises:
            ArgumentError: what needs ids of a vocabulary, and nobody has turned into them (Pair.resolved does).
        """
        if not any(each.shaping for each in params):
            return None
        for each in params:
            name = next((name for name in (FORBID, DELAY, THINK) if name in each.shaping), None)
            if name is not None and not isinstance(each, ResolvedParams):
                raise ArgumentError(f"{name}: needs the ids of a vocabulary; use Pair.resolved(sampling)")
        biases = [dict(each.logit_bias or ()) for each in params]
        budgets = [each.thinking_token_budget for each in params]
        thinking = [getattr(each, "thinking_ids", None) or (PADDING, PADDING) for each in params]
        rows: dict[str, list] = {
            **{name.removesuffix("_penalty"): [float(getattr(each, name)) for each in params] for name in PENALTIES},
            "bias_ids": [list(each) for each in biases],
            "bias": [list(each.values()) for each in biases],
            "restricted": [each.allowed_token_ids is not None for each in params],
            "allowed": [_bits(each.allowed_token_ids or ()) for each in params],
            "bad_words": [[ids[::-1] for ids in getattr(each, "bad_word_ids", ())] for each in params],
            "min_tokens": [each.min_tokens for each in params],
            "ending_ids": [list(getattr(each, "ending_ids", ())) for each in params],
            "thinking_budget": [-1 if each is None else each for each in budgets],
            "thinking_start": [start for start, _ in thinking],
            "thinking_end": [end for _, end in thinking],
        }
        asked = {PENALISE if name in PENALTIES else name for each in params for name in each.shaping}
        made = {name: _tensor(rows[name], name, device) for name in _OFF}
        return Shaping(**made, asked=frozenset(asked))

    @staticmethod
    def off(rows: int, device: torch.device) -> Shaping:
        """Rows that ask for nothing."""
        shapes = dict.fromkeys(_COLUMNS, (0,)) | {"bad_words": (0, 1)}
        made = {
            name: torch.full((rows, *shapes.get(name, ())), off, dtype=dtype, device=device)
            for name, (dtype, off) in _OFF.items()
        }
        return Shaping(**made, asked=frozenset())

    @property
    def layout(self) -> tuple[object, ...]:
        """What a step that was captured for these parameters goes by; other rows of the same layout replace them."""
        return (tuple(sorted(self.asked)), *(getattr(self, name).shape[1:] for name in _OFF))

    def select(self, rows: Int64[Tensor, " m"]) -> Shaping:
        """The given rows, repeats allowed."""
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in _OFF})

    def leading(self, n: int) -> Shaping:
        """The first n rows, in the same memory."""
        return dataclasses.replace(self, **{name: getattr(self, name)[:n] for name in _OFF})

    def put(self, rows: Int64[Tensor, " m"], other: Shaping) -> Shaping:
        """These rows with the other's in some places: in the same memory, unless the other's have more columns."""
        shapes = self._common(other)
        parts = {name: _widened(getattr(self, name), shape, _OFF[name][1]) for name, shape in shapes.items()}
        for name, part in parts.items():
            part[rows] = _widened(getattr(other, name), shapes[name], _OFF[name][1])
        return Shaping(**parts, asked=self.asked | other.asked)

    def joined(self, other: Shaping) -> Shaping:
        """These rows, then the other's."""
        parts = {}
        for name, shape in self._common(other).items():
            parts[name] = torch.cat([_widened(getattr(each, name), shape, _OFF[name][1]) for each in (self, other)])
        return Shaping(**parts, asked=self.asked | other.asked)

    def _common(self, other: Shaping) -> dict[str, tuple[int, ...]]:
        """The columns of each part that hold both."""
        pairs = {name: (getattr(self, name).shape[1:], getattr(other, name).shape[1:]) for name in _OFF}
        return {name: tuple(max(sizes) for sizes in zip(*shapes, strict=True)) for name, shapes in pairs.items()}


def _tensor(rows: list, name: str, device: torch.device | str) -> Tensor:
    """Numbers of each row, or lists of them, or lists of lists, made as long as the longest."""
    dtype, off = _OFF[name]
    if name in _COLUMNS:
        rows = _even(rows, off)
    elif name == "bad_words":
        longest, most = max((len(ids) for row in rows for ids in row), default=1), max(map(len, rows))
        nothing = [off] * longest
        rows = _even([[[*ids, *nothing][:longest] for ids in row] for row in rows], nothing)
        return torch.tensor(rows, dtype=dtype, device=device).view(len(rows), most, longest)
    return torch.tensor(rows, dtype=dtype, device=device)


def _even(rows: list[list], off: object) -> list[list]:
    longest = max(map(len, rows))
    return [[*row, *[off] * (longest - len(row))] for row in rows]


def _bits(ids: Sequence[int]) -> list[int]:
    """Words of 32 bits, in which the bit of each id is set, as signed numbers."""
    words = [0] * (max(ids) // BITS + 1 if ids else 0)
    for token in ids:
        words[token // BITS] |= 1 << token % BITS
    return [word - (1 << BITS) if word >> BITS - 1 else word for word in words]


def _widened(part: Tensor, shape: tuple[int, ...], value: float | int) -> Tensor:
    """The part itself, or with more columns of a value."""
    if part.shape[1:] == shape:
        return part
    wide = part.new_full((len(part), *shape), value)
    wide[tuple(slice(size) for size in part.shape)] = part
    return wide
