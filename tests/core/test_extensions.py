"""A hook takes a provider from outside the tree, and nothing but the command line imports an extra."""

import dataclasses
import sys
from types import SimpleNamespace

import grimp
import pytest
import torch

from specbench.core import extensions
from specbench.core.errors import ConfigError
from specbench.models import CachedModel, cached_draft, load_pair
from specbench.models.cached_model import COMPARE_RANKS
from specbench.runs.samplings import sampling_params
from specbench.sampling import SamplingParams

SAMPLER = {"processors": [], "structured_outputs": {"regex": "a"}}


def only_stops(logits, history):
    return logits


def check(kind, text):
    if text == "bad":
        raise ConfigError("sampler.structured_outputs", text, "refused by the provider", "Give another.")


@pytest.fixture
def backend(monkeypatch):
    """A provider of structured outputs that is a module of a user's."""

    def constrain(sampling, tokenizer, vocabulary, stop_ids):
        return dataclasses.replace(sampling, processors=(only_stops,), top_k=vocabulary)

    monkeypatch.setitem(sys.modules, "my_backend", SimpleNamespace(check=check, constrain=constrain))
    monkeypatch.setattr(extensions, "_PROVIDERS", dict(extensions._PROVIDERS))
    extensions.provide("structured_outputs", "my_backend")


def test_another_backend_compiles_structures_and_keeps_texts_to_them(backend, pair):
    resolved = pair.resolved(sampling_params(SAMPLER))
    assert resolved.processors == (only_stops,)
    assert resolved.top_k == pair.vocab_size
    assert pair.resolved(SamplingParams(top_k=3)).processors == ()


def test_another_backend_refuses_a_structure_before_any_model(backend):
    with pytest.raises(ConfigError, match="refused by the provider"):
        sampling_params({**SAMPLER, "structured_outputs": {"regex": "bad"}})


class AllShared:
    """What two vocabularies share, as a provider of a user's returns it."""

    shared = torch.ones(4096, dtype=torch.bool)

    def words(self):
        return "all"


def test_a_provider_of_vocabularies_makes_the_engine_of_the_draft(pair, monkeypatch):
    engine, calls = CachedModel(pair.draft, pair.vocab_size, "draft"), []
    made = SimpleNamespace(cached_draft=lambda *args: calls.append(args) or engine)
    monkeypatch.setitem(sys.modules, "my_vocabularies", made)
    monkeypatch.setattr(extensions, "_PROVIDERS", {"different_vocabularies": "my_vocabularies"})
    shared = AllShared()
    assert cached_draft(dataclasses.replace(pair, translation=shared)) is engine
    assert calls == [(pair.draft, shared, "draft", pair.target.dtype)]


def test_a_provider_of_shards_loads_the_target_and_compares_its_steps(monkeypatch):
    joined = []

    def load(model, dtype, device):
        loaded = model.load(dtype, device)
        vars(loaded)[COMPARE_RANKS] = compare
        return loaded

    def compare(logits, *tokens):
        return torch.zeros(len(logits), dtype=torch.bool)

    made = SimpleNamespace(
        applies=lambda parallel: parallel == "mine", join=lambda *args: joined.append(args), load=load
    )
    monkeypatch.setitem(sys.modules, "my_shards", made)
    monkeypatch.setattr(extensions, "_PROVIDERS", {"parallel": "my_shards"})
    loaded = load_pair("embedded:target", "embedded:draft", device="cpu", parallel="mine")
    assert [str(device) for _, device in joined] == ["cpu"]
    assert CachedModel(loaded.target, loaded.vocab_size, "target").compare_ranks is compare
    assert CachedModel(loaded.draft, loaded.vocab_size, "draft").compare_ranks is None


def test_no_room_imports_an_extra():
    """The layers of pyproject.toml say so of the rooms below; here, of all, the command line too."""
    graph = grimp.build_graph("specbench", exclude_type_checking_imports=True, cache_dir=None)
    extras = {name for name in graph.modules if name.startswith("specbench.extras.")}
    importers = {name for extra in extras for name in graph.find_modules_that_directly_import(extra)} - extras
    assert extras
    assert importers <= {"specbench.extras"}
