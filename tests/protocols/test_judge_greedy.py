"""protocol=judge at temperature 0: which forks and characters refute an engine, and which are rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specbench.core.errors import SpecbenchError
from specbench.exactness.two_sample.forks import CHUNKING, NO_IDS, UNKNOWN, EngineFork
from specbench.protocols import Outcome
from specbench.protocols.judge import JudgeProtocol
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_ASKED, NOT_REFUTED, REFUTED
from specbench.protocols.judging.greedy import FORKS
from specbench.sampling import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest
from tests.helpers import made_up_engines as engines
from tests.protocols.test_judge import QUICK, certificate, context, judged, verdicts

pytestmark = pytest.mark.usefixtures("few_simulated", "blank_figures")


def speculative_forks(outcome: Outcome) -> list[EngineFork]:
    rows: list[Any] = list(outcome.tables[FORKS].rows)
    return [row for row in rows if row.way == "speculative" and row.position is not None]


class LeavesCharacters(engines.Engine):
    """Keeps a character of a refused token when it speculates, or also in plain requests that are alone."""

    def __init__(self, plain: bool = False):
        super().__init__()
        self.plain, self.leaves = plain, False

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        self.leaves = mode is Mode.SPECULATIVE or (self.plain and len(requests) == 1)
        return super().complete(requests, mode)

    def completion(self, request: TextRequest, mode: Mode, ids: list[int], text: str, *rest: Any) -> TextCompletion:
        return super().completion(request, mode, ids, text + "w" * self.leaves, *rest)


def test_equal_tokens_with_other_characters_are_no_equal_texts():
    outcome = judged(LeavesCharacters())
    answer = certificate(outcome)["findings"][1]["answer"]
    assert verdicts(outcome)[:2] == [NOT_REFUTED, REFUTED]
    assert answer.startswith(
        "No: 4 speculative texts have the tokens of the plain ones and other characters (the first"
    )
    assert outcome.failure is not None


def test_characters_that_plain_texts_of_the_same_tokens_change_too_refute_nothing():
    assert verdicts(judged(LeavesCharacters(plain=True)))[1] == NOT_REFUTED


class OtherGreedy(engines.Engine):
    """Takes the second likeliest token at temperature 0 when it speculates, far behind the likeliest."""

    def probs(self, prompt: str, before: list[int], temperature: float, mode: Mode) -> Any:
        probs = super().probs(prompt, before, 0.3 if temperature else 0, mode)
        if temperature or mode is Mode.PLAIN or len(before) < 2:
            return probs
        second = super().probs(prompt, before, 1.0, mode).argsort()[-2]
        return torch.eye(engines.VOCABULARY)[second].double().numpy()


class RefusesLogprobs(engines.Engine):
    """Does not say beforehand that it gives no log-probabilities."""

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        if any(request.sampling.logprobs is not None for request in requests):
            raise SpecbenchError("no log-probabilities")
        return super().complete(requests, mode)


class RefusesLogprobsOtherGreedy(RefusesLogprobs, OtherGreedy):
    pass


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [(OtherGreedy, REFUTED), (RefusesLogprobs, NOT_REFUTED), (RefusesLogprobsOtherGreedy, CANNOT_TELL)],
)
def test_log_probabilities_refute_forks_that_no_rounding_makes_and_an_engine_without_them_is_judged(engine, verdict):
    outcome = judged(engine(), texts=2)
    assert verdicts(outcome)[1] == verdict
    assert ("the plain token leads" in certificate(outcome)["findings"][1]["answer"]) == (verdict == REFUTED)


def test_at_temperature_0_nothing_is_drawn():
    outcome = judged(engines.Engine(), temperature=0.0)
    assert verdicts(outcome)[:2] == [NOT_ASKED, NOT_REFUTED]


class Rounds(OtherGreedy):
    """Forks at temperature 0 as rounding would; its own ids of a prompt are numbers of characters."""

    def __init__(self, ids: bool, overrun: int = 0):
        super().__init__()
        self.asked: list[TextRequest] = []
        self.tells, self.overrun = ids, overrun
        self.unsupported = frozenset({"logprobs"})  # so that no margin says what the fork is

    def encode(self, text: str) -> tuple[int, ...] | None:
        return tuple(text.encode()) if self.tells else None

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        if "to its fork" not in request.prompt_id:
            return super().one(request, mode)
        self.asked.append(request)
        length = 3 + self.overrun
        whole = super().one(dataclasses.replace(request, token_ids=None, max_new_tokens=length), Mode.SPECULATIVE)
        return dataclasses.replace(whole, request=request, mode=mode, token_ids=(whole.token_ids or ())[2:])


@pytest.mark.parametrize(("ids", "overrun", "cause"), [(True, 0, CHUNKING), (True, 1, CHUNKING), (False, 0, NO_IDS)])
def test_forks_are_examined_by_token_ids_alone(ids, overrun, cause):
    """The same text may be other tokens: an engine that takes no ids cannot show that a fork is rounding.

    An engine that overruns its limit shows it by the first token.
    """
    source = Rounds(ids, overrun)
    outcome = judged(source, texts=2)
    forks = speculative_forks(outcome)
    assert forks
    assert {fork.cause for fork in forks} == {cause}
    for request in source.asked:
        plain_ids = tuple(request.prompt.encode())
        assert request.token_ids is not None
        assert request.token_ids[: len(plain_ids)] == plain_ids
        assert len(request.token_ids) == len(plain_ids) + 2  # of the speculative text, up to the fork
    assert bool(source.asked) == ids


class OverrunsGreedy(engines.OneTooMany):
    """Goes on with a text that it is given as token ids, so that plainly it adds the very token that is too many."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        if request.token_ids is None:
            return super().one(request, mode)
        before = len(request.token_ids) - len(self.encode(request.prompt))
        whole = super().one(
            dataclasses.replace(request, token_ids=None, max_new_tokens=before + request.max_new_tokens), mode
        )
        return dataclasses.replace(whole, request=request, token_ids=(whole.token_ids or ())[before:])


def test_a_token_after_the_limit_is_no_rounding():
    outcome = judged(OverrunsGreedy(), texts=2)
    forks = speculative_forks(outcome)
    assert len(forks) == QUICK["prompts"]
    assert {(fork.position, fork.cause) for fork in forks} == {(QUICK["greedy_length"] + 1, UNKNOWN)}
    assert verdicts(outcome)[1:3] == [CANNOT_TELL, REFUTED]


@pytest.mark.parametrize(
    "parameters", [{"presence_penalty": 1.0}, {"repetition_penalty": 1.2}, {"min_tokens": 2}], ids=str
)
def test_a_fork_under_penalties_is_no_rounding_because_a_prompt_of_the_same_tokens_has_none(parameters):
    """SGLang's drafts do not count their own tokens in penalties; each fork of such texts was called rounding."""
    source = Rounds(ids=True)
    sampling = SamplingParams(**parameters)
    outcome = JudgeProtocol(**{**QUICK, "texts": 2}).run(context(source, sampling=sampling))
    assert {fork.cause for fork in speculative_forks(outcome)} == {UNKNOWN}
    assert not source.asked
