"""protocol=judge takes texts of sources: nothing sampled is lost, and sources that break a promise are named."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from specbench.core.errors import ConfigError, OutageError, SpecbenchError
from specbench.protocols.judge import JudgeProtocol
from specbench.protocols.judging.sampler import PROMPTS, JudgedPrompt, Sampler, prompts_of
from specbench.protocols.judging.speed import SPEED, judge_speed
from specbench.sampling import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest
from specbench.sources.contract import SAMPLED
from tests.helpers import made_up_engines as engines
from tests.protocols.test_judge import certificate, context, judged

pytestmark = pytest.mark.usefixtures("few_simulated", "blank_figures")


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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda texts: texts[1:], "complete returned 3 completions for 4 requests"),
        # Texts of different prompts would be compared.
        (lambda texts: texts[::-1], r"complete returned another text in place of the \w+ one of prompt '\w+'"),
        (lambda _: None, "complete returned a NoneType"),
        (lambda texts: list(map(vars, texts)), "complete returned a list with a dict"),
    ],
    ids=["too few", "another order", "none", "dicts"],
)
def test_an_engine_that_returns_other_texts_than_it_should_is_named(returned, message):
    class Returns(engines.Engine):
        def complete(self, requests: Any, mode: Mode) -> Any:
            return returned(super().complete(requests, mode))

    problem = rf"^source=Returns: {message}\. Return a list of TextCompletion, one for each request"
    for temperature in (0.0, 1.0):  # at 0 the question was left out, as for a request that an engine refuses
        with pytest.raises(OutageError, match=problem):
            judged(Returns(), temperature=temperature)


@pytest.mark.usefixtures("unchecked")
def test_an_engine_that_returns_other_choices_than_it_should_is_named():
    class Chooses(engines.Several):
        def choices(self, *_: Any) -> Any:
            return ["a text"]

    with pytest.raises(OutageError, match=r"^source=Chooses: choices returned a list with a str\. Return a list of"):
        judged(Chooses(), texts=2, rounds=0)


@pytest.mark.parametrize(("name", "value"), [("engine", None), ("unsupported", None), ("modes", "plain")])
def test_an_attribute_of_a_source_that_is_none_of_its_kind_is_named_before_texts_are_sampled(name, value):
    engine = engines.Engine()
    setattr(engine, name, value)
    with pytest.raises(ConfigError, match=f"^source=Engine: its {name} is {value!r}. See docs/sources.md"):
        judged(engine)


def test_a_source_that_cannot_be_closed_is_judged():
    class Open(engines.Engine):
        def close(self) -> None:
            raise RuntimeError("still busy")

    assert judged(Open()).headline


def test_prompts_have_names_of_their_own():
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len({line["prompt"] for line in lines}) == len(lines) == 52
    mixed, sentences = (prompts_of(engines.Engine(), 52, lists) for lists in (True, False))
    assert len(sentences) == 40  # no list is timed, nor decoded at temperature 0, where its tokens nearly tie
    assert len({prompt.name for prompt in mixed}) == 52
    assert [prompt.name for prompt in mixed[:4]] == ["coins", "weather", "digits", "colour"]
