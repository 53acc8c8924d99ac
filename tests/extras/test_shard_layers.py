"""Shards whose layers are joined, and whose sums over ranks are ours: the same logits, texts and weights.

Two processes of the CPU. The kernel that adds up over memory which GPUs share has a stand-in here; on GPUs
tests/gpu/test_parallel_on_gpus.py runs it.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager

import jaxtyping
import pytest
import torch
import torch.distributed as dist

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin
from specbench.decoding import Decoder
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.model import ModelDrafter
from specbench.extras.compiled import joined, summed
from specbench.extras.compiled.engine import CompiledEngine
from specbench.extras.parallel import sharding
from specbench.models import CachedModel, load_pair
from specbench.models.weights import load_weights, local
from specbench.rules.token.masked import MaskedVerifier
from tests.decoding.test_decoding import make_requests
from tests.extras.test_parallel import forked, logits, saved, sharded
from tests.helpers.cases import bound
from tests.helpers.forked_ranks import on_ranks, returned

pytestmark = forked

# Products a layer, and layers that add up: norms of heads; biases; fused layers, with biases; fused ones that gather
# their output; queries and keys that do.
FAMILIES = {"qwen3": (2, 2), "qwen2": (2, 2), "gpt-neox": (0, 2), "phi3": (0, 0), "olmo2": (1, 1)}
NEAR = 1e-12  # of float64


def embedded(**how):
    """The embedded pair in float64, whole or in shards."""
    pair = load_pair("embedded:target", "embedded:draft", device="cpu", **how)
    pair.target.double()
    pair.draft.double()
    return pair


def texts(pair):
    target, drafter = CachedModel(pair.target, pair.vocab_size, "target"), bound(ModelDrafter(), pair)
    decoder = Decoder(target, drafter, MaskedVerifier(), 3, pair.stop_ids, StaticEngine())
    return [(c.token_ids, c.steps, c.finished) for c in decoder.run(make_requests(pair, 3, max_new_tokens=12), 2)]


def weights(model):
    return {name: local(each).clone() for name, each in model.state_dict().items()}


def shapes(model):
    return {name: (each.shape, sharding.is_shard(each)) for name, each in model.state_dict().items()}


def of_family(folder, config):
    """What joined shards of one family compute, beside what they computed before."""
    source = Origin("pair.target", str(folder), "")
    model = load_weights(folder, copy.deepcopy(config), torch.float64, source, **sharding.loading())
    before, held, cut = logits(model), weights(model), shapes(model)
    layers = model.config.num_hidden_layers
    counts = joined.join(model) / layers, summed.install(model, "nccl") / layers
    again = joined.join(model), summed.install(model, "nccl")
    after = weights(model)
    assert list(after) == list(held)
    return {
        "apart": float((logits(model) - before).abs().max() / before.std()),
        "counts": counts,
        "again": again,
        "kept": all(torch.equal(after[name], held[name]) for name in held) and shapes(model) == cut,
    }


class Shared:
    """A stand-in for memory that GPUs share: what is added up over it is noted."""

    def __init__(self, numbers):
        self.memory, self.sizes = torch.zeros(numbers, dtype=torch.float64), []

    def added_up(self, part, group):
        assert group == dist.group.WORLD.group_name
        assert part.data_ptr() == self.memory.data_ptr()
        self.sizes.append(part.numel())
        total = part.clone()
        dist.all_reduce(total)
        return total


@contextmanager
def with_memory(folder, config):
    """A model in shards whose sums go through memory if they are of four tokens or fewer: not those of prompts."""
    model = load_weights(
        folder, copy.deepcopy(config), torch.float64, Origin("pair.target", "", ""), **sharding.loading()
    )
    shared = Shared(4 * config.hidden_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summed, "shared_memory", lambda model: shared.memory)
        patch.setattr(summed, "_added_up", shared.added_up)
        joined.join(model)
        summed.install(model, "auto")
        yield model, shared


def refused(model, rank):
    """What becomes of memory that works on rank 0 alone, and what is said of it here."""
    said = []

    def tried(device, dtype):
        if rank == 1:
            raise RuntimeError("no room")
        return torch.zeros(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summed, "say", said.append)
        nowhere = summed.shared_memory(model)
        patch.setattr(summed, "_check", lambda device, dtype: None)
        patch.setattr(summed, "_tried", tried)
        return [nowhere, summed.shared_memory(model)], said


def traced(model):
    """Whether a compiled model computes the same, and the sums in each of its graphs, by what they go through."""
    jaxtyping.config.update("jaxtyping_disable", True)  # what checks shapes cannot be traced
    plain, graphs = logits(model), []

    def backend(graph, _):
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append(tuple(sum(kind in name for name in names) for kind in ("all_reduce", "summed_product")))
        return graph.forward

    model.forward = torch.compile(model.forward, backend=backend, dynamic=False, fullgraph=True)
    return torch.equal(logits(model), plain), graphs


@pytest.fixture(scope="module")
def seen(tmp_path_factory, thorough):
    """What two ranks found; the texts of the embedded pair, which take longest, in the longer form alone."""
    names = FAMILIES if thorough else ("qwen3", "gpt-neox")  # make test looks at the first
    checkpoints = {name: saved(name, tmp_path_factory.mktemp(name)) for name in names}

    def work(rank):
        pair = embedded(parallel="tensor")
        found = {name: of_family(*each) for name, each in checkpoints.items()}
        found["unjoined"] = texts(pair) if thorough else None
        found["counts"] = [joined.join(each) for each in (pair.target, pair.draft)]
        found["installed"] = summed.install(pair.target, "auto")
        found["texts"] = texts(pair) if thorough else None
        found["refused"] = refused(pair.target, rank)
        with with_memory(*checkpoints["gpt-neox"]) as (model, shared):
            found["biases"] = logits(model)
            found["sizes"] = [size / model.config.hidden_size for size in shared.sizes]
        with with_memory(*checkpoints["qwen3"]) as (model, _):
            found["traced"] = traced(model)
        return found

    return returned(on_ranks(work)), checkpoints


@pytest.mark.thorough
@sharded
def test_texts_are_those_of_shards_that_are_not_joined_and_of_the_whole_model(seen):
    whole = texts(embedded())
    for each in seen[0]:
        assert each["unjoined"] == each["texts"] == whole
        assert min(each["counts"]) > 0
        assert each["installed"] > 0


@pytest.mark.cases(1)
@sharded
@pytest.mark.parametrize("name", FAMILIES)
def test_families_compute_the_same_with_the_same_weights(seen, name):
    """A bias that each rank adds, a part of another layer's product, or a layer cut otherwise that is taken for one."""
    for each in seen[0]:
        assert each[name]["counts"] == FAMILIES[name]
        assert each[name]["again"] == (0, 0)
        assert each[name]["kept"]
        assert each[name]["apart"] < NEAR


