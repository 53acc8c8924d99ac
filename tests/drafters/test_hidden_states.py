"""Hidden states of the target reach a drafter in every kind of step: of whole passes, of the tokens that stand."""

import copy
import dataclasses
import random
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.core.errors import ArgumentError
from specbench.decoding import step
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.models import CachedModel, RowCache, cached_draft
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from tests.decoding.test_decoding import GREEDY
from tests.helpers.cases import come_and_go, decoder
from tests.helpers.families import CONFIGS, VOCABULARY, made
from tests.helpers.toy import toy_requests

ENGINES = {
    "eager": EagerEngine,
    "eager, pieces": lambda: EagerEngine(5),
    "static": lambda: StaticEngine([3]),
    "static, pieces": lambda: StaticEngine(prompt_chunk=4),
}


class States(RowCache):
    """All that was observed, at its positions."""

    def __init__(self, features, width):
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.by_name = {name: torch.zeros((0, 0, width)) for name in features}

    def reserve(self, rows, capacity):
        more = rows - len(self.counts)
        if more > 0 or capacity > next(iter(self.by_name.values())).shape[1]:
            self.counts = torch.nn.functional.pad(self.counts, (0, max(more, 0)))
            grow = (0, 0, 0, capacity, 0, max(more, 0))
            self.by_name = {name: torch.nn.functional.pad(states, grow) for name, states in self.by_name.items()}

    def feed(self, pieces, rows, first):
        self.counts[[row for row, before in zip(rows, first, strict=True) if before == 0]] = 0

    def move(self, sources, targets):
        for states in (self.counts, *self.by_name.values()):
            states[list(targets)] = states[list(sources)]


class Watching:
    """Compares at every step what was observed with a whole pass over each text."""

    features = ("last", 1, 0)

    def _attach(self, pair, target):
        super()._attach(pair, target)
        self.reference, self.compared = pair.target, Counter()
        self.states = States(self.features, pair.target.config.hidden_size)
        self.caches = (*self.caches, self.states)

    def observe(self, observation):
        lists = (tensor.tolist() for tensor in (observation.rows, observation.counts, observation.first))
        for i, (row, count, first) in enumerate(zip(*lists, strict=True)):
            if count:
                assert first == self.states.counts[row]  # nothing is missing, and nothing comes twice
                self.states.counts[row] += count
                self.tokens = observation.token_ids[i, :count].tolist()
                for name, states in observation.features.items():
                    self.states.by_name[name][row, first : first + count] = states[i, :count]

    def propose(self, batch, limits, streams):
        for row in batch.running.nonzero()[:, 0].tolist():
            length = int(batch.lengths[row]) - 1
            assert self.states.counts[row] == length
            if length:
                whole = self.reference(
                    input_ids=batch.tokens[row : row + 1, :length], use_cache=False, output_hidden_states=True
                ).hidden_states
                for name, states in self.states.by_name.items():
                    expected = whole[-1 if name == "last" else name][0]
                    assert (states[row, :length] - expected).abs().max() < 1e-4 * expected.std(), (name, row)
                    self.compared[name] += length
        return super().propose(batch, limits, streams)


class WatchingModel(Watching, ModelDrafter):
    pass


class WatchingTree(Watching, TreeDrafter):
    pass


WAYS = {
    "chain": (WatchingModel, MaskedVerifier, 3),
    "tree": (lambda: WatchingTree([2]), TreeVerifier, 2),
}


def watched(toy, way, engine):
    drafter, verifier, gamma = WAYS[way]
    return decoder(toy, gamma, drafter=drafter(), verifier=verifier(), engine=engine)


@pytest.mark.cases(4)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_observed_are_the_states_of_whole_passes(toy, way, engine):
    """Requests come, end, and take each other's rows; prompts of one token have no states, and equal ones share."""
    decoding = watched(toy, way, ENGINES[engine]())
    requests = toy_requests((9, 1, 12, 4, 9, 2, 20))
    requests[2] = dataclasses.replace(requests[2], prompt=requests[0].prompt)
    decoding.run(requests, at_once=3)
    if engine != "static":  # which has three rows
        come_and_go(decoding, toy_requests((5, 3, 1, 8)), random.Random(1), 2)
    compared = decoding.components.drafter.compared
    assert set(compared) == {"last", 1, 0}
    assert min(compared.values()) > 150


@pytest.mark.parametrize("name", CONFIGS)
def test_the_last_states_are_what_the_output_layer_reads(name):
    """Of every family; and asking for states leaves the logits as they are."""
    model, read = made(name), []
    ids, counts = torch.tensor([[6, 7], [8, 9]]), torch.tensor([2, 2])
    outputs = []
    for features in ((), ("last", 0, 1)):
        cached = CachedModel(model, VOCABULARY, name)
        cached.start([[1, 2, 3], [4, 5]], 16)
        hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: read.append(args[0]))
        outputs.append(cached.extend(ids, counts, features=features))
        hook.remove()
    assert torch.equal(outputs[0].logits, outputs[1].logits)
    assert outputs[0].features == {}
    assert torch.equal(outputs[1].features["last"], read[1])
    assert [states.shape[:2] for states in outputs[1].features.values()] == [(2, 2)] * 3


@pytest.mark.usefixtures("unchecked")
def test_compiled_steps_have_them_too(toy):
    """Traced as torch.compile does it, with and without, one after the other."""
    torch.compiler.reset()
    outputs = []
    for compiled in (False, True):
        cached = CachedModel(copy.deepcopy(toy.target), toy.vocab_size, "target")
        if compiled:
            cached.fixed_forward = torch.compile(cached.placed(cached.model), backend="eager", dynamic=False)
        for features in ((), ("last", 1), (), ("last", 1)):
            cached.start([[1, 2, 3], [4, 5]], 16)
            cached.show(2)
            outputs.append(cached.extend(torch.tensor([[6, 7], [8, 9]]), torch.tensor([2, 2]), features=features))
    for eager, traced in zip(outputs[:4], outputs[4:], strict=True):
        torch.testing.assert_close(eager.logits, traced.logits)
        assert eager.features.keys() == traced.features.keys()
        for name, states in eager.features.items():
            torch.testing.assert_close(states, traced.features[name])


class Operations(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Counted(StaticEngine):
    """Keeps the operations of its last step."""

    def _step_of(self, size):
        with Operations() as operations:
            numbers = super()._step_of(size)
        self.names = operations.names
        return numbers


@pytest.mark.usefixtures("unchecked")
def test_a_drafter_that_asks_for_none_pays_nothing(toy, monkeypatch):
    """Nothing is put together for it, and the operations of a step are the same before and after another drafter of
    the same models had features."""

    def operations(drafter):
        decoding = decoder(toy, drafter=drafter, engine=Counted([2]))
        decoding.run([dataclasses.replace(request, sampling=GREEDY) for request in toy_requests((4, 5))])
        return decoding.engine.names

    class Observing(ModelDrafter):
        features = ("last", 1)

        def observe(self, observation):
            observation.features["last"].sum()

    with monkeypatch.context() as patched:
        patched.setattr(step, "_observation", None)
        before = operations(ModelDrafter())
    assert len(operations(Observing())) > len(before)
    assert operations(ModelDrafter()) == before


def test_a_draft_of_another_vocabulary_has_none(pair):
    from tests.helpers.vocabularies import relabelled

    model = cached_draft(relabelled(pair, 3500))
    with pytest.raises(ArgumentError, match="features: .'last'.*another vocabulary"):
        model.start([[1, 2]], 8, ("last",))
