"""Progress: outside a terminal a line every 30 s, and none for work that takes less; in a terminal a bar."""

import inspect
import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

import specbench
from specbench.core.machine import progress
from specbench.decoding import Decoder
from specbench.models import Pair


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still between steps."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(progress, "say", lines.append)
    monkeypatch.setattr(progress._Current, "job", "job 3")
    return lines


def test_a_line_every_thirty_seconds_says_what_is_left(clock: SimpleNamespace, lines: list[str]) -> None:
    for _ in progress.track(range(20), "decoding"):
        clock.now += 10
    assert lines == [
        "job 3: 15% of decoding, 3 min left",
        "job 3: 30% of decoding, 2 min left",
        "job 3: 45% of decoding, 2 min left",
        "job 3: 60% of decoding, 80 s left",
        "job 3: 75% of decoding, 50 s left",
        "job 3: 90% of decoding, 20 s left",
    ]


def test_short_work_is_not_mentioned(clock: SimpleNamespace, lines: list[str]) -> None:
    for _ in progress.track(range(20), "decoding"):
        clock.now += 1
    assert lines == []


def test_what_is_left_ends_with_the_limit(clock: SimpleNamespace, lines: list[str]) -> None:
    with progress.progress("comparing settings", 12, 90.0) as advance:
        clock.now += 40
        advance(1)
    assert lines == ["job 3: 8% of comparing settings, 50 s left"]


def test_pieces_of_any_size_count(clock: SimpleNamespace, lines: list[str]) -> None:
    with progress.progress("comparing draws", 1000) as advance:
        for done in (100, 300, 600):
            clock.now += 40
            advance(done)
    assert lines == ["job 3: 10% of comparing draws, 6 min left", "job 3: 40% of comparing draws, 2 min left"]


def test_a_long_piece_is_told_of_while_it_lasts_with_its_speed(clock: SimpleNamespace, lines: list[str]) -> None:
    for _ in progress.track(range(2), "decoding"):
        for tokens in (10, 20, 30):
            clock.now += 20
            progress.beat(lambda tokens=tokens: tokens)
        progress.count(30)
    assert lines == [
        "job 3: decoding, 0.5 tokens/s",
        "job 3: 50% of decoding, 80 s left, 0.5 tokens/s",
        "job 3: 50% of decoding, 2 min left, 0.5 tokens/s",
    ]
    progress.beat(lambda: 1)  # no work is under way
    assert not progress._Current.lines


def test_decoding_beats_between_its_steps(
    pair: Pair, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """One call of specbench.decode, whose steps take two seconds each."""
    step = Decoder.step
    monkeypatch.setattr(progress, "LINE_SECONDS", 2)
    monkeypatch.setattr(Decoder, "step", lambda self: (step(self), setattr(clock, "now", clock.now + 2)))
    specbench.decode(pair, ["import "], gamma=0, max_new_tokens=3)
    assert lines == ["job 3: decoding, 0.5 tokens/s"] * 3


def test_a_notebook_says_what_has_begun(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    list(progress.track(range(2), "decoding"))
    progress.say_in_notebook("a certificate")
    assert lines == []
    monkeypatch.setattr(progress, "console", Console(force_jupyter=True))
    list(progress.track(range(2), "decoding"))
    progress.say_in_notebook("a certificate")
    assert lines == ["job 3: decoding", "a certificate"]
    assert inspect.signature(specbench.certify).parameters["report"].default is progress.say_in_notebook


@pytest.mark.parametrize("way", ["items", "pieces"])
def test_a_bar_in_a_terminal_has_the_job_and_the_time_left(way: str, monkeypatch: pytest.MonkeyPatch, lines: list[str]):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=screen, force_terminal=True, width=80))
    if way == "items":
        list(progress.track(range(2), "decoding"))
    else:
        with progress.progress("decoding", 2) as advance:
            advance(2)
    assert re.search(r"job 3: decoding .*100%.*\d:\d\d:\d\d", screen.getvalue())
    assert lines == []
