"""Scratch memory that a captured CUDA graph writes to stays where it is when later launches need more."""

import weakref

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.decoding.engines import graph
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.graph import GraphEngine
from specbench.kernels import launch, launch_tally, workspace
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.decoding.test_engines import logs
from tests.gpu.test_drafters_on_gpu import embedded
from tests.gpu.test_engines_on_gpu import decoder
from tests.helpers import kernel_cases
from tests.helpers.kernel_cases import on_a_gpu

DEVICE = torch.empty(0, device=kernel_cases.DEVICE).device  # with its number, as tensors have it


def of_verification():
    workspace = launch.Workspace()
    return lambda batch: workspace.scratch(batch, 4, 8, 16, DEVICE).total


def of_counts():
    counts = launch_tally.Counts(300)

    def reserve(batch):
        counts.reserve(batch, DEVICE)
        return counts.counts

    return reserve


@pytest.mark.parametrize("made", [of_verification, of_counts])
@pytest.mark.parametrize("captured", [True, False])
def test_memory_of_a_graph_outlives_growth_and_no_other_does(monkeypatch, made, captured):
    take, capturing = made(), []
    for module in (workspace, launch_tally):
        monkeypatch.setattr(module, "captures", lambda _: bool(capturing))
    first = weakref.ref(take(2))
    if captured:
        capturing.append(True)
        assert take(2) is first()
        with pytest.raises(ArgumentError, match="captur"):
            take(3)
        capturing.clear()
    second = weakref.ref(take(3))
    assert (first() is not None) == captured
    take(2)
    take(4)
    assert (first() is not None) == captured
    assert second() is None  # no graph has it


def test_a_workspace_has_no_more_than_it_got_before_memory_ran_out(monkeypatch):
    """It took itself for one of the size that failed, and gave its old memory to batches that write beyond it."""
    take = of_verification()
    size = len(take(2))

    def none_left(*_, **__):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as full:
        full.setattr(torch, "empty", none_left)
        with pytest.raises(torch.OutOfMemoryError):
            take(5)
    assert len(take(2)) == size
    assert len(take(3)) > size


@on_a_gpu
def test_a_verifier_that_others_use_for_larger_batches(monkeypatch):
    """Before, replays wrote to memory that had become another tensor's."""
    pair, workspace = embedded(), launch.Workspace()
    requests = make_requests(pair, 16, SamplingParams(temperature=0.8, presence_penalty=0.5))
    small, large = decoder(pair, GraphEngine()), decoder(pair, GraphEngine())
    for components in (small.components, large.components):
        monkeypatch.setattr(components.verifier, "_workspace", workspace)
    expected = logs(small.run(requests[:2]))
    large.run(requests)
    taken = [torch.full((size,), 2**30, dtype=torch.int32, device="cuda") for size in range(64, 2**16, 64)]
    assert logs(small.run(requests[:2])) == expected
    assert all((tensor == 2**30).all() for tensor in taken)


@on_a_gpu
def test_graphs_of_many_ways_to_shape_distributions(monkeypatch):
    """Those used last are kept, and what was forgotten is captured again."""
    monkeypatch.setattr(graph, "SHAPINGS", 2)
    pair, engine = embedded(), GraphEngine([2])
    captured = decoder(pair, engine)
    shapings = [SamplingParams(presence_penalty=0.5), SamplingParams(logit_bias={17: 3.0}), SamplingParams(top_k=5)]
    texts = []
    for sampling in (*shapings, *shapings):
        texts.append(logs(captured.run(make_requests(pair, 2, sampling))))
        assert len(captured.engine._graphs) <= 2
    assert texts[:3] == texts[3:]
    assert texts[:3] == [
        logs(decoder(pair, EagerEngine()).run(make_requests(pair, 2, shaping))) for shaping in shapings
    ]
