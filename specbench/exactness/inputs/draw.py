"""One call of ``verify``, drawn from D: the same for the same seed and number, whatever was drawn before."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from specbench.core.machine.devices import DTYPES
from specbench.core.mask import Mask
from specbench.core.rng import MAX_POSITION, MAX_SEED, Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.exactness import guard
from specbench.exactness.fixtures.table import first_above
from specbench.exactness.inputs import rows as made
from specbench.exactness.inputs.call import EVERYTHING, Call, Takes
from specbench.exactness.inputs.distribution import CHOICES, Stratum, choices_of, drawn_from, drawn_stratum, log_uniform
from specbench.exactness.streams import END_POSITIONS, END_SEEDS, uniforms

MOST_CELLS = 2**24  # logits of the target in a call; larger ones get fewer requests
MASKS_EVERY = 3  # calls, of which one hands over bans as a mask, to verifiers that take masks
WRITTEN = 100_000  # seeds and positions that users write are at most this
_CALL_CHOICES, _REQUEST_CHOICES = (
    [name for name, choice in CHOICES.items() if choice.per == per] for per in ("call", "request")
)


def draw_call(
    seed: int, number: int, device: torch.device, takes: Takes = EVERYTHING, stratum: Stratum | None = None
) -> Call:
    """Draws a call from D.

    Args:
        seed: of a certificate's inputs, 0 to 2^63 - 1.
        stratum: to draw from; None draws one by its probability.

    Raises:
        ArgumentError, VerifierFault: of ``takes.draft_tokens``.
    """
    return _Drawing(seed, number, device, takes, stratum).call()


class _Drawing:
    """The choices of one call. What can be computed on the host is, so that a GPU gets few small launches and copies.

    Attributes:
        owner, scored: the request of each row of the draft and of the target.
    """

    def __init__(self, seed: int, number: int, device: torch.device, takes: Takes, stratum: Stratum | None):
        rng = choices_of(seed, number)
        stratum = stratum or drawn_stratum(rng)
        self.seed, self.number, self.rng, self.device = seed, number, rng, device
        self.name = f"call {number} of D, seed {seed}"
        self.takes, self.stratum = takes, stratum
        seed_of_tensors = int(rng.integers(2**62))
        self.generator = self.host = torch.Generator(device).manual_seed(seed_of_tensors)
        if device.type != "cpu":
            self.host = torch.Generator().manual_seed(seed_of_tensors)
        self.options: dict[str, Any] = {name: CHOICES[name].draw(rng, 1)[0] for name in _CALL_CHOICES}
        if stratum.dtype is not None:
            self.options |= {"dtype": stratum.dtype, "draft dtype": "same"}
        if not takes.padded:
            self.options["padding"] = "none"
        self.vocabulary = self._vocabulary()
        counts = drawn_from(stratum.gamma, rng, int(drawn_from(stratum.batch, rng, 1)[0]))
        if not takes.ragged:
            counts[:] = counts[0]
        if not takes.empty:
            counts = counts.clip(min=1)
        self.counts = self._fitting(counts)
        self.batch = len(self.counts)
        requests = np.arange(self.batch)
        self.owner, self.scored = requests.repeat(self.counts), requests.repeat(self.counts + 1)
        self.options |= {name: CHOICES[name].draw(rng, self.batch) for name in _REQUEST_CHOICES}
        if stratum.recorded:
            self.options["rows"] = ["recorded"] * self.batch
        self.gamma = int(self.counts.max()) + (int(rng.integers(1, 9)) if self.options["spare"] == "some" else 0)
        self.padded = self.options["padding"] == "padded"

    def _vocabulary(self) -> int:
        low, high = self.stratum.vocabulary
        size = int(log_uniform(self.rng, low, high + 1, 1)[0])
        form = self.options["vocabulary"]
        unit = {"multiple of 1024": 1024, "multiple of 64": 64}.get(form, 1)
        rounded = size // unit * unit if form != "odd" else size | 1
        return rounded if low <= rounded <= high else min(max(size, low), high)

    def _fitting(self, counts: np.ndarray) -> np.ndarray:
        """As many of the requests as fit; one in any case."""
        owned = np.full(len(counts), counts.max() + 9) if self.options["padding"] == "padded" else counts + 1
        fits = int((np.cumsum(owned) * self.vocabulary <= MOST_CELLS).sum())
        return counts[: max(1, fits)]

    def call(self) -> Call:
        """Makes the tensors."""
        p_logits, q_logits = self._logits()
        unmasked = p_logits.clone() if self.takes.masks and self.number % MASKS_EVERY == 0 else None
        kept = self._mask(p_logits, q_logits)
        streams = self._streams()
        parameters = self._parameters()
        target, p = self._rows(p_logits, self.scored, parameters, "temperature", self.options["dtype"])
        own_dtype = self.options["draft dtype"]
        draft_dtype = self.options["dtype"] if own_dtype == "same" else own_dtype
        q_rows, q = self._rows(q_logits, self.owner, parameters, "draft temperature", draft_dtype)
        tokens, stated = self._draft_tokens(q_rows, q, streams)
        if parameters["truncated"].any():
            self.options["normaliser"] = "both known"
        known = self.options["normaliser"]
        if known != "both known":
            target = dataclasses.replace(target, log_normalizer=None)
        if stated is None and known == "both unknown":
            stated = dataclasses.replace(q_rows, log_normalizer=None)
        q_rows = q_rows if stated is None else stated
        if unmasked is not None and kept:
            target = dataclasses.replace(target, logits=unmasked.to(target.logits.dtype), allowed=self._allowed(kept))
        sampled = self.options["drafts"] == "sampled"
        draft = Draft(tokens, q_rows if sampled else None, self._tensor(self.counts), self.gamma)
        if self.padded:
            draft, target = made.with_padding(draft, target)
            draft, target = self._draft_laid_out(draft), self._laid_out(target)
        else:
            target, draft = self._laid_out(target), self._draft_laid_out(draft)
        drawn = self.seed, self.number, self.stratum, self.options
        return Call(self.name, draft, target, streams, *drawn, p, q if sampled else None)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def _each(self, name: str, numbers: dict[str, Callable[[int], np.ndarray]]) -> np.ndarray:
        """A number a request, by the option that it has of a choice."""
        options, out = np.array(self.options[name]), np.zeros(self.batch)
        for option, draw in numbers.items():
            own = options == option
            out[own] = draw(int(own.sum()))
        return out

    def _logits(self) -> tuple[Tensor, Tensor]:
        """Logits of target and draft in float32, one row after another without padding."""
        drafted: Tensor | slice = slice(0, -1)  # a request's last row is its bonus row
        if self.batch > 1:
            drafted = self._tensor(np.delete(np.arange(len(self.scored)), (self.counts + 1).cumsum() - 1))
        if self.stratum.recorded:
            p, q = made.recorded(len(self.scored), self.host, self.device)
            q = q[drafted]
        else:
            kinds = [self.options["rows"][b] for b in self.scored.tolist()]
            p, noise = made.logits(kinds, self.vocabulary, self.generator, self.host, self.device)
            q = self._draft_logits(p[drafted], noise[drafted])
            tied = np.array(self.options["rows"]) == "near-tied"
            for rows, request in ((p, self.scored), (q, self.owner)):
                for own in self._of(tied[request]):
                    rows[own] = (rows[own] * 2).round_().div_(2)
        shift = self._each(
            "shift",
            {"some": lambda n: self.rng.uniform(-60, 60, n), "far": lambda n: self.rng.choice([-900.0, 900.0], n)},
        )
        if shift.any():
            p, q = (rows + self._column(shift[request]) for rows, request in ((p, self.scored), (q, self.owner)))
        return p, q

    def _of(self, chosen: np.ndarray) -> Iterator[slice | Tensor]:
        """An index of the chosen rows: of all without a copy; none if there are none."""
        if chosen.all() and len(chosen):
            yield slice(None)
        elif chosen.any():
            yield self._tensor(np.flatnonzero(chosen))

    def _column(self, values: np.ndarray) -> Float32[Tensor, "n 1"]:
        return self._tensor(values.astype(np.float32)[:, None])

    def _draft_logits(self, like: Tensor, noise: Tensor) -> Tensor:
        close = self._each("draft rows", {"close": lambda n: log_uniform(self.rng, 0.02, 1.5, n)})
        unrelated = np.array(self.options["draft rows"]) == "unrelated"
        noise = noise.mul_(self._column(np.where(unrelated, 2.0, close)[self.owner]))
        return noise.addcmul_(like, self._column(~unrelated[self.owner]))

    def _mask(self, p: Tensor, q: Tensor) -> dict[int, Bool[Tensor, " V"]]:
        """Puts -inf in place, at least one token of every row left; the same tokens in all rows of a request.

        Returns:
            The tokens that are left, by request with a mask.
        """
        masks = {}
        for b, kind in enumerate(self.options["mask"]):
            if kind == "none":
                continue
            if kind == "half":
                share = float(self.rng.random())
                kept = torch.rand(self.vocabulary, generator=self.generator, device=self.device) < share
            else:
                count = 1 if kind == "one" else int(self.rng.integers(2, 21))
                ids = self._tensor(self.rng.integers(self.vocabulary, size=count))
                kept = torch.zeros(self.vocabulary, dtype=torch.bool, device=self.device)
                kept[ids] = True
            kept[int(self.rng.integers(self.vocabulary))] |= ~kept.any()
            masks[b] = kept
            banned, both = ~kept, self.options["masked"][b] == "both"
            for rows, request in ((p, self.scored), (q, self.owner)) if both else ((p, self.scored),):
                first, end = np.searchsorted(request, (b, b + 1))
                rows[first:end].masked_fill_(banned, -math.inf)
        return masks

    def _allowed(self, kept: dict[int, Bool[Tensor, " V"]]) -> Mask:
        """The tokens that are left, as bits: a set for each row, or for each request if all draft as many tokens."""
        allowed = torch.zeros(self.batch, self.vocabulary, dtype=torch.bool, device=self.device)
        for b, tokens in kept.items():
            allowed[b] = tokens
        mask = Mask.packed(self._tensor(np.isin(np.arange(self.batch), list(kept))), allowed)
        if (self.counts == self.counts[0]).all():
            return dataclasses.replace(mask, rows=int(self.counts[0]) + 1)
        return mask.select(self._tensor(self.scored))

    def _streams(self) -> Streams:
        drawn = []
        for name, most, ends in (("seed", MAX_SEED, END_SEEDS), ("position", MAX_POSITION, END_POSITIONS)):
            options = np.array(self.options[name])
            written = log_uniform(self.rng, 1, WRITTEN + 2, self.batch).astype(np.int64) - 1
            numbers = np.where(options == "written", written, self.rng.integers(0, most, self.batch, endpoint=True))
            end = options == "end"
            numbers[end] = self.rng.choice(np.array(ends), int(end.sum()))
            drawn.append(torch.as_tensor(numbers))
        streams = Streams(drawn[0], drawn[1], self.gamma + 1)
        if self.device.type == "cpu":
            return streams
        seeds, positions = torch.stack(drawn).to(self.device)  # its uniforms would be 160 launches there
        return Streams(seeds, positions, streams.width, uniforms(streams).to(self.device))

    def _parameters(self) -> dict[str, np.ndarray]:
        """Sampling parameters of each request, and whether these truncate."""
        if (sampling := self.stratum.sampling) is not None:
            names = ("temperature", "top_k", "top_p", "min_p")
            parameters = {name: np.full(self.batch, getattr(sampling, name)) for name in names}
            parameters["draft temperature"] = parameters["temperature"]
            replaced = ("temperature", "draft temperature", "truncation")
            self.options |= {name: ["as configured"] * self.batch for name in replaced}
        else:
            parameters = self._drawn_parameters()
        truncated = (parameters["top_k"] > 0) | (parameters["top_p"] < 1) | (parameters["min_p"] > 0)
        return parameters | {"truncated": truncated}

    def _drawn_parameters(self) -> dict[str, np.ndarray]:
        def usual(count: int) -> np.ndarray:
            return log_uniform(self.rng, 0.05, 5, count)

        temperature = self._each("temperature", {"1": np.ones, "log-uniform": usual})
        own = self._each("draft temperature", {"log-uniform": usual})
        same = np.array(self.options["draft temperature"]) == "same"
        kinds = np.array(self.options["truncation"])
        k = log_uniform(self.rng, 1, 201, self.batch).astype(np.int64)
        p, least = self.rng.uniform(0.3, 0.99, self.batch), log_uniform(self.rng, 1e-4, 0.3, self.batch)
        return {
            "temperature": temperature,
            "draft temperature": np.where(same, temperature, own),
            "top_k": np.where(np.isin(kinds, ["top-k", "top-k and top-p"]), k, 0),
            "top_p": np.where(np.isin(kinds, ["top-p", "top-k and top-p"]), p, 1.0),
            "min_p": np.where(kinds == "min-p", least, 0.0),
        }

    def _rows(
        self, logits: Tensor, request: np.ndarray, parameters: dict[str, np.ndarray], temperature: str, dtype: str
    ) -> tuple[LogitRows, Float64[Tensor, "n V"]]:
        """Rows with their normalisers, and their probabilities."""
        logits = logits.to(DTYPES[dtype])
        of_row = parameters[temperature][request].astype(np.float64)
        cutoff = torch.full((len(logits),), -math.inf, dtype=torch.float64, device=self.device)
        truncated = parameters["truncated"][request] & (of_row > 0)
        for own in self._of(truncated):
            given = [parameters[name][request][truncated] for name in ("top_k", "top_p", "min_p")]
            cutoff[own] = made.cutoffs(logits[own], *map(self._tensor, (of_row[truncated], *given)))
        rows = LogitRows(logits, self._tensor(of_row), cutoff, None)
        probs, normalizer = made.probabilities(rows, of_row, bool(truncated.any()))
        return dataclasses.replace(rows, log_normalizer=normalizer), probs

    def _draft_tokens(self, rows: LogitRows, q: Tensor, streams: Streams) -> tuple[Tensor, LogitRows | None]:
        """The draft tokens; and the rows that the verifier's own sampler says it drew them from, if it has one."""
        if not len(self.owner):
            return torch.zeros(0, dtype=torch.int64, device=self.device), None
        offset = np.arange(len(self.owner)) - (self.counts.cumsum() - self.counts)[self.owner]
        owner, offset = self._tensor(np.stack([self.owner, offset]))
        u = streams.uniform(Stream.DRAFT)[owner, offset]
        if self.options["drafts"] == "sampled" and self.takes.draft_tokens is not None:
            return guard.draft(self.takes.draft_tokens, self.name, rows, u)
        if self.options["drafts"] == "one-hot" and self.rng.random() < 0.5:
            return rows.logits.argmax(dim=1), None
        return first_above(q, u), None

    def _draft_laid_out(self, draft: Draft) -> Draft:
        return draft if draft.rows is None else dataclasses.replace(draft, rows=self._laid_out(draft.rows))

    def _laid_out(self, rows: LogitRows) -> LogitRows:
        return made.laid_out(rows, self.options["layout"], self.rng)
