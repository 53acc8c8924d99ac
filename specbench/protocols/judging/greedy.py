"""T = 0: are speculative texts the plain ones? Texts both ways, and the plain ones again in another batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from specbench.core.errors import OutageError, SpecbenchError
from specbench.core.machine.progress import say
from specbench.core.sampling_params import TOKEN_RULES, SamplingParams
from specbench.decoding import logits_along, rows_along
from specbench.exactness.two_sample.forks import (
    BY_CHECKPOINT,
    CHUNKING,
    ITSELF,
    MARGIN,
    NO_IDS,
    NO_ROUNDING,
    UNKNOWN,
    EngineFork,
    least_margin,
    parting,
    per_thousand,
)
from specbench.exactness.two_sample.pairs import words_of
from specbench.metrics.findings import OF_GREEDY as QUESTION
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_REFUTED, REFUTED, Finding, not_asked
from specbench.protocols.judging.sampler import JudgedPrompt, Sampler
from specbench.protocols.judging.text_scorer import TextScorer
from specbench.sources import Mode, TextCompletion, TextRequest
from specbench.sources.file import GREEDY

FORKS = "judge_forks.parquet"
SPECULATIVE, AGAIN = "speculative", "plain again"
EXAMINED = 12  # forks that are asked about again


def judge_greedy(
    sampler: Sampler, prompts: Sequence[JudgedPrompt], length: int, checkpoint: TextScorer | None = None
) -> tuple[Finding, dict[Mode, list[TextCompletion]]]:
    """The finding, and the plain and speculative texts, [] where there are none.

    Args:
        checkpoint: scores forks whose cause the engine does not show.
    """
    greedy = dataclasses.replace(sampler.sampling, temperature=0.0)
    scored = dataclasses.replace(greedy, logprobs=1) if sampler.supports("logprobs") else greedy
    if not length:
        return not_asked(QUESTION, "protocol.greedy_length is 0."), {}
    if not prompts:
        return not_asked(QUESTION, "The source has no texts at temperature 0."), {}

    def texts(mode: Mode, parameters: SamplingParams) -> list[TextCompletion]:
        requests = [sampler.request(prompt, 0, length, sampling=parameters) for prompt in prompts]
        return sampler.complete(requests, mode, GREEDY)

    try:
        try:
            plain = texts(Mode.PLAIN, scored)
        except SpecbenchError as error:
            if isinstance(error, OutageError) or scored == greedy:
                raise
            say(f"{sampler.source.engine} is judged at temperature 0 without log-probabilities: {error}")
            plain = texts(Mode.PLAIN, greedy)
        speculative = texts(Mode.SPECULATIVE, greedy)
    except OutageError:
        raise
    except SpecbenchError as error:
        if getattr(sampler.source, "recorded", False):  # its prompts have such texts, sampled otherwise than the run
            raise
        return not_asked(QUESTION, f"The source has no such texts ({error})."), {}
    again = _again(sampler, prompts, length, greedy)
    itself = [_fork(AGAIN, *pair) for pair in zip(plain, again, strict=False)]
    forks = [_fork(SPECULATIVE, *pair) for pair in zip(plain, speculative, strict=True)]
    margins = None if checkpoint is None else Margins(checkpoint, plain)
    for i in [i for i, fork in enumerate(forks) if fork.position is not None][:EXAMINED]:
        if itself and itself[i].position == forks[i].position:
            forks[i] = dataclasses.replace(forks[i], cause=ITSELF)
        else:
            forks[i] = _examined(forks[i], sampler, plain[i], speculative[i], margins)
    other_characters = [
        prompt.name
        for i, prompt in enumerate(prompts)
        if _other_characters(plain[i], speculative[i]) and not (again and _other_characters(plain[i], again[i]))
    ]
    return _finding(forks, itself, other_characters), {Mode.PLAIN: plain, Mode.SPECULATIVE: speculative}


def _again(
    sampler: Sampler, prompts: Sequence[JudgedPrompt], length: int, greedy: SamplingParams
) -> list[TextCompletion]:
    """The plain texts one by one, the last prompt first; [] where they cannot be had."""
    try:
        requests = [sampler.request(prompt, 0, length, sampling=greedy) for prompt in reversed(prompts)]
        return [sampler.complete([request], Mode.PLAIN, "greedy, again")[0] for request in requests][::-1]
    except OutageError:
        raise
    except SpecbenchError:
        return []


def _other_characters(one: TextCompletion, other: TextCompletion) -> bool:
    """Whether texts of the same tokens have other characters, as where refused tokens leave some behind."""
    same = bool(one.token_ids) and one.token_ids == other.token_ids
    return same and bool(one.text) and bool(other.text) and one.text != other.text  # a file may have ids alone


def _fork(way: str, one: TextCompletion, other: TextCompletion) -> EngineFork:
    """Where two texts part, by words if one has no token ids. Its cause is not examined yet."""
    name, margin = one.request.prompt_id, None
    if one.token_ids is None or other.token_ids is None:
        units = words_of(one.text)
        place = parting(units, words_of(other.text))
    else:
        units = one.token_ids
        place = parting(units, other.token_ids)
        margin = None if place is None else least_margin(one.logprobs, place)
    if place is None:
        return EngineFork(name, way, len(units))
    return EngineFork(name, way, place + 1, place + 1, margin, UNKNOWN)


def _examined(
    fork: EngineFork, sampler: Sampler, one: TextCompletion, other: TextCompletion, margins: Margins | None
) -> EngineFork:
    """The fork with its cause, which the engine's log-probabilities or another request show, or else the checkpoint."""
    if fork.least_margin is not None and fork.least_margin > MARGIN:
        return dataclasses.replace(fork, cause=NO_ROUNDING)
    if one.token_ids is None or other.token_ids is None:
        return dataclasses.replace(fork, cause=NO_IDS)
    place, cause = fork.tokens - 1, UNKNOWN
    # Tokens after the limit are no matter of rounding; the check of limits refutes them.
    if place < min(len(other.token_ids), other.request.max_new_tokens) and not _counts_continuation(sampler.sampling):
        cause = _next_token(sampler, one.request, other.token_ids[: place + 1])
    if cause != CHUNKING and margins is not None and place < min(len(one.token_ids), len(other.token_ids)):
        lead = margins.lead(one, place, other)
        if lead > MARGIN:
            return dataclasses.replace(fork, least_margin=lead, cause=BY_CHECKPOINT)
    return dataclasses.replace(fork, cause=cause)


