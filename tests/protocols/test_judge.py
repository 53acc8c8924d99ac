"""protocol=judge on made-up engines: each fault is named, and sound engines pass."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.exactness.two_sample.bets import evidence
from specbench.protocols import Outcome, RunContext
from specbench.protocols.judge import JudgeProtocol
from specbench.protocols.judging.certificate import UNSCORED
from specbench.protocols.judging.checks import (
    CHECKS,
    COPIES,
    LIMIT,
    LOGPROBS,
    STOP,
)
from specbench.protocols.judging.distribution import Sampled
from specbench.protocols.judging.finding import CANNOT_TELL, MEASURED, NOT_REFUTED, REFUTED
from specbench.sampling import SamplingParams
from specbench.sources import Mode, Source, TextRequest
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
