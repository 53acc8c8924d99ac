"""From logits and sampling parameters to LogitRows, with the cutoff and the normaliser of each row.

The order is: processors, then penalties, biases and bans (shaped.py), then temperature, then top-k, then top-p of the
tokens that top-k keeps, then min-p. min-p compares with the largest probability, which no truncation removes, so that
its place in the order does not matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.fusion import fusible
from specbench.core.machine.devices import to_tensor
from specbench.core.mask import Mask
from specbench.core.sampling_params import NUMBERS, SamplingParams
from specbench.core.types import LogitRows
from specbench.sampling import where
from specbench.sampling.history import History, TextCounts
from specbench.sampling.processors import Chain, apply_processors, host_processors
from specbench.sampling.shaped import shaped
from specbench.sampling.shaping import PENALISE, RESTRICT, THINK, Shaping


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters of n rows as tensors.

    Attributes:
        temperature, top_k, top_p, min_p: as in SamplingParams.
        truncates: whether any row truncates; if none does, no cutoffs are searched.
        chains: processors with the rows that they change; None stands for all rows. Empty for most batches.
        shaping: penalties, biases and bans, one row each or, after :meth:`repeated`, one row a request; None if no
            request has ever had any.
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
        """Whether a distribution depends on the tokens before its position."""
        return bool(self.chains) or self.shapes

    @property
    def shapes(self) -> bool:
        """Whether penalties, biases or bans change any row's logits."""
        return self.shaping is not None and bool(self.shaping.kinds)

    @property
    def on_host(self) -> str:
        """The names of the processors that work on the host; empty for none."""
        return host_processors(processor for chain, _ in self.chains for processor in chain)

    @staticmethod
    def of(params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> RowParams:
        """Returns one row a request. Raises ConfigError for a truncation whose cutoffs no kernel finds, on a GPU."""
        further = {name: value for request in params for name, value in request.further_truncations.items()}
        if further and where.by_kernels(torch.empty(0, device=device)):
            name, value = next(iter(further.items()))
            remedy = "Use device=cpu, or let kernels/cutoff.py find them."
            raise ConfigError(f"sampler.{name}", value, "no kernel finds its cutoffs on a GPU", remedy)
        of_request = [tuple(request.processors) for request in params]
        chains = [chain for chain in dict.fromkeys(of_request) if chain]
        rows = [to_tensor([other == chain for other in of_request], device, torch.bool) for chain in chains]
        return RowParams(
            temperature=to_tensor([p.temperature for p in params], device, torch.float64),
            top_k=to_tensor([p.top_k for p in params], device),
            top_p=to_tensor([p.top_p for p in params], device, torch.float64),
            min_p=to_tensor([p.min_p for p in params], device, torch.float64),
            truncates=any(p.truncates for p in params),
            chains=tuple(zip(chains, [None] if len(set(of_request)) == 1 else rows, strict=False)),
            shaping=Shaping.of(params, device),
        )

    def select(self, rows: Int64[Tensor, " m"] | slice) -> RowParams:
        """Returns the parameters of the given rows, repeats allowed; those of a slice in the same memory."""
        chains = tuple((chain, None if of_chain is None else of_chain[rows]) for chain, of_chain in self.chains)
        shaping = None if self.shaping is None else self.shaping.select(rows)
        parts = (getattr(self, name)[rows] for name in NUMBERS)
        return RowParams(*parts, truncates=self.truncates, chains=chains, shaping=shaping)

    def repeated(self, request: Int64[Tensor, " m"]) -> RowParams:
        """Returns the parameters of rows of the given requests, for :func:`logit_rows` with a history of those rows.

        ``shaping`` keeps one row a request, because to copy it would take longer than to apply it.
        """
        plain = dataclasses.replace(self, shaping=None).select(request)
        return dataclasses.replace(plain, shaping=self.shaping)

    def put(self, rows: Int64[Tensor, " m"], other: RowParams) -> RowParams:
        """Replaces the given rows by the other's, in the same memory; chains of these rows stay."""
        for name in NUMBERS:
            getattr(self, name)[rows] = getattr(other, name)
        chains = dict.fromkeys(chain for params in (self, other) for chain, _ in params.chains)
        joined_chains = tuple((chain, self._rows_of(chain)) for chain in chains)
        for chain, of_chain in joined_chains:
            of_chain[rows] = other._rows_of(chain)
        shaping = None
        if self.shaping is not None or other.shaping is not None:
            shaping = self._shaping.put(rows, other._shaping)
        truncates = self.truncates or other.truncates
        return dataclasses.replace(self, truncates=truncates, chains=joined_chains, shaping=shaping)

    def joined(self, other: RowParams) -> RowParams:
        """Returns these rows, then the other's."""
        parts = (torch.cat([getattr(rows, name) for rows in (self, other)]) for name in NUMBERS)
        all_chains = dict.fromkeys(chain for rows in (self, other) for chain, _ in rows.chains)
        chains = tuple((chain, torch.cat([self._rows_of(chain), other._rows_of(chain)])) for chain in all_chains)
        shaping = None
        if self.shaping is not None or other.shaping is not None:
            shaping = self._shaping.joined(other._shaping)
        return RowParams(*parts, truncates=self.truncates or other.truncates, chains=chains, shaping=shaping)

    def ended(self) -> RowParams:
        """Returns the same rows, in the same memory, without any parameter, after all their requests have ended."""
        for _, rows in self.chains:
            if rows is not None:
                rows.fill_(False)
        shaping = None if self.shaping is None else dataclasses.replace(self.shaping, kinds=frozenset())
        return dataclasses.replace(self, truncates=False, shaping=shaping)

    @property
    def _shaping(self) -> Shaping:
        return Shaping.off(len(self.top_k), self.top_k.device) if self.shaping is None else self.shaping

    def _rows_of(self, chain_of_rows: Chain) -> Bool[Tensor, " n"]:
        for chain, rows in self.chains:
            if chain == chain_of_rows:
                return torch.ones_like(self.top_k, dtype=torch.bool) if rows is None else rows
        return torch.zeros_like(self.top_k, dtype=torch.bool)


def logit_rows(
    logits: Shaped[Tensor, "n V"],
    params: RowParams,
    history: History | None = None,
    in_place: bool = False,
    masks: bool = False,
    log_normalizer: Float64[Tensor, " n"] | None = None,
    width: int = 1,
) -> LogitRows:
    """Returns the distributions that tokens are sampled from: the one door from logits to probabilities.

    Args:
        logits: bf16, fp16 or fp32.
        params: one row of parameters a row of logits, or, if they do not look back, every ``width`` rows of logits.
        history: the tokens before each row; required if ``params.looks_back``.
        in_place: whether penalties, biases and bans may change ``logits``, as in a decoding step, so that a GPU writes
            only the tokens that they concern; if not, the logits are copied first.
        masks: whether every reader of the rows applies ``LogitRows.allowed``. A GPU then keeps ``allowed_token_ids``
            there as a bit mask, if nothing truncates; if not, it writes -inf over the banned tokens.
        log_normalizer: of each row if it is known already and nothing truncates; unused otherwise.
        width: rows of logits, one after another, for each row of ``params``.

    Returns:
        Rows that refer to ``logits``, or to the logits that the parameters made of them. If nothing truncates,
        log_normalizer is the one given; where it is None, readers that need it compute it, and a fused verifier needs
        it of few rows. Otherwise it is known, and not finite for a row with NaN or +inf logits (LogitRows.finite); to
        raise here would wait for the device. A GPU finds the cutoffs without a sort.

    Raises:
        ArgumentError: not the same number of rows of parameters and of logits; processors, penalties or bans without a
            history; a processor that does not return logits.
    """
    if width * len(params.temperature) != len(logits):
        raise ArgumentError(
            f"params: {len(params.temperature)} rows for {len(logits)} rows of logits; RowParams.select repeats those "
            "of a request for each of its rows"
        )
    logits = apply_processors(logits, params.chains, history)
    logits, allowed = shape(logits, params, history, in_place, masks and not params.truncates)
    if not params.truncates:
        return LogitRows(logits, *_uncut(params.temperature, width), log_normalizer, allowed)
    if width > 1:
        numbers = (_spread(getattr(params, name), width) for name in NUMBERS)
        params = RowParams(*numbers, truncates=True)
    if where.by_kernels(logits):
        from specbench.kernels import launch_rows

        cutoffs = launch_rows.find_cutoffs(logits, params.temperature, params.top_k, params.top_p, params.min_p)
    else:
        cutoffs = sorted_cutoffs(logits, params)
    return LogitRows(logits, params.temperature, *cutoffs)


@fusible
def _uncut(temperature: Float64[Tensor, " B"], width: int) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Returns the temperatures of rows that keep all tokens, and their cutoffs: -inf, by a kernel that reads something.

    One that does not could not start early (extras/compiled/early_code.py).
    """
    spread = _spread(temperature, width)
    return spread, spread - math.inf


def _spread(numbers: Shaped[Tensor, " B"], width: int) -> Shaped[Tensor, " n"]:
    """Returns every number ``width`` times, one after another."""
    if width == 1:
        return numbers
    return numbers.expand(width).contiguous() if len(numbers) == 1 else numbers.repeat_interleave(width)


def shape(
    logits: Shaped[Tensor, "n V"],
    params: RowParams,
    history: History | None,
    in_place: bool = False,
    masks: bool = False,
) -> tuple[Shaped[Tensor, "n V"], Mask | None]:
    """Returns the logits after penalties, biases and bans, and the mask that their readers have to apply.

    The arguments are those of :func:`logit_rows`. Logits that no parameter changes are returned themselves.
    """
    if params.shaping is None or not params.shapes:
        return logits, None
    shaping = params.shaping
    if history is None:
        names = ", ".join(sorted(shaping.kinds))
        raise ArgumentError(f"history: None; {names} needs to know what precedes each position")
    if not where.by_kernels(logits):
        a_row_each = len(shaping.presence) == len(logits)
        return shaped(logits, shaping if a_row_each else shaping.select(history.request), history), None
    from specbench.sampling import launches

    mask = None
    # The end of a thinking budget forces a token that a mask may ban.
    if masks and RESTRICT in shaping.kinds and THINK not in shaping.kinds:
        mask = launches.mask_of(shaping, len(logits))
        shaping = dataclasses.replace(shaping, kinds=shaping.kinds - {RESTRICT})
    if shaping.kinds:
        logits = logits if in_place else logits.clone()
        launches.shape_in_place(logits, shaping, history)
    return logits, mask


def tally(
    params: RowParams,
    texts: Int64[Tensor, "B capacity"],
    prompt_lengths: Int64[Tensor, " B"],
    text_lengths: Int64[Tensor, " B"],
    vocabulary: int,
) -> TextCounts | None:
    """Returns the counts of the texts' tokens for all rows of a step, if kernels will penalise them; else None.

    Args:
        params: one row a text.
    """
    shaping = params.shaping
    if shaping is None or PENALISE not in shaping.kinds or not where.by_kernels(texts):
        return None
    from specbench.sampling import launches

    return launches.count_tokens(texts, prompt_lengths, text_lengths, shaping, vocabulary)


def sorted_cutoffs(
    logits: Shaped[Tensor, "n V"], params: RowParams
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Returns cutoff and log_normalizer of each row by sorting: the plain twin of kernels/cutoff.py."""
    temperature = torch.where(params.temperature > 0, params.temperature, 1.0)
    scaled = logits.double() / temperature[:, None]
    cutoff = torch.where(params.temperature > 0, _cutoff(logits, scaled, params), -math.inf)
    kept = torch.where(logits.double() >= cutoff[:, None], scaled, -math.inf)
    # A NaN logit fails the comparison above; the full row's normaliser keeps it visible.
    return cutoff, torch.logsumexp(kept, dim=-1) + 0.0 * torch.logsumexp(scaled, dim=-1)


def _cutoff(logits: Shaped[Tensor, "n V"], scaled: Float64[Tensor, "n V"], params: RowParams) -> Float[Tensor, " n"]:
    """Returns the lowest logit of each row that top-k, top-p and min-p keep."""
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
