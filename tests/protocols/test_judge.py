"""protocol=judge on made-up engines: each fault is named, sound engines pass, and nothing that was sampled is lost."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import ArgumentError, ConfigError, OutageError, SpecbenchError
from specbench.exactness.two_sample.bets import evidence
from specbench.exactness.two_sample.forks import CHUNKING, NO_IDS
from specbench.protocols import Outcome, RunContext
from specbench.protocols.judge import JudgeProtocol
from specbench.protocols.judging.checks import CHECKS, COPIES, LIMIT, LOGPROBS, SAME_SEED, STOP, _contents, _equal
from specbench.protocols.judging.distribution import Sampled
from specbench.protocols.judging.finding import CANNOT_TELL, MEASURED, NOT_ASKED, NOT_REFUTED, REFUTED
from specbench.protocols.judging.greedy import FORKS
from specbench.protocols.judging.sampler import PROMPTS, JudgedPrompt, Sampler, prompts_of
from specbench.protocols.judging.speed import SPEED, judge_speed
from specbench.sampling import SamplingParams
from specbench.sources import Mode, Source, TextCompletion, TextRequest
from specbench.sources.contract import SAMPLED
from specbench.sources.file import FileSource
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


def test_a_text_that_rounding_forks_before_its_stop_string_refutes_nothing():
    """Its own greedy text, beside others, was another one: this says nothing of stop strings."""
    outcome = judged(engines.RoundsAlone())
    row = checks(outcome)[STOP, Mode.SPECULATIVE]
    assert (row.cases, row.failures, row.detail) == (0, 0, "not checked: no text came to its stop string")
    assert checks(outcome)[STOP, Mode.PLAIN].cases > 0
    assert outcome.failure is None


@pytest.mark.parametrize("source", [engines.ShowsStops(tuple(Mode)), engines.ShowsStops(tuple(Mode), whole=True)])
def test_an_engine_that_shows_stop_strings_both_ways_keeps_them(source):
    """As engines do that leave a whole last token; what the text goes on with inside of it is no matter."""
    outcome = judged(source)
    for mode in Mode:
        assert checks(outcome)[STOP, mode].cases > 0
        assert checks(outcome)[STOP, mode].failures == 0
    assert outcome.failure is None


class EndsOtherwise(engines.ShowsStops):
    """Its last token, which holds the stop string, is another one if it speculates alone, as rounding may have it."""

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        completion = super().one(request, mode)
        if completion.finish_reason != "stop" or mode is Mode.PLAIN:
            return completion
        return dataclasses.replace(
            completion, token_ids=(*(completion.token_ids or ())[:-1], 39), text=f"{completion.text}9"
        )


def test_a_text_that_forks_in_the_token_of_its_stop_string_refutes_nothing():
    outcome = judged(EndsOtherwise(tuple(Mode)))
    assert checks(outcome)[STOP, Mode.SPECULATIVE].cases > 0
    assert outcome.failure is None


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


def test_an_engine_that_refuses_several_texts_is_judged_without_them():
    """As llama-server does with -np 1."""
    outcome = judged(engines.Several("refuses"))
    row = checks(outcome)[COPIES, Mode.SPECULATIVE]
    assert (row.cases, row.detail) == (0, "not checked: n is at most 1")
    assert certificate(outcome)["verdict"] == NOT_REFUTED


class RefusesPlainly(engines.Several):
    """As two servers with different -np do."""

    def choices(self, request: TextRequest, count: int, mode: Mode) -> list[TextCompletion]:
        if mode is Mode.PLAIN:
            raise SpecbenchError("n is at most 1")
        return super().choices(request, count, mode)


def test_copies_are_not_held_against_plain_texts_that_nobody_has():
    outcome = judged(RefusesPlainly("copies"))
    row = checks(outcome)[COPIES, Mode.SPECULATIVE]
    assert (row.cases, row.detail) == (0, "not checked: there are no plain texts to compare with")
    assert certificate(outcome)["verdict"] == NOT_REFUTED


class OneLikelyText(engines.Several):
    """Returns copies when it speculates, which its distribution makes likely."""

    def probs(self, *arguments: Any) -> Any:
        probs = super().probs(*arguments) ** 8
        return probs / probs.sum()


def test_equal_texts_of_a_distribution_that_has_one_likely_text_refute_nothing():
    outcome = judged(OneLikelyText("copies"))
    assert checks(outcome)[COPIES, Mode.SPECULATIVE].cases > 0
    assert verdicts(outcome)[2] == MEASURED


def test_wrong_log_probabilities_are_named_and_refute_nothing():
    outcome = judged(engines.ZeroLogprobs())
    row = checks(outcome)[LOGPROBS, Mode.SPECULATIVE]
    assert row.failures == row.cases > 0
    assert outcome.failure is None


def test_engines_without_token_ids_are_judged_by_words():
    outcome = judged(engines.WithoutIds())
    assert verdicts(outcome)[0] == NOT_REFUTED
    assert certificate(outcome)["findings"][0]["numbers"]["units"].startswith("words")
    assert checks(outcome)[LIMIT, Mode.PLAIN].detail == "not checked: it returns no token ids"


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


def test_forks_that_no_rounding_makes_are_refuted():
    outcome = judged(OtherGreedy(), texts=2)
    assert verdicts(outcome)[1] == REFUTED
    assert "the plain token leads" in certificate(outcome)["findings"][1]["answer"]


def test_at_temperature_0_nothing_is_drawn():
    outcome = judged(engines.Engine(), temperature=0.0)
    assert verdicts(outcome)[:2] == [NOT_ASKED, NOT_REFUTED]


def test_nothing_that_was_sampled_is_lost_and_a_resumed_job_goes_on_from_it(tmp_path):
    with pytest.raises(SpecbenchError, match="the server is down"):
        judged(engines.Fails(101), tmp_path, texts=160)
    kept = (tmp_path / SAMPLED).read_text().splitlines()
    assert len(kept) == 100  # the round of four texts in which it stopped is not there
    with (tmp_path / SAMPLED).open("a") as file:
        file.write(kept[0][:50])  # cut off while it was written
    source, again = engines.Several(), engines.Several()
    few: dict[str, Any] = {"texts": 160, "rounds": 0}
    outcome, whole = judged(source, tmp_path, **few), judged(again, **few)
    assert source.calls == again.calls - 100
    assert certificate(outcome)["findings"] == certificate(whole)["findings"]
    assert len((tmp_path / SAMPLED).read_text().splitlines()) == certificate(outcome)["texts"]
    done = engines.Several()
    judged(done, tmp_path, **few)
    assert done.calls == 0


class SideBySide(engines.Engine):
    """Decodes several requests at the same time, and counts how many it got together."""

    def __init__(self, concurrency: int) -> None:
        super().__init__()
        self.concurrency, self.together = concurrency, set[int]()

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        self.together.add(len(requests))
        return super().complete(requests, mode)


def test_an_engine_gets_as_many_requests_as_it_takes_together_and_the_same_ones():
    few: dict[str, Any] = {"texts": 300, "rounds": 0, "greedy_length": 0}
    sources = [SideBySide(concurrency) for concurrency in (1, 13)]
    answers = [certificate(judged(source, **few))["findings"][0] for source in sources]
    assert answers[0] == answers[1]
    assert 12 in sources[1].together  # three texts of each of four prompts
    assert 12 not in sources[0].together


class Down(engines.Fails, engines.Several):
    """Stops answering after some texts."""

    error = OutageError("source.url", "http://127.0.0.1:8081", "cannot be reached", "Start the server.")


def test_an_engine_that_stops_answering_gets_no_certificate_whatever_was_asked_last(tmp_path, capsys):
    """It would say "not refuted" of an engine that dies at temperature 0, and no job would be left to resume."""
    few: dict[str, Any] = {"texts": 2, "rounds": 1}
    judged(sound := Down(10**6), **few)
    texts = 10**6 - sound.after
    for after in range(0, texts, texts // 12):
        (folder := tmp_path / str(after)).mkdir()
        with pytest.raises(OutageError, match="cannot be reached"):
            judged(Down(after), folder, **few)
    assert f"resume={tmp_path} goes on from them." in capsys.readouterr().err


def test_a_resumed_job_takes_no_texts_of_another_engine(tmp_path):
    with pytest.raises(SpecbenchError, match="the server is down"):
        judged(engines.Fails(101), tmp_path, texts=160)
    mended = engines.Several()
    mended.engine = "made up 2"
    with pytest.raises(ConfigError, match=r"source=made up 2: .* has texts of made up 1.* Start that engine to resume"):
        judged(mended, tmp_path, texts=160)


def test_a_server_that_applies_a_chat_template_is_not_held_against_a_checkpoint():
    source: Any = engines.Engine()
    source.chat = True
    assert "to which the server applied its chat template" in judged(source, texts=2).documents["certificate.md"]
    with pytest.raises(ConfigError, match=r"protocol\.target=embedded:target: with source\.chat=true"):
        judged(source, target="embedded:target")


def test_texts_of_a_file_are_judged_as_they_were_live(tmp_path):
    live = judged(engines.Biased(0.35), tmp_path)
    source = FileSource(str(tmp_path / SAMPLED))
    outcome = judged(source, prompts=1)
    assert verdicts(outcome) == [REFUTED, NOT_REFUTED, NOT_ASKED, NOT_ASKED]
    first, other = (certificate(judgement)["findings"][0]["numbers"] for judgement in (live, outcome))
    assert first["texts"] == other["texts"]
    assert first["log10_evidence"] == pytest.approx(other["log10_evidence"])
    assert "served by made up 1" in outcome.headline


def test_a_file_without_texts_at_temperature_0_says_nothing_of_them(tmp_path):
    judged(engines.Engine(), tmp_path, greedy_length=0, rounds=0)
    lines = [line for line in (tmp_path / SAMPLED).read_text().splitlines() if '"temperature": 1' in line]
    (tmp_path / "served.jsonl").write_text("".join(f"{line}\n" for line in lines))
    outcome = judged(FileSource(str(tmp_path / "served.jsonl")), prompts=1, rounds=2)
    assert verdicts(outcome)[1:] == [NOT_ASKED] * 3


def test_texts_that_a_file_has_beyond_its_pairs_answer_no_check_and_are_not_timed(tmp_path):
    """Served without a stop string or a limit, they would break both and refute a sound engine."""
    judged(engines.Engine(), tmp_path, rounds=0)
    lines = [json.loads(line) for line in (tmp_path / SAMPLED).read_text().splitlines()]
    more = [line for line in lines if line["question"] == "greedy" or line["mode"] == Mode.SPECULATIVE]
    (tmp_path / "served.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, *more, *more]))
    outcome = judged(FileSource(str(tmp_path / "served.jsonl")), rounds=2)
    assert verdicts(outcome)[1:] == [NOT_REFUTED, NOT_ASKED, NOT_ASKED]
    assert outcome.failure is None


def test_a_file_without_pairs_of_texts_says_so_in_a_line(tmp_path):
    lines = [{"prompt_id": "ab"[n % 2], "mode": list(Mode)[n % 2], "text": " x"} for n in range(8)]
    (tmp_path / "served.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    outcome = judged(FileSource(str(tmp_path / "served.jsonl")))
    assert certificate(outcome)["verdict"] == CANNOT_TELL
    assert "served.jsonl: cannot tell: There are no texts of both modes. Certificate: " in outcome.headline


class Counts(engines.Engine):
    """The first call of a mode, as one whose code is compiled in it, accepts nothing."""

    def __init__(self):
        super().__init__()
        self.modes_called: list[Mode] = []
        self.totals: dict[Mode, dict[str, float]] = {mode: {"drafted": 0.0, "accepted": 0.0} for mode in Mode}

    def complete(self, requests, mode):
        self.totals[mode]["drafted"] += 100
        self.totals[mode]["accepted"] += 50 if mode in self.modes_called else 0
        self.modes_called.append(mode)
        return [dataclasses.replace(text, counters={}) for text in super().complete(requests, mode)]


def test_both_ways_are_warmed_up_and_counters_of_that_are_left_out():
    source = Counts()
    finding = judge_speed(Sampler(source, SamplingParams(), 0, None), [JudgedPrompt("a", "import")], 4, 1, None, 3)
    assert [source.modes_called.count(mode) for mode in Mode] == [2, 2]
    assert next(row.value for row in finding.rows[SPEED] if row.name == "acceptance rate") == 0.5


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(ConfigError, match="source=None: protocol=judge judges an engine"):
        judged(None)
    half = engines.Engine()
    half.modes = frozenset({Mode.PLAIN})
    with pytest.raises(ConfigError, match="has no speculative texts"):
        judged(half)
    with pytest.raises(ConfigError, match="verifier=block: the engine under test has a verifier of its own"):
        JudgeProtocol().run(context(engines.Engine(), verifier_name="block"))
    numbers = {"false_alarm": 0, "power": 1, "texts": 1, "length": 0, "minutes": -1, "prompts": 0}
    for name, value in {**numbers, "tolerance": -1}.items():
        with pytest.raises(ConfigError, match=f"protocol.{name}"):
            JudgeProtocol(**{name: value})
    with pytest.raises(ConfigError, match="no number of logit units"):
        JudgeProtocol(tolerance=math.nan)


def test_an_engine_that_returns_too_few_texts_is_named():
    class Short(engines.Engine):
        def complete(self, requests: Any, mode: Mode) -> Any:
            return super().complete(requests, mode)[1:]

    with pytest.raises(SpecbenchError, match="3 completions for 4 requests"):
        judged(Short())


def test_an_engine_that_returns_texts_in_another_order_is_named():
    """Texts of different prompts would be compared."""

    class Reversed(engines.Engine):
        def complete(self, requests: Any, mode: Mode) -> Any:
            return super().complete(requests, mode)[::-1]

    with pytest.raises(SpecbenchError, match="made up 1 returned the text of another request than that for prompt"):
        judged(Reversed())


@pytest.mark.usefixtures("unchecked")
def test_token_ids_may_be_any_sequence_of_numbers():
    """A list is never equal to a tuple of the same tokens, and an array is neither true nor false."""
    request = TextRequest(prompt_id="a", prompt="b", sampling=SamplingParams(), seed=0, max_new_tokens=2)
    fields: dict[str, Any] = {"request": request, "mode": Mode.PLAIN, "text": ""}
    expected = TextCompletion(**fields, token_ids=(1, 2), logprobs=(-1.0, -2.0))
    for ids in ([1, 2], np.array([1, 2]), torch.tensor([1, 2])):
        assert TextCompletion(**fields, token_ids=ids, logprobs=np.array([-1.0, -2.0])) == expected
    for ids in ([1.5], ["a"], 3):
        with pytest.raises(ArgumentError, match=r"^token_ids: .*; give a tuple of numbers"):
            TextCompletion(**fields, token_ids=ids)


def test_prompts_have_names_of_their_own():
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len({line["prompt"] for line in lines}) == len(lines) == 52
    mixed, sentences = (prompts_of(engines.Engine(), 52, lists) for lists in (True, False))
    assert len(sentences) == 40  # no list is timed, nor decoded at temperature 0, where its tokens nearly tie
    assert len({prompt.name for prompt in mixed}) == 52
    assert [prompt.name for prompt in mixed[:4]] == ["coins", "weather", "digits", "colour"]


class Rounds(OtherGreedy):
    """Forks at temperature 0 as rounding would; its own ids of a prompt are numbers of characters."""

    def __init__(self, ids: bool):
        super().__init__()
        self.asked: list[TextRequest] = []
        self.tells = ids
        self.unsupported = frozenset({"logprobs"})  # so that no margin says what the fork is

    def encode(self, text: str) -> tuple[int, ...] | None:
        return tuple(text.encode()) if self.tells else None

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        if "to its fork" not in request.prompt_id:
            return super().one(request, mode)
        self.asked.append(request)
        whole = super().one(dataclasses.replace(request, token_ids=None, max_new_tokens=3), Mode.SPECULATIVE)
        return dataclasses.replace(whole, request=request, mode=mode, token_ids=(whole.token_ids or ())[2:])


@pytest.mark.parametrize(("ids", "cause"), [(True, CHUNKING), (False, NO_IDS)])
def test_forks_are_examined_by_token_ids_alone(ids, cause):
    """The same text may be other tokens: an engine that takes no ids cannot show that a fork is rounding."""
    source = Rounds(ids)
    outcome = judged(source, texts=2)
    forks = [row for row in outcome.tables[FORKS].rows if row.way == "speculative" and row.position is not None]
    assert forks
    assert {fork.cause for fork in forks} == {cause}
    for request in source.asked:
        plain_ids = tuple(request.prompt.encode())
        assert request.token_ids is not None
        assert request.token_ids[: len(plain_ids)] == plain_ids
        assert len(request.token_ids) == len(plain_ids) + 2  # of the speculative text, up to the fork
    assert bool(source.asked) == ids
