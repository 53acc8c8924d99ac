"""protocol=judge checks limits, stop strings, several texts, seeds and log-probabilities both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

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
from specbench.protocols.judging.finding import MEASURED, NOT_REFUTED, REFUTED
from specbench.sampling import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest
from tests.helpers import made_up_engines as engines
from tests.protocols.test_judge import certificate, checks, judged, verdicts

pytestmark = pytest.mark.usefixtures("few_simulated", "blank_figures")


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


def test_texts_with_and_without_token_ids_are_compared_by_their_characters():
    """A tuple of ids differs from every text, so that the same seed seemed to give other texts, and copies differed."""
    requests = [TextRequest(prompt_id="a", prompt="b", sampling=SamplingParams(), seed=0, max_new_tokens=2)] * 3
    texts = engines.LosesIds().complete(requests, Mode.PLAIN)
    assert [text.token_ids is None for text in texts] == [False, True, False]
    assert len(set(_contents(texts))) == 1
    assert _equal(texts[:2], texts[1:]) == (2, [])
    assert isinstance(_contents(texts[::2])[0], tuple)
