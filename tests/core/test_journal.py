"""What a run writes down while it goes on."""

import json
import math

from specbench.core.machine.journal import PROGRESS, Journal


def test_a_line_is_there_at_once(tmp_path):
    """With seconds that grow, and without what JSON cannot hold."""
    journal = Journal(tmp_path)
    journal.note(tokens=8, log10_evidence=math.inf, acceptance_length=None)
    (line,) = map(json.loads, (tmp_path / PROGRESS).read_text().splitlines())
    assert line == {"seconds": 0.0, "tokens": 8}
    journal.note(tokens=16, log10_evidence=-0.5)
    first, second = map(json.loads, (tmp_path / PROGRESS).read_text().splitlines())
    assert first == line
    assert (second["tokens"], second["log10_evidence"]) == (16, -0.5)
    assert second["seconds"] >= 0


def test_a_disk_that_is_full_costs_the_run_nothing(tmp_path):
    """Nor does a folder that has gone; and it is not tried again and again."""
    journal = Journal(tmp_path / "gone")
    journal.note(tokens=8)
    (tmp_path / "gone").mkdir()
    journal.note(tokens=16)
    assert list((tmp_path / "gone").iterdir()) == []


def test_without_a_folder_it_keeps_silent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Journal().note(tokens=8)
    assert list(tmp_path.iterdir()) == []
