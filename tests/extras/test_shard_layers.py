"""Shards whose layers are joined, and that add up themselves: the same logits, texts and weights.

Two processes of the CPU.
"""

import copy

import jaxtyping
import pytest
import torch

from specbench.core.machine.files import Origin
from specbench.decoding.engines.static import StaticEngine
from specbench.extras.compiled import joined, products
from specbench.extras.parallel import sharding
from specbench.models import load_pair
from specbench.models.weights import load_weights, local
from tests.decoding.test_decoding import make_requests
from tests.decoding.test_engines import logs
from tests.extras.test_parallel import forked, logits, saved, sharded
from tests.helpers.cases import decoder
from tests.helpers.forked_ranks import on_ranks

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
    return logs(decoder(pair, engine=StaticEngine()).run(make_requests(pair, 3, max_new_tokens=12), 2))


def weights(model):
    return {name: local(tensor).clone() for name, tensor in model.state_dict().items()}


def shapes(model):
    return {name: (tensor.shape, sharding.is_shard(tensor)) for name, tensor in model.state_dict().items()}


def of_family(folder, config):
    """Compares what the shards of one family compute before and after they are joined."""
    source = Origin("pair.target", str(folder), "")
    model = load_weights(folder, copy.deepcopy(config), torch.float64, source, **sharding.loading())
    before, original_weights, cut = logits(model), weights(model), shapes(model)
    layers = model.config.num_hidden_layers
    counts = joined.join(model) / layers, products.install_sums(model) / layers
    again = joined.join(model), products.install_sums(model)
    after = weights(model)
    assert list(after) == list(original_weights)
    equal = all(torch.equal(after[name], weight) for name, weight in original_weights.items())
    return {
        "apart": float((logits(model) - before).abs().max() / before.std()),
        "counts": counts,
        "again": again,
        "kept": equal and shapes(model) == cut,
    }


def traced(model):
    """Whether a compiled model computes the same, and the number of sums over ranks in each of its graphs."""
    jaxtyping.config.update("jaxtyping_disable", True)  # what checks shapes cannot be traced
    plain, graphs = logits(model), []

    def backend(graph, _):
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append(sum("all_reduce" in name for name in names))
        return graph.forward

    model.forward = torch.compile(model.forward, backend=backend, dynamic=False, fullgraph=True)
    return torch.equal(logits(model), plain), graphs


@pytest.fixture(scope="module")
def seen(tmp_path_factory, thorough):
    """The results of two ranks; the texts of the embedded pair, which take longest, in the longer form alone."""
    names = FAMILIES if thorough else ("qwen3",)  # the case that make test runs
    checkpoints = {name: saved(name, tmp_path_factory.mktemp(name)) for name in names}

    def work(rank):
        results = {name: of_family(*checkpoint) for name, checkpoint in checkpoints.items()}
        if thorough:
            pair = embedded(parallel="tensor")
            results["unjoined"] = texts(pair)
            results["counts"] = [joined.join(network) for network in (pair.target, pair.draft)]
            results["installed"] = products.install_sums(pair.target)
            results["texts"] = texts(pair)
        folder, config = checkpoints["qwen3"]
        source = Origin("pair.target", "", "")
        model = load_weights(folder, copy.deepcopy(config), torch.float64, source, **sharding.loading())
        joined.join(model)
        products.install_sums(model)
        results["traced"] = traced(model)
        return results

    return on_ranks(work), checkpoints


@pytest.mark.thorough
@sharded
def test_texts_are_those_of_shards_that_are_not_joined_and_of_the_whole_model(seen):
    whole = texts(embedded())
    for result in seen[0]:
        assert result["unjoined"] == result["texts"] == whole
        assert min(result["counts"]) > 0
        assert result["installed"] > 0


@pytest.mark.cases(1)
@sharded
@pytest.mark.parametrize("name", FAMILIES)
def test_families_compute_the_same_with_the_same_weights(seen, name):
    """A bias that each rank adds, a part of another layer's product, or a layer cut otherwise that is taken for one."""
    for result in seen[0]:
        assert result[name]["counts"] == FAMILIES[name]
        assert result[name]["again"] == (0, 0)
        assert result[name]["kept"]
        assert result[name]["apart"] < NEAR


@sharded
def test_shards_are_traced_whole(seen):
    """One graph for each shape, without a break: a prompt, three tokens of two requests, two. Two sums a layer."""
    for result in seen[0]:
        assert result["traced"] == (True, [4, 4, 4])