@sharded
def test_small_sums_go_through_the_shared_memory(seen):
    """Of two requests with two tokens, not of a prompt of eight; the bias is added once."""
    found, checkpoints = seen
    folder, config = checkpoints["gpt-neox"]
    source = Origin("pair.target", "", "")
    whole = logits(load_weights(folder, copy.deepcopy(config), torch.float64, source))
    for each in found:
        assert (each["biases"] - whole).abs().max() < NEAR * whole.std()
        assert each["sizes"] == [4] * (2 * config.num_hidden_layers)


@sharded
def test_memory_that_one_rank_cannot_use_is_used_by_none(seen):
    """Ranks that add up in two ways would wait for each other for ever."""
    (first, said), (second, silence) = (each["refused"] for each in seen[0])
    assert first == second == [None, None]
    start = "parallel=tensor: sums over ranks go through gloo, not through shared memory: "
    assert said == [start + "device is cpu", start + "rank 1: no room"]
    assert silence == []


@sharded
def test_shards_are_traced_whole(seen):
    """One graph for each shape, without a break: a prompt, three tokens of two requests, two. Two sums a layer."""
    for each in seen[0]:
        assert each["traced"] == (True, [(4, 0), (4, 0), (0, 4)])


def test_unknown_sums_are_refused():
    with pytest.raises(ConfigError, match=r"engine\.sums=mpi: not known\. Use nccl or auto\."):
        CompiledEngine(sums="mpi")
