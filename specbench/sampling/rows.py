"""logits and sampling parameters -> LogitRows: the cutoff and the normaliser of each row.

Processors come first, then penalties, biases and bans (shaped.py), then temperature, top-k, top-p on what top-k left,
min-p. min-p compares with the largest probability, which no truncation removes, so its place in the order does not
matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.masked_rows import MaskedRows
from specbench.core.sampling_params import NUMBERS, SamplingParams
from specbench.core.types import LogitRows
from specbench.sampling import where
from specbench.sampling.history import History, Processor, host_processors
from specbench.sampling.shaped import shaped
from specbench.sampling.shaping import PENALISE, THINK, Shaping

Chain = tuple[Processor, ...]


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters of n rows as tensors.

    Attributes:
        truncates: whether any of them truncates, so that none pays for a sort if not.
        chains: the processors, and the rows that they are for; None stands for all rows. Empty for most.
        shaping: penalties, biases and bans, a row each or, after :meth:`repeated`, a row a request; None where nobody
            ever asked for any.
    """

    temperature: Float64[Tensor, " n"]
    top_k: Int64[Tensor, " n"]
    top_p: Float64[Tensor, " n"]
    min_p: Float64[Tensor, " n"]
    truncates: bool
    chains: tuple[tuple[Chain, Bool[Tensor, " n"] | None], ...] = ()
    shaping: Shaping | None = None

    @property
    def looks_back(self) -> bool:
        """Whether a distribution depends on what precedes its position."""
        return bool(self.chains) or self.shapes

    @property
    def shapes(self) -> bool:
        """Whether penalties, biases or bans change any row's logits."""
        return self.shaping is not None and bool(self.shaping.asked)

    @property
    def on_host(self) -> str:
        """The processors that work on the host, by name; empty for none."""
        return host_processors(each for chain, _ in self.chains for each in chain)

    @staticmethod
    def of(params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> RowParams:
        """One row a request."""
        asked = [tuple(each.processors) for each in params]
        chains = [chain for chain in dict.fromkeys(asked) if chain]
        rows = [torch.tensor([each == chain for each in asked], device=device) for chain in chains]
        return RowParams(
            temperature=torch.tensor([p.temperature for p in params], dtype=torch.float64, device=device),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64, device=device),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device),
            truncates=any(p.truncates for p in params),
            chains=tuple(zip(chains, [None] if len(set(asked)) == 1 else rows, strict=False)),
            shaping=Shaping.of(params, device),
        )

    def select(self, rows: Int64[Tensor, " m"]) -> RowParams:
        """The parameters of the given rows, repeats allowed."""
        chains = tuple((chain, None if its is None else its[rows]) for chain, its in self.chains)
        shaping = None if self.shaping is None else self.shaping.select(rows)
        parts = (getattr(self, name)[rows] for name in NUMBERS)
        return RowParams(*parts, truncates=self.truncates, chains=chains, shaping=shaping)

    def repeated(self, request: Int64[Tensor, " m"]) -> RowParams:
        """The parameters of rows of these requests, for :func:`logit_rows` with a history that says the same of them.

        What shapes logits stays a row a request, since copying it would take longer than what it does.
        """
        plain = dataclasses.replace(self, shaping=None).select(request)
        return dataclasses.replace(plain, shaping=self.shaping)

    def leading(self, n: int) -> RowParams:
        """The first n rows, in the same memory."""
        chains = tuple((chain, None if its is None else its[:n]) for chain, its in self.chains)
        parts = (getattr(self, name)[:n] for name in NUMBERS)
        shaping = None if self.shaping is None else self.shaping.leading(n)
        return RowParams(*parts, truncates=self.truncates, chains=chains, shaping=shaping)

    def put(self, rows: Int64[Tensor, " m"], other: RowParams) -> RowParams:
        """These rows with the other's in some places, in the same memory; what chains of these there were stay."""
        for name in NUMBERS:
            getattr(self, name)[rows] = getattr(other, name)
        chains = dict.fromkeys(chain for each in (self, other) for chain, _ in each.chains)
        kept = tuple((chain, self._rows_of(chain)) for chain in chains)
        for chain, its in kept:
            its[rows] = other._rows_of(chain)
        shaping = None
        if self.shaping is not None or other.shaping is not None:
            shaping = self._shaping.put(rows, other._shaping)
        truncates = self.truncates or other.truncates
        return dataclasses.replace(self, truncates=truncates, chains=kept, shaping=shaping)

    def joined(self, other: RowParams) -> RowParams:
        """These rows, then the other's."""
        parts = (torch.cat([getattr(each, name) for each in (self, other)]) for name in NUMBERS)
        all_chains = dict.fromkeys(chain for each in (self, other) for chain, _ in each.chains)
        chains = tuple((chain, torch.cat([self._rows_of(chain), other._rows_of(chain)])) for chain in all_chains)
        shaping = None
        if self.shaping is not None or other.shaping is not None:
            shaping = self._shaping.joined(other._shaping)
        return RowParams(*parts, truncates=self.truncates or other.truncates, chains=chains, shaping=shaping)

    def ended(self) -> RowParams:
        """The same rows, in the same memory, once all their requests have ended: nothing is done for any of them."""
        for _, rows in self.chains:
            if rows is not None:
                rows.fill_(False)
        shaping = None if self.shaping is None else dataclasses.replace(self.shaping, asked=frozenset())
        return dataclasses.replace(self, truncates=False, shaping=shaping)

    @property
    def _shaping(self) -> Shaping:
        return Shaping.off(len(self.top_k), self.top_k.device) if self.shaping is None else self.shaping

    def _rows_of(self, wanted: Chain) -> Bool[Tensor, " n"]:
        for chain, rows in self.chains:
            if chain == wanted:
                return torch.ones_like(self.top_k, dtype=torch.bool) if rows is None else rows
        return torch.zeros_like(self.top_k, dtype=torch.bool)


