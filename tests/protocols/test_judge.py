"""protocol=judge on made-up engines: each fault is named, and sound engines pass."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import SpecbenchError
from specbench.exactness.two_sample.bets import evidence
from specbench.exactness.two_sample.forks import CHUNKING, NO_IDS, UNKNOWN, EngineFork
from specbench.protocols import Outcome, RunContext
from specbench.protocols.judge import JudgeProtocol
from specbench.protocols.judging.certificate import UNSCORED
from specbench.protocols.judging.checks import (
    CHECKS,
    COPIES,
    LIMIT,
    LOGPROBS,
    SAME_SEED,
    STOP,
    CheckRow,
    _contents,
    _equal,
    _finding,
)
from specbench.protocols.judging.distribution import Sampled
from specbench.protocols.judging.finding import CANNOT_TELL, MEASURED, NOT_ASKED, NOT_REFUTED, REFUTED
from specbench.protocols.judging.greedy import FORKS
from specbench.sampling import SamplingParams
from specbench.sources import Mode, Source, TextCompletion, TextRequest
from tests.helpers import made_up_engines as engines
from tests.helpers.contexts import run_context

pytestmark = pytest.mark.usefixtures("few_simulated", "blank_figures")
QUICK: dict[str, Any] = {"texts": 480, "prompts": 4, "length": 3, "greedy_length": 8, "rounds": 1}


def judged(source: Any, folder: Path | None = None, temperature: float = 1.0, **options: Any) -> Outcome:
    protocol = JudgeProtocol(**{**QUICK, **options})
    return protocol.run(context(source, folder, temperature))


def context(source: Any, folder: Path | None = None, temperature: float = 1.0, **options: Any) -> RunContext:
    command, sampling = "python -m specbench protocol=judge source=mine", SamplingParams(temperature=temperature)
    settings = {"batch_size": 1, "sampling": sampling, "command": command, "folder": folder, "source": source}
    return run_context(**settings | options)


def certificate(outcome: Outcome) -> dict[str, Any]:
    return json.loads(outcome.documents["certificate.json"])


def verdicts(outcome: Outcome) -> list[str]:
    return [finding["verdict"] for finding in certificate(outcome)["findings"]]


def checks(outcome: Outcome) -> dict[tuple[str, str], Any]:
    return {(row.check, row.mode): row for row in outcome.tables[CHECKS].rows}


def speculative_forks(outcome: Outcome) -> list[EngineFork]:
    rows: list[Any] = list(outcome.tables[FORKS].rows)
    return [row for row in rows if row.way == "speculative" and row.position is not None]


def test_a_sound_engine_is_not_refuted_and_the_certificate_says_what_would_have_been_found(monkeypatch):
    monkeypatch.undo()  # with all simulations, and figures
    source = engines.Several()
    outcome = judged(source)
    assert isinstance(source, Source)
    assert outcome.failure is None
    assert not source.is_open
    assert verdicts(outcome) == [NOT_REFUTED, NOT_REFUTED, MEASURED, MEASURED]
    document = certificate(outcome)
    assert (document["verdict"], document["method"]) == (NOT_REFUTED, "coupling")
    assert UNSCORED in document["not_tested"]
    numbers = document["findings"][0]["numbers"]
    assert (numbers["texts"], numbers["confidence"]) == (480, 0.99)
    assert 0 < document["findings"][0]["rows"]["judge_power.parquet"][0]["bias"] < 0.5
    guessed = "Classes are guessed from earlier texts, so that shares of the true ones may differ by more."
    assert document["findings"][0]["power"].endswith(guessed)
    assert document["findings"][3]["numbers"]["acceptance rate"]["value"] == pytest.approx(1 / 3)
    assert set(outcome.documents) == {"certificate.json", "certificate.md", "certificate.html"}
    for text in (outcome.documents["certificate.md"], outcome.documents["certificate.html"]):
        for words in ("not refuted", "Not tested", "How to repeat it", "protocol=judge source=mine"):
            assert words in text
    assert "figures/" not in outcome.documents["certificate.html"]
    binding = [row for (check, _), row in checks(outcome).items() if check in (LIMIT, STOP, COPIES, LOGPROBS)]
    assert all(row.cases and not row.failures for row in binding)


@pytest.mark.cases(3)
@pytest.mark.parametrize("seed", range(6))
def test_sound_engines_pass_with_every_seed(seed):
    protocol = JudgeProtocol(**{**QUICK, "texts": 240, "greedy_length": 0, "rounds": 0, "power": 0.9})
    assert protocol.run(context(engines.Engine(), seed=seed)).failure is None


@pytest.mark.parametrize(
    "source",
    [engines.Biased(0.35), engines.AlwaysGreedy(), engines.CutsPrompts(), engines.Empty()],
    ids=lambda source: type(source).__name__,
)
def test_other_distributions_are_refuted(source):
    outcome = judged(source)
    assert verdicts(outcome)[0] == REFUTED
    assert outcome.failure is not None
    assert "made up 1 is refuted" in outcome.failure
    assert (certificate(outcome)["empty"] > 60) == isinstance(source, engines.Empty)


@pytest.mark.parametrize("source", [engines.IgnoresTemperature(), engines.IgnoresSeeds()])
def test_an_engine_that_repeats_its_text_is_not_judged(source):
    outcome = judged(source)
    assert verdicts(outcome)[0] == CANNOT_TELL
    assert "ignores the temperature or the seeds" in certificate(outcome)["findings"][0]["answer"]
    assert re.match(r"made up 1: cannot tell: The \d+ plain texts are the same .+\. Certificate: ", outcome.headline)
    assert outcome.failure is None


def test_seeds_that_are_ignored_are_named():
    row = checks(judged(engines.FreshSeeds()))[SAME_SEED, Mode.SPECULATIVE]
    assert row.failures > 0
    assert "parts at token" in row.detail


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("source", "check"),
    [
        (engines.OneTooMany(), LIMIT),
        (engines.Several("copies"), COPIES),
        (engines.OverrunsStops(), STOP),
        (engines.HalfStops(), STOP),
        (engines.ShowsStops(), STOP),
        (engines.ShowsStops(whole=True), STOP),
        (engines.Several("too few"), COPIES),
    ],
)
def test_what_speculation_alone_breaks_refutes(source, check):
    outcome = judged(source)
    assert verdicts(outcome)[2] == REFUTED
    assert checks(outcome)[check, Mode.SPECULATIVE].failures > 0
    assert checks(outcome)[check, Mode.PLAIN].failures == 0
    assert outcome.failure is not None


class Slips(engines.Engine):
    """Overruns limits by a token in most requests of some modes, and cuts one text in another mode a token short."""

    def __init__(self, long: Sequence[Mode], short: Mode | None = None) -> None:
        super().__init__()
        self.long, self.short, self.slipped = long, short, False

    def limit(self, request: TextRequest, mode: Mode) -> int:
        if mode is self.short and request.max_new_tokens == 2 and not self.slipped:
            self.slipped = True
            return 1
        return request.max_new_tokens + (mode in self.long and request.seed % 8 > 0)


@pytest.mark.parametrize(
    ("modes", "short", "refuted"),
    [
        ((Mode.SPECULATIVE,), Mode.PLAIN, True),
        (tuple(Mode), None, False),
    ],
)
def test_a_slip_of_plain_texts_excuses_the_same_slip_alone(modes, short, refuted):
    """One plain text that was too short once hid any number of speculative ones that were too long."""
    outcome = judged(Slips(modes, short), texts=2)
    rows = [row for row in outcome.tables[CHECKS].rows if row.check == LIMIT]
    assert [row.way for row in rows] == ["too short" if short else "too long", "too long"]
    assert rows[1].failures > 14
    assert (verdicts(outcome)[2], outcome.failure is not None) == (REFUTED if refuted else MEASURED, refuted)
    assert f"max_tokens is kept (speculative): not in {rows[1].failures} of 24, too long" in outcome.headline


@pytest.mark.parametrize(("plain", "refuted"), [(0, True), (1, True), (8, True), (20, False), (25, False)])
def test_a_failure_of_speculation_refutes_if_plain_texts_fail_less_often(plain, refuted):
    rows = [CheckRow(LIMIT, mode, 28, count, "", "too long") for mode, count in zip(Mode, (plain, 25), strict=True)]
    finding = _finding(rows)
    assert (finding.verdict == REFUTED) == refuted
    assert (f"too long; {LIMIT} (plain): not in {plain} of 28" in finding.remark) != refuted


class EndsOtherwise(engines.ShowsStops):
    """Its last token, which holds the stop string, is another one if it speculates alone, as rounding may have it."""

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        completion = super().one(request, mode)
        if completion.finish_reason != "stop" or mode is Mode.PLAIN:
            return completion
        return dataclasses.replace(
            completion, token_ids=(*(completion.token_ids or ())[:-1], 39), text=f"{completion.text}9"
        )


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


class OneLikelyText(engines.Several):
    """Returns copies when it speculates, which its distribution makes likely."""

    def probs(self, *arguments: Any) -> Any:
        probs = super().probs(*arguments) ** 8
        return probs / probs.sum()


@pytest.mark.parametrize(
    ("source", "check"),
    [
        # As engines that leave a whole last token; what the text goes on with inside of it is no matter.
        (engines.ShowsStops(tuple(Mode)), STOP),
        (engines.ShowsStops(tuple(Mode), whole=True), STOP),
        (EndsOtherwise(tuple(Mode)), STOP),
        (OneLikelyText("copies"), COPIES),
    ],
)
def test_what_plain_texts_do_too_or_rounding_explains_refutes_nothing(source, check):
    outcome = judged(source)
    for mode in Mode:
        assert checks(outcome)[check, mode].cases > 0
    assert verdicts(outcome)[2] == MEASURED
    assert outcome.failure is None


@pytest.mark.parametrize(
    ("source", "check", "why"),
    [
        (engines.RoundsAlone(), STOP, "no text came to its stop string"),  # as it did beside others
        (engines.Several("refuses"), COPIES, "n is at most 1"),  # llama-server with -np 1
        (engines.Several("copies", plain="refuses"), COPIES, "there are no plain texts to compare with"),
    ],
)
def test_what_an_engine_does_not_return_is_not_checked_and_refutes_nothing(source, check, why):
    outcome = judged(source)
    row = checks(outcome)[check, Mode.SPECULATIVE]
    assert (row.cases, row.failures, row.detail) == (0, 0, f"not checked: {why}")
    assert certificate(outcome)["verdict"] == NOT_REFUTED


def test_wrong_log_probabilities_are_named_and_refute_nothing():
    outcome = judged(engines.ZeroLogprobs())
    row = checks(outcome)[LOGPROBS, Mode.SPECULATIVE]
    assert row.failures == row.cases > 0
    assert outcome.failure is None


def test_engines_without_token_ids_are_judged_by_words():
    outcome = judged(engines.WithoutIds())
    assert verdicts(outcome)[0] == NOT_REFUTED
    finding = certificate(outcome)["findings"][0]
    assert finding["numbers"]["units"].startswith("words")
    assert re.search(r"in 480 texts of [\d,]+ words, with \d.\d\d nats of entropy a word\.", finding["answer"])
    assert "a bias a word (total variation)" in finding["power"]
    assert "Shares of classes of words differ" in finding["power"]
    assert checks(outcome)[LIMIT, Mode.PLAIN].detail == "not checked: it returns no token ids"
    compared = checks(outcome)[LOGPROBS, Mode.SPECULATIVE]
    assert (compared.cases, compared.detail[:24]) == (0, "not checked: no prompt h")


@pytest.mark.parametrize(
    ("source", "unit"), [(engines.Several(), "tokens"), (engines.WithoutIds(), "words"), (engines.LosesIds(), "words")]
)
def test_speeds_name_what_they_count(source, unit):
    """Words were called tokens: texts of an engine without token ids had a wrong speed and mean of accepted tokens."""
    names = certificate(judged(source))["findings"][3]["numbers"]
    assert {name for name in names if name.endswith((" a second, speculative", " a second, plain"))} == {
        f"{unit} a second, speculative",
        f"{unit} a second, plain",
    }
    assert ("mean accepted tokens" in names) == (unit == "tokens")
    assert "acceptance length" in names


def test_texts_with_and_without_token_ids_are_compared_by_their_characters():
    """A tuple of ids differs from every text, so that the same seed seemed to give other texts, and copies differed."""
    requests = [TextRequest(prompt_id="a", prompt="b", sampling=SamplingParams(), seed=0, max_new_tokens=2)] * 3
    texts = engines.LosesIds().complete(requests, Mode.PLAIN)
    assert [text.token_ids is None for text in texts] == [False, True, False]
    assert len(set(_contents(texts))) == 1
    assert _equal(texts[:2], texts[1:]) == (2, [])
    assert isinstance(_contents(texts[::2])[0], tuple)


def test_token_ids_that_stop_midway_leave_earlier_bets_as_they_were():
    """Bets on words that began anew would be a second test of the same texts, which doubles the false alarm."""
    source, sampled, looks = engines.Biased(0.2), Sampled(), []
    for number in range(96):
        sampled.prompts.append(number % 4)
        for mode in Mode:
            request = TextRequest(
                prompt_id="a", prompt=f"{number % 4}", sampling=SamplingParams(), seed=number, max_new_tokens=3
            )
            (text,) = source.complete([request], mode)
            lost = number >= 70 and mode is Mode.SPECULATIVE
            sampled.texts[mode].append(dataclasses.replace(text, token_ids=None) if lost else text)
        if number in (63, 95):
            looks.append((sampled.units, evidence(sampled.pairs(3)).log_wealth))
    (units, first), (other_units, second) = looks
    assert (units, other_units[:36]) == ("token ids", "token ids, and words from pair 71 on")
    assert sampled.unit == "token or word"
    assert np.array_equal(first, second[:64])
    assert first[-1] != 0
    assert not np.array_equal(second[70:], np.full(26, second[69]))  # the others are bet on too


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
