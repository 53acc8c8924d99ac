"""Progress outside a terminal: a line every 30 s, and none for work that takes less."""

from __future__ import annotations

import pytest

from specbench.core.machine import progress


class Clock:
    """A clock that stands still between steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(progress, "say", lines.append)
    monkeypatch.setattr(progress._Current, "job", "job 3")
    return lines


def test_a_line_every_thirty_seconds_says_what_is_left(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    clock = Clock(monkeypatch)
    for _ in progress.track(range(20), "decoding"):
        clock.now += 10
    assert said == [
        "job 3: 15% of decoding, 3 min left",
        "job 3: 30% of decoding, 2 min left",
        "job 3: 45% of decoding, 2 min left",
        "job 3: 60% of decoding, 80 s left",
        "job 3: 75% of decoding, 50 s left",
        "job 3: 90% of decoding, 20 s left",
    ]


def test_short_work_is_not_mentioned(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    clock = Clock(monkeypatch)
    for _ in progress.track(range(20), "decoding"):
        clock.now += 1
    assert said == []


def test_pieces_of_any_size_count(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    clock = Clock(monkeypatch)
    with progress.progress("comparing draws", 1000) as advance:
        for done in (100, 300, 600):
            clock.now += 40
            advance(done)
    assert said == ["job 3: 10% of comparing draws, 6 min left", "job 3: 40% of comparing draws, 2 min left"]
