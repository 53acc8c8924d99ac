"""Logits that behave like a language model's, made on the device from a seed, and drafts that were sampled from them.

Each draft row is s times V independent exponential variables. Their order statistics fall as log(V / rank), so the
probabilities follow Zipf's law with exponent s / temperature, with the noise of a sample, over tokens in random order;
s is drawn for each row from [1.0, 2.2], which makes some rows nearly certain and leaves others open. At temperature
0.8 and V = 128,256 the mean entropy is 1.8 nats, the likeliest token has 0.58 of the mass, and 0.9 of it lies on a
handful of tokens. The target's row is the draft's with normal noise of standard deviation 0.8 added to every logit:
the overlap is then 0.76, the range in which pairs of one family lie at the positions that matter. The acceptance of
the very tokens that were drafted is reported beside each time, since the work depends on it.

Rows are rounded to the case's dtype before anything is sampled, as a model's logits are. If the sampler penalises or
bans tokens, it does so for target and draft alike, by made-up texts and the drafted tokens before a place. Their ids
are drawn by Zipf's law, the probability of id k near (k + 1)^-1.15, so that a low id is a frequent token, as in a
vocabulary of merges. Of 1,024 tokens from a vocabulary of 128,256 about 465 are different ones.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from specbench.benchmark.grid import CaseSpec
from specbench.core.machine.provenance import request_seed
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.sampling import History, RowParams, SamplingParams, logit_rows, resolve, sample, shape, tally
from specbench.sampling.shaped import shaped
from specbench.sampling.shaping import RESTRICT, Shaping

SHARPNESS = (1.0, 2.2)
NOISE = 0.8
POSITIONS = 8192  # a case's requests stand somewhere below
_AT_ONCE = 256  # rows whose dense float64 probabilities are held side by side
_EXPONENT = 1.15  # of the ids of texts
_PIECE = 4  # characters of a made-up token


@dataclass(frozen=True)
class Case:
    """One step of a batch, as it stands when the target's logits have been computed.

    Types that remember what they computed (Draft, LogitRows, Streams) are made anew by :meth:`inputs`, so that no call
    profits from an earlier one; the tensors of a few bytes a request in them are the same at each call, as a serving
    engine holds them.

    Attributes:
        target_logits: raw ones; on a GPU a call penalises and bans in them, as a decoding step does, so that
            :meth:`restore` goes before each call.
        target_cutoff: -inf, for samplers that do not truncate.
        draft_rows: what the tokens were drawn from, with normalisers.
        history: what precedes each row of the target; None for samplers that neither penalise nor ban.
        raw_logits: a copy of the target's; None without a history.
    """

    spec: CaseSpec
    target_logits: Shaped[Tensor, "m V"]
    target_params: RowParams
    target_cutoff: Float[Tensor, " m"]
    token_ids: Int64[Tensor, " n"]
    draft_rows: LogitRows
    num_draft_tokens: Int64[Tensor, " B"]
    seeds: Int64[Tensor, " B"]
    positions: Int64[Tensor, " B"]
    history: History | None = None
    raw_logits: Shaped[Tensor, "m V"] | None = None

    def target(self, masks: bool = False) -> LogitRows:
        """Returns the rows of the target's raw logits: with cutoffs if the sampler truncates, else without normaliser.

        This work is part of the time.

        Args:
            masks: whether the reader of the rows applies ``LogitRows.allowed``.
        """
        if self.target_params.truncates:
            return logit_rows(self.target_logits, self.target_params, self.history, in_place=True)
        logits, allowed = shape(self.target_logits, self.target_params, self.history, in_place=True, masks=masks)
        return LogitRows(logits, self.target_params.temperature, self.target_cutoff, None, allowed)

    def restore(self) -> None:
        """Makes the target's logits raw again after a call. This work is not part of the time."""
        if self.raw_logits is not None:
            self.target_logits.copy_(self.raw_logits)

    def left(self) -> Shaped[Tensor, "m V"]:
        """The target's logits as a call on a GPU left them, with -inf where a mask beside them bans a token."""
        history, shaping = self.history, self.target_params.shaping
        if history is None or shaping is None or RESTRICT not in shaping.kinds:
            return self.target_logits
        return _shaped(self.target_logits, dataclasses.replace(shaping, kinds=frozenset({RESTRICT})), history)

    @cached_property
    def shaped_before(self) -> Case:
        """The same step with nothing left to penalise or ban: the plain twin has done it. A verifier emits the same
        tokens, so that what its call takes less is the time of penalties and bans."""
        history, shaping = self.history, self.target_params.shaping
        if self.raw_logits is None or history is None or shaping is None:
            return self
        logits = _shaped(self.raw_logits, shaping, history)
        params = dataclasses.replace(self.target_params, shaping=None)
        return dataclasses.replace(self, target_logits=logits, target_params=params, history=None, raw_logits=None)

    @cached_property
    def target_with_cutoffs(self) -> LogitRows:
        """As :meth:`target`, but made once: for verifiers whose times leave the search for the cutoff out."""
        return self.target()

    def inputs(self, cutoffs_known: bool = False, masks: bool = False) -> tuple[Draft, LogitRows, Streams]:
        """Returns a verifier's arguments, made anew; the draft's normalisers are known since its tokens were drawn.

        Args:
            cutoffs_known: whether the target's rows come with cutoffs that were found before.
            masks: whether the verifier takes masks.
        """
        rows = dataclasses.replace(self.draft_rows) if self.spec.draft_probabilities else None
        gamma = self.spec.gamma
        draft = Draft(self.token_ids, rows, self.num_draft_tokens, gamma)
        target = self.target(masks) if not cutoffs_known else self.target_with_cutoffs
        return draft, target, Streams(self.seeds, self.positions, gamma + 1)


