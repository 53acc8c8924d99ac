"""What an engine under test is given and what it returns: the contract that every source of texts keeps."""

import math
import operator
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Protocol, runtime_checkable

from specbench.core.errors import ArgumentError
from specbench.core.sampling_params import SamplingParams

ROUNDING = 1e-6  # by which rounding may take a log-probability above 0
SAMPLED = "texts.jsonl"  # a job's file of texts, written as they come (protocols/judging/sampler.py)


class Mode(StrEnum):
    """How a source decodes: speculation off, or on."""

    PLAIN = "plain"
    SPECULATIVE = "speculative"


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A text to be sampled.

    Attributes:
        prompt_id: names the prompt; requests of one prompt share it.
        prompt: as text; sent as it is, without a chat template of ours.
        token_ids: the prompt as the target's token ids, for sources that take them; None sends the text.
        sampling: ``ignore_eos`` in it keeps texts going behind the model's own stop tokens, where the source can.
        seed: given to engines that take one.
    """

    prompt_id: str
    prompt: str
    sampling: SamplingParams
    seed: int
    max_new_tokens: int
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TextCompletion:
    """A text that a source returned.

    Attributes:
        text: without the prompt.
        token_ids: of the whole text; None if the engine does not return them all.
        finish_reason: "stop", "length", or the engine's own word; None if it does not tell.
        logprobs: natural logarithms, one for each token of the text and none for the prompt's; None if none were given.
        counters: what the engine counted for this text: "drafted", "accepted" and "steps" (verifications) where it
            has them, others under its own names.
        seconds: from sending the request to having the whole text.
    """

    request: TextRequest
    mode: Mode
    text: str
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    logprobs: tuple[float, ...] | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Makes tuples of token ids and log-probabilities: a list would differ from every tuple of the same tokens.

        Raises:
            ArgumentError: a field that holds something else, which would be noticed when all texts are there.
        """
        if not isinstance(self.text, str):
            raise ArgumentError(f"TextCompletion.text: {reprlib.repr(self.text)}; give a str")
        if not all(isinstance(count, Real) and 0 <= count < math.inf for count in self.counters.values()):
            raise ArgumentError(f"TextCompletion.counters: {reprlib.repr(dict(self.counters))}; give numbers from 0")
        for name, number in (("token_ids", operator.index), ("logprobs", float)):
            values = getattr(self, name)
            if values is not None:
                try:
                    object.__setattr__(self, name, tuple(map(number, values)))
                except (TypeError, ValueError) as error:
                    raise ArgumentError(
                        f"TextCompletion.{name}: {reprlib.repr(values)}; give a tuple of numbers"
                    ) from error
        if min(self.token_ids or (0,)) < 0:
            raise ArgumentError(f"TextCompletion.token_ids: {reprlib.repr(self.token_ids)}; give ids from 0")
        if problem := logprobs_problem(self.logprobs, self.token_ids):
            raise ArgumentError(f"TextCompletion.logprobs: the text of prompt {self.request.prompt_id!r} has {problem}")


def logprobs_problem(logprobs: Sequence[float] | None, token_ids: Sequence[int] | None) -> str | None:
    """Returns which log-probabilities do not fit a text's tokens, and what to do; None if all do.

    A token's own log-probability is read by its place: those of the prompt in front would put another token's there.
    """
    if logprobs is None:
        return None
    if token_ids is not None and len(logprobs) != len(token_ids):
        remedy = "leave the prompt's out, and give one for each token of the text"
        return f"{len(logprobs)} logprobs for {len(token_ids)} token_ids; {remedy}"
    wrong = next((value for value in logprobs if not value <= ROUNDING), None)  # NaN too
    return None if wrong is None else f"the logprob {wrong!r}; give natural logarithms of probabilities, 0 at most"


@runtime_checkable
class Source(Protocol):
    """An engine that decodes the same requests in two modes.

    A class of one's own needs these members and nothing else of specbench but the two dataclasses above.

    Attributes:
        engine: its name and version, such as "llama.cpp b7000"; the version may be known only once it has been opened.
        modes: those that it has. A file of texts may hold one alone.
        unsupported: names of sampling parameters that it cannot set. A request that has one is refused.
        takes_seeds: whether the same seed is meant to give the same text.
        method (optional): how it speculates, such as "prompt_lookup", for certificates and tables; None if unknown.
        encode (optional): a method that returns the target's token ids of a prompt, as the engine makes them itself, or
            None. A source that has it decodes requests by their ``token_ids``.
        concurrency (optional): how many requests it decodes side by side; 1 if it does not say.
        recorded (optional): whether its texts were served before, so that they answer no new request.
        prompts, pairs, greedy, longest (optional): of a source of recorded texts, its prompts by name, how many pairs
            of texts each has, the names of those with texts at temperature 0, and the tokens of its longest texts: of
            those that are compared as drawn, and of those at temperature 0.
        without_prompt, overruns (optional): of such a source, the names of prompts whose text it does not know, and by
            mode how many texts state a limit, and what is wrong with each that is longer.
        same_seed (optional): of such a source, how many texts it leaves out because an earlier one has their seed.
        chat (optional): whether a chat template is applied to prompts, so that no checkpoint can score the texts.
        draft (optional): the draft model; None if it drafts without one.
        gamma (optional): how many tokens it drafts a step.
        totals (optional): by mode, what the engine counted for all texts together, by the names of ``counters``.
        of_run (optional): whether it is made of the run's own pair, drafter, verifier and gamma.
    """

    engine: str
    modes: frozenset[Mode]
    unsupported: frozenset[str]
    takes_seeds: bool

    def open(self) -> None:
        """Loads models or reaches the server. Raises SpecbenchError with a remedy if it cannot."""
        ...

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        """Decodes requests, side by side where the engine batches.

        Returns:
            One completion a request, in their order.

        Raises:
            SpecbenchError: a request that the engine refuses, or a reply that cannot be read.
            OutageError: the engine stopped answering, or fails by itself. Any other error may be taken for a refusal of
                this request, such as one at temperature 0, after which the engine is judged without it.
        """
        ...

    def close(self) -> None:
        """Frees what ``open`` took; may be called twice."""
        ...


@runtime_checkable
class SourceOfSeveral(Source, Protocol):
    """A source of an engine that samples several texts of one request together (OpenAI's parameter n)."""

    def choices(self, request: TextRequest, count: int, mode: Mode) -> list[TextCompletion]:
        """Returns the texts of one call to the engine that asks for ``count`` texts of a request.

        A judge counts them. Raises as ``complete``.
        """
        ...
