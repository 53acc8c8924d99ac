"""Drafters written before 0.2, by the names of then: they draft the same, and follow the batch by their old hooks."""

import pytest
import torch

from specbench.core.types import Draft
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters import Drafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.models import CachedModel, Engine, cached_draft, draft_engine
from specbench.rules.token.tree import TreeVerifier
from tests.decoding.test_engines import logs
from tests.helpers.cases import decoder
from tests.helpers.toy import toy_pair, toy_requests


class Owning(ModelDrafter):
    """Has a model of its own, as ``own`` and ``engine``, and names no caches."""

    def _attach(self, pair, target):
        self.engine = self.own = draft_engine(pair)


class Hooked(Owning):
    """Keeps the number of tokens that stand of each request too, by all hooks of then."""

    def _attach(self, pair, target):
        super()._attach(pair, target)
        self.counts, self.calls = torch.zeros(0, dtype=torch.int64), set()

    def start(self, prompts, capacity):
        super().start(prompts, capacity)
        self.counts = torch.zeros(len(prompts), dtype=torch.int64)
        self.note(prompts, range(len(prompts)), "start")

    def reserve(self, rows, capacity):
        super().reserve(rows, capacity)
        self.counts = torch.nn.functional.pad(self.counts, (0, max(rows - len(self.counts), 0)))
        self.layout += 1

    def place(self, prompts, rows):
        super().place(prompts, rows)
        self.note(prompts, rows, "place")

    def move(self, sources, targets):
        super().move(sources, targets)
        self.counts[list(targets)] = self.counts[list(sources)]
        self.calls.add("move")

    def show(self, rows, fixed=False):
        super().show(rows, fixed)
        self.calls.add("show")

    def bound(self, longest):
        super().bound(longest)
        self.calls.add("bound")

    def commit(self, agreed):
        super().commit(agreed)
        self.counts[: len(agreed)] = agreed
        self.calls.add("commit")

    def state(self):
        return (*super().state(), self.counts)

    def note(self, prompts, rows, call):
        for prompt, row in zip(prompts, rows, strict=True):
            self.counts[row] = len(prompt) - 1
        self.calls.add(call)

    def propose(self, batch, limits, streams):
        running = batch.running
        assert torch.equal(self.counts[: len(batch)][running], batch.lengths[running] - 1)
        return super().propose(batch, limits, streams)


class OwningTrees(TreeDrafter):
    def _attach(self, pair, target):
        self.engine = self.own = draft_engine(pair)


@pytest.fixture(scope="module")
def toy(pair):
    return toy_pair(pair)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine([3])], ids=["eager", "static"])
def test_old_hooks_are_called_and_draft_the_same(toy, engine):
    requests = toy_requests((9, 1, 12, 4, 6))
    expected = logs(decoder(toy, drafter=ModelDrafter()).run(requests, at_once=3))
    assert logs(decoder(toy, drafter=Owning(), engine=engine).run(requests, at_once=3)) == expected
    hooked = decoder(toy, drafter=Hooked(), engine=engine)
    assert logs(hooked.run(requests, at_once=3)) == expected
    calls = {"start", "show", "commit", "place", "move"} | ({"bound"} if engine.name == "eager" else set())
    assert hooked.components.drafter.calls >= calls - ({"move"} if engine.name == "static" else set())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine([3])], ids=["eager", "static"])
def test_old_trees_keep_their_paths(toy, engine):
    requests = toy_requests((9, 2, 5, 4))
    expected, found = (
        logs(decoder(toy, 2, drafter=kind([2]), verifier=TreeVerifier(), engine=engine).run(requests, at_once=3))
        for kind in (TreeDrafter, OwningTrees)
    )
    assert found == expected


def test_old_names_are_aliases(pair):
    assert Engine is CachedModel
    assert draft_engine is cached_draft
    target = Engine(pair.target, pair.vocab_size, "target")
    target.start([[1, 2, 3]], 8)
    output = target.extend(torch.tensor([[3, 4]]), torch.tensor([2]))
    assert torch.equal(output[:, 0], output.logits[:, 0])  # as when extend() returned logits
    drafter = ModelDrafter().bind(pair, target)
    assert drafter.engine is drafter.model


class Plain(Drafter):
    def propose(self, batch, limits, streams):
        width = streams.width - 1
        tokens = batch.span(batch.lengths - 1, 1).repeat(1, width)
        return Draft(tokens.flatten(), None, limits, width, padded=True)


def test_a_drafter_with_propose_alone_has_nothing_that_follows_the_batch(toy):
    made = decoder(toy, drafter=Plain())
    made.run(toy_requests((3, 4)))
    assert made.components.draft_caches == ()