def _shaped(logits: Shaped[Tensor, "m V"], shaping: Shaping, history: History) -> Shaped[Tensor, "m V"]:
    """Returns the rows after the plain twin, which takes a few at a time."""
    made = torch.empty_like(logits)
    for rows in torch.arange(len(logits), device=logits.device).split(_AT_ONCE):
        of_rows = dataclasses.replace(history, request=history.request[rows], offset=history.offset[rows])
        made[rows] = shaped(logits[rows], shaping.select(of_rows.request), of_rows)
    return made


def pair_of_logits(
    rows: int, bonus_rows: int, spec: CaseSpec, generator: torch.Generator
) -> tuple[Shaped[Tensor, "n V"], Shaped[Tensor, "m V"]]:
    """The draft's logits [rows, V] and the target's [rows + bonus_rows, V], those of each request together."""
    device, dtype = generator.device, getattr(torch, spec.dtype)
    total = rows + bonus_rows
    sharpness = torch.empty(total, 1, device=device).uniform_(*SHARPNESS, generator=generator)
    logits = torch.empty(total, spec.vocabulary, device=device).exponential_(generator=generator) * sharpness
    bonus = torch.arange(total, device=device) % (spec.gamma + 1) == spec.gamma
    draft = logits[~bonus].to(dtype)
    logits += NOISE * torch.empty_like(logits).normal_(generator=generator)
    return draft, logits.to(dtype)


