"""How other projects test losslessness, re-created from the description of their tests, to show what those miss.

No code of theirs is used. ``distance_ratio`` is the heuristic of vLLM's V1 rejection sampler (V = 10, up to 1e5 draws,
the bonus token left out); ``identical_rows`` the chi-square of its V2 kernels, where all rows of p are equal and all
of q; ``first_token`` what sglang's tree sampling looks at.
"""

from __future__ import annotations

import numpy as np
import torch

from specbench.exactness.fixtures import Fixture, random_fixture
from specbench.exactness.statistics.tests import node_g_test
from specbench.exactness.steps import node_counts, verified_steps
from specbench.exactness.streams import COMPARED, request_streams
from specbench.rules.verifier import Verifier

DRAWS = 100_000
IMPROVEMENT = 20  # how much faster the distance to the target must fall than that to another distribution
FALSE_ALARM = 1e-3  # of the two chi-squares: what a project that runs them on every commit can bear


def elsewhere(verifier: Verifier, seed: int, device: torch.device) -> dict[str, bool]:
    """Whether each of the tests catches the verifier."""
    wide = random_fixture("identical", vocabulary=10, gamma=1, seed=11, identical=True).to(device)
    narrow = random_fixture("identical", vocabulary=6, gamma=2, seed=12, identical=True).to(device)
    chained = random_fixture("chained", vocabulary=6, gamma=2, seed=13).to(device)
    return {
        "distance ratio": _distance_ratio(verifier, wide, seed),
        "identical rows": _rejects(verifier, narrow, seed, slice(None)),
        "first token": _rejects(verifier, chained, seed, slice(0, 1)),
    }


def _counts(verifier: Verifier, fixture: Fixture, draws: int, seed: int) -> np.ndarray:
    """[rows, V] of ``draws`` steps."""
    device = fixture.p.device
    steps = verified_steps(verifier, fixture, request_streams(seed, COMPARED, draws, fixture.gamma + 1, device))
    return node_counts(fixture, steps)[fixture.gamma].cpu().numpy()


def _distance_ratio(verifier: Verifier, fixture: Fixture, seed: int) -> bool:
    """Euclidean distances of first tokens' shares from the target and from another distribution, 10 to 1e5 draws."""
    target = fixture.p[0].cpu().numpy()
    other = np.random.default_rng(seed).dirichlet(np.ones(len(target)))
    to_target, to_other = [], []
    for draws in (10, DRAWS):
        shares = _counts(verifier, fixture, draws, seed)[0] / draws
        to_target.append(np.linalg.norm(shares - target))
        to_other.append(np.linalg.norm(shares - other))
    return bool(to_target[0] / to_target[1] < IMPROVEMENT * to_other[0] / to_other[1])


def _rejects(verifier: Verifier, fixture: Fixture, seed: int, rows: slice) -> bool:
    """A G-test of the chosen rows."""
    counts = _counts(verifier, fixture, DRAWS, seed)[rows]
    return node_g_test(counts, fixture.p.cpu().numpy()[rows]).p_value < FALSE_ALARM
