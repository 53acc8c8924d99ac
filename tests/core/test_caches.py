"""Caches of other libraries: where the home folder cannot be written, and where they would be begun."""

import atexit
import os
from pathlib import Path
from typing import Any

import pytest

from specbench.core.machine.caches import CACHES, OF_PYTORCH, keep_outside_clean
from tests.helpers.command_lines import NO_HOME

OF_MATPLOTLIB = (".cache/matplotlib", ".config/matplotlib")
OURS = ("TRITON_CACHE_DIR", "MPLCONFIGDIR")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable, others, *_ in CACHES:
        for name in (variable, *others):
            monkeypatch.setenv(name, "")  # so that what a test sets is taken back
            monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def chosen() -> dict[str, str]:
    keep_outside_clean()
    return {name: os.environ[name] for name in OURS if name in os.environ}


def caught(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is to be called when the process ends: functions and their arguments."""
    ends = []
    monkeypatch.setattr(atexit, "register", lambda function, *args, **kwargs: ends.append((function, args, kwargs)))
    return ends


def test_each_cache_gets_a_folder_of_its_own_that_goes(monkeypatch, tmp_path):
    ends = caught(monkeypatch)
    monkeypatch.setenv(OF_PYTORCH, "/theirs")
    monkeypatch.setenv("HOME", str(NO_HOME))
    places = [Path(place) for place in chosen().values()]
    assert len(set(places)) == len(OURS)
    for place in places:
        assert place.parent == tmp_path
        assert place.stat().st_mode & 0o777 == 0o700  # Triton runs what it finds there
    assert chosen() == dict(zip(OURS, map(str, places), strict=True))  # asked twice, made once
    for function, args, kwargs in ends:
        function(*args, **kwargs)
    assert not list(tmp_path.iterdir())


def test_a_home_that_can_be_written_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in OF_MATPLOTLIB:
        (tmp_path / name).mkdir(parents=True)
    assert chosen() == {}


@pytest.mark.parametrize("there", [(), OF_MATPLOTLIB[:1], OF_MATPLOTLIB[1:]])
def test_a_cache_of_matplotlib_is_not_begun(monkeypatch, tmp_path, there):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in there:
        (tmp_path / "home" / name).mkdir(parents=True)
    (tmp_path / "home").mkdir(exist_ok=True)
    assert list(chosen()) == ["MPLCONFIGDIR"]


def test_the_folder_that_pytorch_makes_goes_if_it_is_empty(monkeypatch, tmp_path):
    ends = caught(monkeypatch)
    for name, value in ((OF_PYTORCH, ""), ("MPLCONFIGDIR", "/theirs"), ("TRITON_HOME", "/theirs")):
        monkeypatch.setenv(name, value)
    keep_outside_clean()
    ((function, *_),) = ends
    monkeypatch.setenv(OF_PYTORCH, str(tmp_path / "of_pytorch"))
    (tmp_path / "of_pytorch").mkdir()
    (tmp_path / "of_pytorch" / "kept").touch()
    function()
    assert (tmp_path / "of_pytorch").is_dir()
    (tmp_path / "of_pytorch" / "kept").unlink()
    function()
    assert not (tmp_path / "of_pytorch").exists()
    function()  # another process was faster


def test_only_what_cannot_be_written_is_moved(monkeypatch, tmp_path):
    (tmp_path / ".triton").write_text("a file")
    for name in OF_MATPLOTLIB:
        (tmp_path / name).mkdir(parents=True)
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