def logit_rows(
    logits: Shaped[Tensor, "n V"], params: RowParams, history: History | None = None, in_place: bool = False
) -> LogitRows:
    """The distributions that sampling with ``params`` from ``logits`` means: the one door from logits to probabilities.

    Args:
        logits: bf16, fp16 or fp32.
        params: one row of parameters a row of logits.
        history: what precedes each row; needed where ``params.looks_back``.
        in_place: whether the logits may be changed, as a decoding step allows, so that a GPU touches only the tokens
            that penalties, biases and bans concern; else they are copied where any are asked for.

    Returns:
        LogitRows that refer to ``logits``, or to what the parameters made of them. Where nothing truncates,
        log_normalizer is None: who needs it computes it, and a fused verifier needs it of few rows. Otherwise it is
        known, and not finite for a row with NaN or +inf logits (LogitRows.finite); raising here would wait for the
        device. A GPU finds the cutoffs without a sort.

    Raises:
        ArgumentError: not as many rows of parameters as of logits; processors, penalties or bans without a history; a
            processor that returned something else than logits.
    """
    if len(params.temperature) != len(logits):
        raise ArgumentError(
            f"params: {len(params.temperature)} rows for {len(logits)} rows of logits; RowParams.select repeats those "
            "of a request for each of its rows"
        )
    logits = _processed(logits, params, history)
    if not params.truncates:
        cutoff = logits.new_full((len(logits),), -math.inf, dtype=torch.float64)
        return whole_rows(logits, params, cutoff, history, in_place)
    logits = shape(logits, params, history, in_place)
    if where.by_kernels(logits):
        from specbench.kernels import launch_rows

        found = launch_rows.find_cutoffs(logits, params.temperature, params.top_k, params.top_p, params.min_p)
    else:
        found = sorted_cutoffs(logits, params)
    return LogitRows(logits, params.temperature, *found)


def _processed(logits: Shaped[Tensor, "n V"], params: RowParams, history: History | None) -> Shaped[Tensor, "n V"]:
    for chain, rows in params.chains:
        if history is None:
            raise ArgumentError(f"history: None; {type(chain[0]).__name__} needs to know what precedes each position")
        changed = logits
        for processor in chain:
            changed = _checked(processor, changed, processor(changed, history))
        logits = changed if rows is None else torch.where(rows[:, None], changed, logits)
    return logits


def whole_rows(
    logits: Shaped[Tensor, "n V"],
    params: RowParams,
    cutoff: Float[Tensor, " n"],
    history: History | None = None,
    in_place: bool = False,
) -> LogitRows:
    """:func:`logit_rows` where nothing truncates and no processor is left: ``cutoff`` is -inf.

    Where kernels may change the logits, allowed_token_ids stay a mask beside them, and the rest is done by the
    verifier's launch, or when somebody asks for the logits (masked_rows.py).
    """
    asked = frozenset() if params.shaping is None else params.shaping.asked
    if history is None or not in_place or not asked or THINK in asked or not where.by_kernels(logits):
        return LogitRows(shape(logits, params, history, in_place), params.temperature, cutoff, None)
    from specbench.kernels import launch_shape

    beside = launch_shape.beside(logits, params.shaping, history)
    return MaskedRows(logits, params.temperature, cutoff, None, *beside)


