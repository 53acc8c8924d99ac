"""What a step of fixed shapes reads stays where it is, as long as its engine says that nothing has moved.

A CUDA graph reads the addresses that it was captured with. If a tensor moves and the engine does not notice, the graph
goes on with memory that is another tensor's by then, which no test of results finds reliably. Here no GPU is needed:
PyTorch says which tensors each operation of a static step is given, and those that the step has not made itself have
to be at the same places in all steps of one layout and shaping.
"""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.layer_skip import LayerSkipDrafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import resolve
from specbench.sampling.shaping import Shaping
from tests.decoding.test_decoding import make_requests
from tests.helpers.cases import MIXED, decoder
from tests.helpers.toy import TensorLookup

pytestmark = pytest.mark.usefixtures("unchecked")
WAYS = {
    "model": (ModelDrafter(), MaskedVerifier(), 2),
    "layer_skip": (LayerSkipDrafter(4), MaskedVerifier(), 2),
    "tree": (TreeDrafter([2, 1]), TreeVerifier(), 2),
    "prompt_lookup": (TensorLookup(), MaskedVerifier(), 2),
    "plain": (None, None, 0),
}
SPECULATIVE = [way for way in WAYS if way != "plain"]  # whose steps are shorter: planted faults are found by it
ASKED = (
    {},
    {"presence_penalty": 1.0},
    {"logit_bias": {17: 3.0, 40: -100.0}},
    {"bad_words": ["self", "return"], "min_tokens": 2},
    {"allowed_token_ids": list(range(10, 3000)), "stop_token_ids": [11, 12, 13, 14]},
)


class Reads(TorchDispatchMode):
    """Where the tensors stood that operations were given and that none of them had made: (operation, address)."""

    def __init__(self):
        super().__init__()
        self.tensors: list[tuple[str, int]] = []
        self._made: dict[int, torch.Tensor] = {}  # held, so that no address comes twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        out, name = func(*args, **(kwargs or {})), str(func)
        constant = "lift_fresh" in name  # numbers of the code's own
        places = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        if not constant:
            self.tensors += [
                (name, tensor.data_ptr())
                for tensor in tensors
                if tensor.numel() and tensor.untyped_storage().data_ptr() not in self._made
            ]
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and (constant or leaf.untyped_storage().data_ptr() not in places):
                self._made[leaf.untyped_storage().data_ptr()] = leaf
        return out


class Watched(StaticEngine):
    """Takes no step that reads what an earlier one of its layout and shaping has not read."""

    def _attach(self, parts, stopwatch):
        super()._attach(parts, stopwatch)
        self.seen, self.compared, self.trials = {}, 0, set()

    def _step_of(self, size):
        with Reads() as reads:
            numbers = super()._step_of(size)
        key = (self.layout, self.shaping, size)
        if key not in self.trials:  # memory that a first step takes is there before a capture
            self.trials.add(key)
        elif key not in self.seen:
            self.seen[key] = reads.tensors
        else:
            moved = [pair for pair in zip(self.seen[key], reads.tensors, strict=True) if pair[0] != pair[1]]
            assert not moved, f"{key}: {moved[:3]}"
            self.compared += 1
        return numbers


def requests(pair, count, changes, most, stops):
    """Of the same wishes and different samplers and prompts; ``stops`` ids may end each text."""
    made = []
    for i, request in enumerate(make_requests(pair, count)):
        params = dataclasses.replace(MIXED[i % len(MIXED)], **changes)
        sampling = resolve(params, pair.encode, pair.stop_ids, pair.vocab_size)
        parts = {"prompt": request.prompt[: 1 + 3 * i], "max_new_tokens": most, "stop_ids": frozenset(range(stops))}
        made.append(dataclasses.replace(request, sampling=sampling, **parts))
    return made


def decoded(pair, way, batches):
    """Batches of (how many, at once, wishes, tokens of each text, ids that end it), one after another."""
    drafter, verifier, gamma = WAYS[way]
    decoding = decoder(pair, gamma, drafter=drafter, verifier=verifier, engine=Watched([2, 4]))
    for count, at_once, *others in batches:
        decoding.run(requests(pair, count, *others), at_once)
    return decoding.engine


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("way", SPECULATIVE)
def test_steps_read_the_same_memory_unless_the_engine_says_so(pair, way):
    """Wishes come, widen what is kept of them, and come again; batches grow, and so do the ids that end texts."""
    wishes, ends = ((2, 2, changes, 3, 1) for changes in (*ASKED[1:], *ASKED[:3])), (1, 10, 1)
    engine = decoded(pair, way, [*wishes, *((3, 3, ASKED[0], 3, stops) for stops in ends)])
    assert engine.compared > 5
    assert len(engine.seen) > 4


def test_parameters_that_move_are_noticed(pair, monkeypatch):
    put = Shaping.put

    def elsewhere(self, rows, other):
        made = put(self, rows, other)
        return dataclasses.replace(made, presence=made.presence.clone())

    monkeypatch.setattr(Shaping, "put", elsewhere)
    with pytest.raises(AssertionError, match=r"aten\."):
        decoded(pair, "plain", [(1, 1, ASKED[1], 5, 1)] * 2)


def test_slots_that_move_are_noticed(pair, monkeypatch):
    monkeypatch.setattr(Watched, "layout", property(lambda self: StaticEngine.layout.fget(self)[1:]))
    with pytest.raises(AssertionError, match=r"aten\."):
        decoded(pair, "plain", [(1, 1, ASKED[0], 5, stops) for stops in (1, 10)])
