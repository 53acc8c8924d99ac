"""Caches of other libraries where the home folder cannot be written."""

import atexit
import os
from pathlib import Path

import pytest

from specbench.core.machine.caches import CACHES, use_temporary_home
from tests.command_lines import NO_HOME

OURS = ("TRITON_CACHE_DIR", "MPLCONFIGDIR")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable, others, _ in CACHES:
        for name in (variable, *others):
            monkeypatch.setenv(name, "")  # so that what a test sets is taken back
            monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def chosen() -> dict[str, str]:
    use_temporary_home()
    return {name: os.environ[name] for name in OURS if name in os.environ}


def test_each_cache_gets_a_folder_of_its_own_that_goes(monkeypatch, tmp_path):
    ends = []
    monkeypatch.setattr(atexit, "register", lambda function, *given, **named: ends.append((function, given, named)))
    monkeypatch.setenv("HOME", str(NO_HOME))
    places = [Path(place) for place in chosen().values()]
    assert len(set(places)) == len(OURS)
    for place in places:
        assert place.parent == tmp_path
        assert place.stat().st_mode & 0o777 == 0o700  # Triton runs what it finds there
    assert chosen() == dict(zip(OURS, map(str, places), strict=True))  # asked twice, made once
    for function, given, named in ends:
        function(*given, **named)
    assert not list(tmp_path.iterdir())


def test_a_home_that_can_be_written_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert chosen() == {}
    assert not list(tmp_path.iterdir())


def test_only_what_cannot_be_written_is_moved(monkeypatch, tmp_path):
    (tmp_path / ".triton").write_text("a file")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(chosen()) == ["TRITON_CACHE_DIR"]


def test_a_users_own_choice_stands(monkeypatch):
    monkeypatch.setenv("HOME", str(NO_HOME))
    monkeypatch.setenv("MPLCONFIGDIR", "/theirs")
    monkeypatch.setenv("TRITON_HOME", "/theirs")
    assert chosen() == {"MPLCONFIGDIR": "/theirs"}


def test_without_any_folder_to_write_the_library_that_needs_one_says_so(monkeypatch):
    monkeypatch.setenv("HOME", str(NO_HOME))
    monkeypatch.setattr("tempfile.tempdir", str(NO_HOME))
    assert chosen() == {}