def shape(
    logits: Shaped[Tensor, "n V"], params: RowParams, history: History | None, in_place: bool = False
) -> Shaped[Tensor, "n V"]:
    """The logits after penalties, biases and bans: themselves, if ``params`` ask for none; see :func:`logit_rows`."""
    if params.shaping is None or not params.shapes:
        return logits
    if history is None:
        asked = ", ".join(sorted(params.shaping.asked))
        raise ArgumentError(f"history: None; {asked} needs to know what precedes each position")
    if not where.by_kernels(logits):
        a_row_each = len(params.shaping.presence) == len(logits)
        return shaped(logits, params.shaping if a_row_each else params.shaping.select(history.request), history)
    from specbench.kernels import launch_shape

    return launch_shape.shape(logits if in_place else logits.clone(), params.shaping, history)


def tally(
    params: RowParams,
    texts: Int64[Tensor, "B capacity"],
    prompt_lengths: Int64[Tensor, " B"],
    text_lengths: Int64[Tensor, " B"],
    vocabulary: int,
) -> Any:
    """The tokens of texts, counted for all rows of a step at once, if kernels will penalise them; else None.

    Args:
        params: a row a text.
    """
    shaping = params.shaping
    if shaping is None or PENALISE not in shaping.asked or not where.by_kernels(texts):
        return None
    from specbench.kernels import launch_tally

    return launch_tally.tally(texts, prompt_lengths, text_lengths, shaping.bias_ids, vocabulary)


def _checked(processor: Processor, given: Tensor, made: object) -> Tensor:
    name = type(processor).__name__
    if not isinstance(made, Tensor):
        raise ArgumentError(f"{name} returned {type(made).__name__}; logits needed")
    if made.shape != given.shape or made.dtype != given.dtype or made.device != given.device:
        raise ArgumentError(
            f"{name} returned {made.dtype} {tuple(made.shape)} on {made.device}; it was given {given.dtype} "
            f"{tuple(given.shape)} on {given.device}"
        )
    return made


def sorted_cutoffs(
    logits: Shaped[Tensor, "n V"], params: RowParams
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Cutoff and log_normalizer of each row by sorting: the reference of kernels/cutoff.py."""
    temperature = torch.where(params.temperature > 0, params.temperature, 1.0)
    scaled = logits.double() / temperature[:, None]
    cutoff = torch.where(params.temperature > 0, _cutoff(logits, scaled, params), -math.inf)
    kept = torch.where(logits.double() >= cutoff[:, None], scaled, -math.inf)
    # A NaN logit fails the comparison above; the full row's normaliser keeps it visible.
    return cutoff, torch.logsumexp(kept, dim=-1) + 0.0 * torch.logsumexp(scaled, dim=-1)


def _cutoff(logits: Shaped[Tensor, "n V"], scaled: Float64[Tensor, "n V"], params: RowParams) -> Float[Tensor, " n"]:
    """The lowest logit that survives top-k, top-p and min-p; computed by sorting, as the reference."""
    vocabulary = logits.shape[-1]
    order = scaled.argsort(dim=-1, descending=True, stable=True)
    ordered, ordered_logits = scaled.gather(-1, order), logits.double().gather(-1, order)
    k = torch.where(params.top_k > 0, params.top_k, vocabulary).clamp(max=vocabulary)
    smallest_of_k = ordered_logits.gather(-1, k[:, None] - 1)
    survivors = ordered.masked_fill(ordered_logits < smallest_of_k, -math.inf)
    probs = survivors.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    # top_p = 1 keeps all: the sum before the last token may reach 1 by rounding.
    in_nucleus = (before < params.top_p[:, None]) | (params.top_p[:, None] >= 1)
    likely_enough = ordered >= ordered[:, :1] + params.min_p.log()[:, None]
    keep = in_nucleus & likely_enough & (survivors > -math.inf)
    keep[:, 0] = True
    return ordered_logits.masked_fill(~keep, math.inf).amin(dim=-1)