def some_history(spec: CaseSpec, generator: torch.Generator) -> History:
    """What precedes each place of a step whose drafts are still to come: texts of ``spec.context`` tokens, the first
    half of each its prompt."""
    batch, gamma, context, vocabulary = spec.batch_size, spec.gamma, spec.context, spec.vocabulary
    device = generator.device
    u = torch.rand((batch, context), dtype=torch.float64, generator=generator, device=device)
    flat = 1 - _EXPONENT  # the inverse of the distribution function of a density that falls as x^-1.15 from 1 on
    texts = (1 - u * (1 - vocabulary**flat)) ** (1 / flat)
    texts = texts.long().clamp(1, vocabulary) - 1
    room = torch.zeros((batch, gamma + 1), dtype=torch.int64, device=device)  # for what the step emits
    return History(
        texts=torch.cat([texts, room], dim=1),
        prompt_lengths=torch.full((batch,), context // 2, device=device),
        text_lengths=torch.full((batch,), context, device=device),
        drafted=torch.zeros((batch, gamma), dtype=torch.int64, device=device),
        request=torch.arange(batch, device=device).repeat_interleave(gamma + 1),
        offset=torch.arange(gamma + 1, device=device).repeat(batch),
    )


def resolved(sampling: SamplingParams, vocabulary: int) -> SamplingParams:
    """The parameters in made-up ids, if they need any: every four characters are a token, the last two ids end
    texts, and the first two begin and end thinking.

    Raises:
        ConfigError: an id beyond the vocabulary.
    """
    stops = range(vocabulary - 2, vocabulary)
    return resolve(sampling, lambda text: encode(text, vocabulary), stops, vocabulary, thinking_ids=(0, 1))


def encode(text: str, vocabulary: int) -> tuple[int, ...]:
    """Made-up ids of a text, always the same."""
    pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    return tuple(zlib.crc32(piece.encode()) % vocabulary for piece in pieces)


def make_case(spec: CaseSpec, seed: int, number: int, device: torch.device) -> Case:
    """A case's logits and draft; the same for the same seed, number and kind of device.

    Args:
        number: tells several cases of one spec apart.

    Raises:
        ConfigError: a sampling parameter names an id beyond the vocabulary.
    """
    name = f"{spec.batch_size}/{spec.vocabulary}/{spec.gamma}/{spec.dtype}/{spec.sampler}/{number}"
    generator = torch.Generator(device).manual_seed(request_seed(seed, name))
    batch, gamma = spec.batch_size, spec.gamma
    draft_logits, target_logits = pair_of_logits(batch * gamma, batch, spec, generator)
    requests = torch.arange(batch, device=device)
    params = RowParams.of([resolved(spec.sampling, spec.vocabulary)], device).select(torch.zeros_like(requests))
    seeds = torch.randint(2**62, (batch,), generator=generator, device=device)
    positions = torch.randint(POSITIONS, (batch,), generator=generator, device=device)
    u = Streams(seeds, positions, gamma + 1).uniform(Stream.DRAFT)[:, :gamma]
    history = some_history(spec, generator) if params.looks_back else None
    if history is not None:  # counted as a step counts, once and before it drafts
        texts = (history.texts, history.prompt_lengths, history.text_lengths)
        history = dataclasses.replace(history, tally=tally(params, *texts, spec.vocabulary))

    def draft_rows(request: Int64[Tensor, " n"], offset: Int64[Tensor, " n"]) -> LogitRows:
        before = None if history is None else dataclasses.replace(history, request=request, offset=offset)
        return logit_rows(draft_logits[request * gamma + offset], params.repeated(request), before, in_place=True)

    token_ids = torch.zeros_like(u, dtype=torch.int64)
    for i in range(gamma):  # one place after the other, since a drafted token counts behind itself
        rows = draft_rows(requests, torch.full_like(requests, i))
        token_ids[:, i] = sample_rows(rows, u[:, i]) if spec.draft_probabilities else rows.argmax
        if history is not None:
            history.drafted[:, i] = token_ids[:, i]
    rows = draft_rows(requests.repeat_interleave(gamma), torch.arange(gamma, device=device).repeat(batch))
    target_params = params.repeated(requests.repeat_interleave(gamma + 1))
    return Case(
        spec=spec,
        target_logits=target_logits,
        target_params=target_params,
        target_cutoff=torch.full_like(target_params.temperature, -torch.inf),
        token_ids=token_ids.flatten(),
        draft_rows=dataclasses.replace(rows, log_normalizer=rows.normalizer),
        num_draft_tokens=torch.full((batch,), gamma, device=device),
        seeds=seeds,
        positions=positions,
        history=history,
        raw_logits=None if history is None else target_logits.clone(),
    )


def sample_rows(rows: LogitRows, u: Float[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """:func:`specbench.sampling.sample`, a few rows at a time, so that the dense rows fit in memory."""
    chunks = torch.arange(len(rows), device=u.device).split(_AT_ONCE)
    return torch.cat([u.new_zeros(0, dtype=torch.int64), *(sample(rows.select(chunk), u[chunk]) for chunk in chunks)])
