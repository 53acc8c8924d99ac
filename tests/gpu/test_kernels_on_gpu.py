"""What only a GPU has: CUDA graphs and compilation of the verification kernel.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.kernels import launch
from specbench.rules.agreement import classify
from specbench.rules.fused import FusedVerifier
from specbench.rules.rule import rule_of
from tests.helpers.kernel_cases import CASES, GREEDY, RULES, WARM, Case, on_a_gpu, step

pytestmark = pytest.mark.usefixtures("poison", "few_programs")


@on_a_gpu
@RULES
def test_a_batch_larger_than_a_gpu_holds_at_once(block):
    """Emitting programs wait for scoring ones that start while others end, and chunks hold several tiles."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 5, (1500,), generator=generator).tolist()
    verifier, arguments = FusedVerifier(block=block), step(Case(counts, 4099, "", [WARM, GREEDY]), 0)
    expected = rule_of(verifier).reference.verify(*arguments)
    for _ in range(3):
        differences = classify(verifier.rule, *arguments, expected, verifier.verify(*arguments))
        assert len(differences.wrong) == 0
        assert len(differences.requests) < 5  # more draws next to a step of a cumulative sum are not expected


@on_a_gpu
@RULES
def test_a_graph_replays_with_new_inputs(block):
    verifier = FusedVerifier(block=block)
    first, second = step(CASES["ragged"], 1), step(CASES["ragged"], 2)
    expected = verifier.verify(*second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = verifier.verify(*first)
    for old, new in zip(first, second, strict=True):
        for name in ("logits", "token_ids", "num_draft_tokens", "seeds", "positions", "log_normalizer"):
            for mine, theirs in ((old, new), (getattr(old, "rows", None), getattr(new, "rows", None))):
                if isinstance(getattr(mine, name, None), torch.Tensor):
                    getattr(mine, name).copy_(getattr(theirs, name))
    for _ in range(3):
        graph.replay()
        assert torch.equal(out.token_ids, expected.token_ids)
        assert torch.equal(out.num_accepted, expected.num_accepted)


@on_a_gpu
def test_a_capture_without_memory_is_refused():
    arguments = step(CASES["ragged"], 1)
    FusedVerifier().verify(*arguments)  # compiled
    with pytest.raises(ArgumentError, match="workspace"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        FusedVerifier().verify(*arguments)
    torch.cuda.synchronize()


@on_a_gpu
def test_batch_and_gamma_do_not_compile_again():
    verifier = FusedVerifier()
    verifier.verify(*step(Case([4, 4], 2100, ""), 0))
    compiled = launch.verify_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(compiled)
    for counts in ([1], [2] * 16, [3, 0, 1], [8] * 5, [1] * 17):
        verifier.verify(*step(Case(counts, 2100, ""), 0))
    assert len(compiled) == before