class Margins:
    """By how much the checkpoint prefers the plain engine's token where a speculative text parts.

    Args:
        plain: the plain engine's greedy texts, with token ids.
    """

    def __init__(self, checkpoint: TextScorer, plain: Sequence[TextCompletion]):
        self._checkpoint, self._plain = checkpoint, plain

    @cached_property
    def _behind(self) -> float:
        """The most nats that a token of the plain texts is behind the checkpoint's argmax."""
        return max((float(self._lost(text).max()) for text in self._plain if text.token_ids), default=0.0)

    def lead(self, text: TextCompletion, place: int, other: TextCompletion) -> float:
        """Nats by which a token of a plain text leads that of another text, less the most that any plain token is
        behind the checkpoint's argmax: by so much the engine's arithmetic is another.

        Raises:
            ConfigError: an id that the checkpoint does not have.
        """
        logits = self._logits(text)[place]
        ids, other_ids = (self._checkpoint.token_ids_of(completion)[1] for completion in (text, other))
        return float(logits[ids[place]] - logits[other_ids[place]]) - self._behind

    def _lost(self, text: TextCompletion) -> Float[Tensor, " n"]:
        logits = self._logits(text)
        tokens = torch.tensor(text.token_ids, device=logits.device)
        return logits.amax(dim=-1) - logits.gather(1, tokens[:, None])[:, 0]

    @torch.inference_mode()
    def _logits(self, text: TextCompletion) -> Float[Tensor, "n V"]:
        """The logits that a greedy text's tokens are chosen by, with penalties, biases and bans."""
        prompt, _ = self._checkpoint.token_ids_of(text)
        ids = list(text.token_ids or ())
        (logits,) = logits_along(self._checkpoint.models[0], [prompt], [ids])
        return rows_along(logits, self._checkpoint.sampling, prompt, ids).with_mask_applied().logits.float()


