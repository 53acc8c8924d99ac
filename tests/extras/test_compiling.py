"""What torch.compile makes of a commit does what the plain operations do."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from specbench.core.types import PADDING
from specbench.decoding.commit import commit
from specbench.decoding.step_result import BAD_DRAFT, BAD_TARGET, FINITE, RANKS_DIFFER
from specbench.extras.compiled.compiling import OuterProducts, compile_fixed
from specbench.sampling.batch import FAILED, FULL, RUNNING, STOPPED

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


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("terms", [1, 2])
def test_products_of_one_term_become_multiplications(terms, batch):
    left, right = torch.randn(*batch, 3, terms), torch.randn(*batch, terms, 5)
    made = make_fx(lambda a, b: a @ b, tracing_mode="fake")(left, right)
    OuterProducts()(made.graph)
    made.recompile()
    assert ("aten.mul" in made.code) == (terms == 1)
    assert torch.equal(made(left, right), left @ right)
