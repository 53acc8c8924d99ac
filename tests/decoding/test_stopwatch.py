"""Prompts on a GPU are timed by events, which the host does not wait for before it reads them."""

import pytest
import torch

from specbench.decoding.stopwatch import MOST_EVENTS, Stopwatch


class Event:
    """Of a made-up GPU, on which each feeding takes five milliseconds."""

    now, waits = 0.0, 0

    def __init__(self, enable_timing: bool):
        self._enable_timing, self._at = enable_timing, 0.0

    def record(self, stream: object) -> None:
        Event.now += 5
        self._at = Event.now

    def synchronize(self) -> None:
        Event.waits += 1

    def elapsed_time(self, other: "Event") -> float:
        return other._at - self._at


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Event, "waits", 0)
    return Stopwatch(torch.device("cuda"))


def test_prompts_are_part_of_their_phases_and_counted_once(watch):
    for phase in ("target", "draft", "target"):
        with watch.feeding(phase):
            pass
    watch.add(("draft", "verify"), [0, 2_000_000, 3_000_000])
    assert Event.waits == 0
    for _ in range(2):
        assert watch.seconds == pytest.approx({"target": 0.010, "draft": 0.007, "verify": 0.001})
        assert watch.prompt_seconds == pytest.approx(0.015)
    assert Event.waits == 3


def test_clearing_forgets_prompts_that_are_under_way(watch):
    with watch.feeding("target"):
        pass
    watch.clear()
    assert (watch.seconds, watch.prompt_seconds) == ({}, 0.0)


def test_events_do_not_pile_up(watch):
    for _ in range(MOST_EVENTS):
        with watch.feeding("target"):
            pass
    assert Event.waits == MOST_EVENTS
    assert watch.prompt_seconds == pytest.approx(0.005 * MOST_EVENTS)