def _counts_continuation(sampling: SamplingParams) -> bool:
    """Whether tokens of the text count otherwise than those of a prompt, as in penalties. Read as a prompt, the same
    tokens then have other successors, and a draft whose own tokens went uncounted would pass for rounding."""
    return bool(sampling.processors) or any(name not in TOKEN_RULES for name in sampling.shaping)


def _next_token(sampler: Sampler, request: TextRequest, text: Sequence[int]) -> str:
    """CHUNKING if the plain engine, given the prompt and all but the last token of ``text``, goes on with the last.

    They are sent as token ids: the same text may be other tokens, after which another token is no rounding.
    """
    greedy = dataclasses.replace(sampler.sampling, temperature=0.0)
    try:
        ids = sampler.encode(request.prompt)
        if ids is None:
            return NO_IDS
        before = (*(request.token_ids or ids), *text[:-1])
        fork = JudgedPrompt(f"{request.prompt_id}, to its fork", request.prompt, before)
        (following,) = sampler.complete(
            [sampler.request(fork, 0, 1, sampling=greedy)], Mode.PLAIN, "fork, the next token"
        )
    except OutageError:
        raise
    except SpecbenchError:
        return UNKNOWN
    return CHUNKING if (following.token_ids or ())[:1] == (text[-1],) else UNKNOWN  # it may overrun the limit of 1


def _finding(forks: list[EngineFork], itself: list[EngineFork], other_characters: Sequence[str]) -> Finding:
    """What follows.

    Args:
        forks: of speculative texts from plain ones, a line a prompt.
        itself: of plain texts from themselves; [] if the engine has them once.
        other_characters: prompts whose speculative text has the tokens of the plain one and other characters.
    """
    parted = [fork for fork in forks if fork.position is not None]
    certain = [fork for fork in parted if fork.cause in (NO_ROUNDING, BY_CHECKPOINT)]
    shown = [fork for fork in parted if fork.cause in (ITSELF, CHUNKING)]
    rate, high = per_thousand(forks)
    plain_rate = per_thousand(itself)[0] if itself else None
    power = f"A rate above {high:.1f} forks a thousand tokens would have shown more (99%, over texts)."
    beside = "" if plain_rate is None else f", and plain texts from themselves in another batch {plain_rate:.1f}"
    answer = f"Speculative texts part from plain ones {rate:.1f} times a thousand tokens ({len(parted)} texts){beside}"
    verdict = CANNOT_TELL
    if not parted:
        verdict, answer = NOT_REFUTED, f"Yes: all {len(forks)} texts are the same."
    elif certain:
        verdict = REFUTED
        most = max(fork.least_margin or 0.0 for fork in certain)
        answer = f"No: {answer}; at {len(certain)} forks the plain token leads by up to {most:.1f} nats or more."
    elif len(shown) == len(parted):
        verdict, answer = NOT_REFUTED, f"{answer}; rounding is shown to be the reason at every fork."
    else:
        answer = (
            f"{answer}; rounding is shown at {len(shown)} of {len(parted)} forks, and at the others cannot be told."
        )
    if other_characters:
        rest = "" if not parted else f" {answer[0].upper()}{answer[1:]}"
        verdict, answer = (
            REFUTED,
            f"No: {len(other_characters)} speculative texts have the tokens of the plain ones and other characters "
            f"(the first of prompt {other_characters[0]!r}).{rest}",
        )
    numbers = {"forks_per_thousand": rate, "forks_per_thousand_high": high, "plain_forks_per_thousand": plain_rate}
    rows = [fork for both in zip(itself, forks, strict=True) for fork in both] if itself else forks
    return Finding(question=QUESTION, verdict=verdict, answer=answer, power=power, numbers=numbers, rows={FORKS: rows})
