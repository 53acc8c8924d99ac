"""What torch.compile makes of a step's small functions does what the plain operations do."""

import functools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from specbench.core.fusion import fused_by
from specbench.core.types import PADDING
from specbench.decoding.commit import commit
from specbench.decoding.engines.static import StaticEngine
from specbench.decoding.step_result import BAD_DRAFT, BAD_TARGET, FINITE, RANKS_DIFFER
from specbench.extras.compiled.compiling import OuterProducts, compile_fixed
from specbench.models import recompiling
from specbench.sampling.batch import FAILED, FULL, RUNNING, STOPPED
from specbench.sampling.rows import _uncut
from tests.decoding.test_engines import logs
from tests.helpers.toy import toy_decoder, toy_pair, toy_requests

GAMMA, VOCABULARY = 2, 64


@pytest.fixture
def block():
    """Eight requests: two go on, and the others end by a stop token, their limit, NaN, inf, nothing to draw, ranks."""
    requests = 8
    lengths = torch.full((requests,), 4)
    limits, finished = torch.where(torch.arange(requests) == 2, 6, 9), torch.full((requests,), RUNNING)
    texts = (
        torch.arange(requests * 12).view(requests, 12),
        lengths,
        limits,
        finished,
        torch.tensor([[7, PADDING]] * 8),
    )
    emitted = torch.tensor(
        [[5, 6, 8], [7, 5, 6], [5, 6, 8], [5, 6, 8], [5, 6, 8], [5, PADDING, PADDING], *[[5, 6, 8]] * 2]
    )
    accepted = torch.tensor([2, 2, 2, 2, 2, 1, 2, 0])
    draft, target = torch.zeros(requests * GAMMA, VOCABULARY), torch.zeros(requests * (GAMMA + 1), VOCABULARY)
    draft[3 * GAMMA, 9], target[4 * (GAMMA + 1) + GAMMA, 63] = torch.nan, torch.inf
    target[7 * (GAMMA + 1) + GAMMA, 1] = torch.nan  # a row that no token was drafted for
    counts = torch.tensor([GAMMA] * 7 + [1])
    return texts, emitted, accepted, counts, draft, target, torch.arange(8) == 6


@pytest.mark.usefixtures("unchecked")
def test_a_compiled_commit_writes_what_a_plain_one_does(block):
    *_, finished, bad = plain = commit(*block)
    assert finished.tolist() == [RUNNING, STOPPED, FULL, FAILED, FAILED, FAILED, FAILED, RUNNING]
    assert bad.tolist() == [FINITE] * 3 + [BAD_DRAFT, BAD_TARGET, FINITE, RANKS_DIFFER, FINITE]
    with torch.inference_mode():
        compiled = compile_fixed(commit, early=False)(*block)
    assert all(map(torch.equal, compiled, plain))


class FusedEngine(StaticEngine):
    """Takes steps whose small functions torch.compile has traced, each as one graph."""

    def _attach(self, components, stopwatch):
        super()._attach(components, stopwatch)
        self.fused = set()

    def _step_of(self, size):
        with fused_by(self._traced):
            return super()._step_of(size)

    @functools.cache  # noqa: B019
    def _traced(self, function):
        self.fused.add(function.__name__)
        return recompiling.compiled(function, 256, backend="aot_eager", dynamic=False, fullgraph=True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("gamma", [0, 3])
def test_steps_of_compiled_functions_emit_what_plain_steps_do(pair, gamma):
    toy, requests = toy_pair(pair, "llama"), toy_requests((6, 3))
    eager = logs(toy_decoder(toy, gamma=gamma).run(requests, 2))
    decoding = toy_decoder(toy, engine=FusedEngine(), gamma=gamma)
    assert logs(decoding.run(requests, 2)) == eager
    drafting = {"span", "_behind_last", "_interleaved"} if gamma else set()
    assert decoding.engine.fused == {"_free_tokens", "_fed", "_following", "_uncut", "commit"} | drafting


def test_cutoffs_are_computed_from_something():
    """A kernel that reads nothing does not wait, for which no other would start early (early_code.py)."""
    _, cutoffs = _uncut(torch.tensor([torch.nan, 1.0], dtype=torch.float64), 2)
    assert cutoffs.isnan().tolist() == [True, True, False, False]
    assert cutoffs[2:].tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("terms", [1, 2])
def test_products_of_one_term_become_multiplications(terms, batch):
    left, right = torch.randn(*batch, 3, terms), torch.randn(*batch, terms, 5)
    made = make_fx(lambda a, b: a @ b, tracing_mode="fake")(left, right)
    OuterProducts()(made.graph)
    made.recompile()
    assert ("aten.mul" in made.code) == (terms == 1)
    assert torch.equal(made(left, right), left @ right)
