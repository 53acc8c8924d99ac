"""T = 0: are speculative texts the plain ones? Texts both ways, and the plain ones again in another batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specbench.core.errors import OutageError, SpecbenchError
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
from specbench.sources import Mode, TextCompletion
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
    try:
        plain = _plain(sampler, prompts, length, scored, greedy)
        requests = [sampler.request(p, 0, length, sampling=greedy) for p in prompts]
        speculative = sampler.complete(requests, Mode.SPECULATIVE, GREEDY)
    except OutageError:
        raise
    except SpecbenchError as error:
        return not_asked(QUESTION, f"The source has no such texts ({error})."), {}
    again = _again(sampler, prompts, length, greedy)
    margins: Margins | None = None
    forks, other_characters = [], []
    for prompt, one, other, repeated in zip(prompts, plain, speculative, again or [None] * len(plain), strict=True):
        place = None
        if repeated is not None:
            place = parting(*_units(one, repeated))
            forks.append(_fork(prompt, AGAIN, one, repeated, place))
        if _other_characters(one, other) and not (repeated is not None and _other_characters(one, repeated)):
            other_characters.append(prompt.name)
        fork = _fork(prompt, SPECULATIVE, one, other, parting(*_units(one, other)))
        examined = sum(fork.way == SPECULATIVE and fork.position is not None for fork in forks)
        if fork.position is not None and examined < EXAMINED:
            fork = dataclasses.replace(fork, cause=_cause(sampler, prompt, one, other, fork, place))
            if fork.cause in (UNKNOWN, NO_IDS) and checkpoint is not None:
                margins = margins or Margins(checkpoint, plain)
                fork = _scored(margins, one, other, fork)
        forks.append(fork)
    return _finding(forks, other_characters), {Mode.PLAIN: plain, Mode.SPECULATIVE: speculative}


def _plain(
    sampler: Sampler, prompts: Sequence[JudgedPrompt], length: int, scored: SamplingParams, greedy: SamplingParams
) -> list[TextCompletion]:
    """The plain texts, without log-probabilities if the engine refuses these."""
    try:
        return sampler.complete([sampler.request(p, 0, length, sampling=scored) for p in prompts], Mode.PLAIN, GREEDY)
    except OutageError:
        raise
    except SpecbenchError:
        if scored == greedy:
            raise
    return sampler.complete([sampler.request(p, 0, length, sampling=greedy) for p in prompts], Mode.PLAIN, GREEDY)


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


def _units(
    one: TextCompletion, other: TextCompletion
) -> tuple[Sequence[int] | Sequence[str], Sequence[int] | Sequence[str]]:
    if one.token_ids is None or other.token_ids is None:
        return words_of(one.text), words_of(other.text)
    return one.token_ids, other.token_ids


def _other_characters(one: TextCompletion, other: TextCompletion) -> bool:
    """Whether texts of the same tokens have other characters, as where refused tokens leave some behind."""
    same = bool(one.token_ids) and one.token_ids == other.token_ids
    return same and bool(one.text) and bool(other.text) and one.text != other.text  # a file may have ids alone


def _fork(prompt: JudgedPrompt, way: str, one: TextCompletion, other: TextCompletion, place: int | None) -> EngineFork:
    if place is None:
        return EngineFork(prompt.name, way, len(_units(one, other)[0]))
    margin = least_margin(one.logprobs, place) if one.token_ids is not None and other.token_ids is not None else None
    return EngineFork(prompt.name, way, place + 1, place + 1, margin, UNKNOWN)


def _cause(
    sampler: Sampler,
    prompt: JudgedPrompt,
    one: TextCompletion,
    other: TextCompletion,
    fork: EngineFork,
    itself: int | None,
) -> str:
    place = (fork.position or 1) - 1
    if itself == place:
        return ITSELF
    if fork.least_margin is not None and fork.least_margin > MARGIN:
        return NO_ROUNDING
    if one.token_ids is None or other.token_ids is None or place >= len(other.token_ids):
        return UNKNOWN if one.token_ids is not None and other.token_ids is not None else NO_IDS
    if _counts_continuation(sampler.sampling):
        return UNKNOWN
    return _next_token(sampler, prompt, other.token_ids[: place + 1])


def _scored(margins: Margins, one: TextCompletion, other: TextCompletion, fork: EngineFork) -> EngineFork:
    place = (fork.position or 1) - 1
    if one.token_ids is None or other.token_ids is None or place >= min(len(one.token_ids), len(other.token_ids)):
        return fork
    lead = margins.lead(one, place, other)
    return dataclasses.replace(fork, least_margin=lead, cause=BY_CHECKPOINT) if lead > MARGIN else fork


class Margins:
    """By how much the checkpoint prefers the plain engine's token where a speculative text parts.

    Args:
        plain: the plain engine's greedy texts, with token ids.
    """

    def __init__(self, checkpoint: TextScorer, plain: Sequence[TextCompletion]):
        self._checkpoint = checkpoint
        self._behind = max((float(self._lost(text).max()) for text in plain if text.token_ids), default=0.0)

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


def _next_token(sampler: Sampler, prompt: JudgedPrompt, text: Sequence[int]) -> str:
    """CHUNKING if the plain engine, given the prompt and all but the last token of ``text``, goes on with the last.

    They are sent as token ids: the same text may be other tokens, after which another token is no rounding.
    """
    greedy = dataclasses.replace(sampler.sampling, temperature=0.0)
    try:
        ids = sampler.encode(prompt.text)
        if ids is None:
            return NO_IDS
        before = (*(prompt.token_ids or ids), *text[:-1])
        fork = JudgedPrompt(f"{prompt.name}, to its fork", prompt.text, before)
        request = sampler.request(fork, 0, 1, sampling=greedy)
        (following,) = sampler.complete([request], Mode.PLAIN, "fork, the next token")
    except OutageError:
        raise
    except SpecbenchError:
        return UNKNOWN
    return CHUNKING if following.token_ids == (text[-1],) else UNKNOWN


def _finding(forks: list[EngineFork], other_characters: Sequence[str]) -> Finding:
    """What follows.

    Args:
        other_characters: prompts whose speculative text has the tokens of the plain one and other characters.
    """
    ways = {way: [fork for fork in forks if fork.way == way] for way in (SPECULATIVE, AGAIN)}
    parted = [fork for fork in ways[SPECULATIVE] if fork.position is not None]
    certain = [fork for fork in parted if fork.cause in (NO_ROUNDING, BY_CHECKPOINT)]
    shown = [fork for fork in parted if fork.cause in (ITSELF, CHUNKING)]
    rate, high = per_thousand(ways[SPECULATIVE])
    plain_rate = per_thousand(ways[AGAIN])[0] if ways[AGAIN] else None
    power = f"A rate above {high:.1f} forks a thousand tokens would have shown more (99%, over texts)."
    beside = "" if plain_rate is None else f", and plain texts from themselves in another batch {plain_rate:.1f}"
    answer = f"Speculative texts part from plain ones {rate:.1f} times a thousand tokens ({len(parted)} texts){beside}"
    verdict = CANNOT_TELL
    if not parted:
        verdict, answer = NOT_REFUTED, f"Yes: all {len(ways[SPECULATIVE])} texts are the same."
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
    return Finding(question=QUESTION, verdict=verdict, answer=answer, power=power, numbers=numbers, rows={FORKS: forks})
