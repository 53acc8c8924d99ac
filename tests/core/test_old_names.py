"""Modules that moved are importable under their old names for one release, and say where they are now."""

import importlib
import sys
import warnings
from itertools import accumulate

import pytest
from hydra.utils import instantiate

import specbench
from specbench import rules
from specbench.core._old_names import MOVED, RENAMED, moved_to


@pytest.mark.parametrize(("old", "new"), [*MOVED.items(), ("plots.looks", "reports.plots.looks")])
def test_an_old_name_gives_what_the_new_one_has_and_warns_of_it(old: str, new: str, monkeypatch):
    parts = old.split(".")
    for name in filter(moved_to, accumulate(parts, "{}.{}".format)):  # as if never imported by this name
        monkeypatch.delitem(sys.modules, f"specbench.{name}", raising=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module = importlib.import_module(f"specbench.{old}")
    assert str(warned[-1].message) == f"specbench.{old} has moved: import specbench.{new}."
    public = {
        name: value for name, value in vars(importlib.import_module(f"specbench.{new}")).items() if name[0] != "_"
    }
    stayed = {name: value for name, value in public.items() if f"{old}.{name}" not in MOVED}
    assert all(getattr(module, name) is value for name, value in stayed.items())


@pytest.mark.parametrize("new", RENAMED)
def test_an_old_module_has_the_old_names(new: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        olds = [importlib.import_module(f"specbench.{old}") for old, now in MOVED.items() if now == new]
    for old, renamed in RENAMED[new].items():
        assert all(getattr(module, old) is getattr(module, renamed) for module in olds)


@pytest.mark.filterwarnings("ignore:specbench.verifiers:DeprecationWarning")
def test_yamls_and_modules_that_named_verifiers_by_their_old_room_run():
    for target, name in (
        ("naive.NaiveVerifier", "token"),
        ("block.BlockVerifier", "block"),
        ("fused.FusedVerifier", "token"),
    ):
        assert instantiate({"_target_": f"specbench.verifiers.{target}"}).rule == name
    from specbench.verifiers import Verifier, batched, block  # ty: ignore[unresolved-import]
    from specbench.verifiers.base import Limits, Offers, offers  # ty: ignore[unresolved-import]

    assert isinstance(block.BlockVerifier(), Verifier)
    assert batched is rules.batched
    assert (Limits, Offers, offers) == (rules.Limits, rules.Capabilities, rules.capabilities)


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'specbench.nowhere'"):
        importlib.import_module("specbench.nowhere")
    assert not hasattr(specbench, "nowhere")
