"""The soak (tests/interpreted/soak.py) in small: it compares what it decodes, and a wrong token ends it."""

import pytest

from tests.interpreted import soak


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(soak, "WIDEST", 2)
    monkeypatch.setattr(soak, "LONGEST", 8)
    monkeypatch.setattr(soak, "LENGTHS", (1, 2, 5))


@pytest.mark.usefixtures("small", "unchecked")
def test_a_soak_says_what_it_compared(exact):
    report = soak.soak(exact, 0.01, 1, ["masked"])
    assert report["requests"] >= report["rounds"] >= 1
    assert report["tokens"] > 0
    assert set(report["grown"]) >= {"host"}


@pytest.mark.usefixtures("small", "unchecked")
def test_a_text_that_differs_ends_it(exact, monkeypatch):
    logs = soak.logs
    calls = []

    def second_differs(completions):
        calls.append(completions)
        outputs = logs(completions)
        return [([*tokens[:-1], tokens[-1] ^ 1], *rest) for tokens, *rest in outputs] if len(calls) == 2 else outputs

    monkeypatch.setattr(soak, "logs", second_differs)
    with pytest.raises(AssertionError, match="round 0, masked"):
        soak.soak(exact, 0.01, 1, ["masked"])
