"""Modules that moved are importable under their old names for one release, and say where they are now."""

import importlib
import sys
import warnings

import pytest

import specbench
from specbench.core._old_names import MOVED


@pytest.mark.parametrize(("old", "new"), [*MOVED.items(), ("plots.looks", "reports.plots.looks")])
def test_an_old_name_gives_what_the_new_one_has_and_warns_of_it(old: str, new: str, monkeypatch):
    for name in {old.partition(".")[0], old} - {"drafters"}:  # as if it was never imported by this name
        monkeypatch.delitem(sys.modules, f"specbench.{name}", raising=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module = importlib.import_module(f"specbench.{old}")
    assert str(warned[-1].message) == f"specbench.{old} has moved: import specbench.{new}."
    public = {
        name: value for name, value in vars(importlib.import_module(f"specbench.{new}")).items() if name[0] != "_"
    }
    assert all(getattr(module, name) is value for name, value in public.items())


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'specbench.nowhere'"):
        importlib.import_module("specbench.nowhere")
    assert not hasattr(specbench, "nowhere")
