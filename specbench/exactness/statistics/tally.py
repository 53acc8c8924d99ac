"""Counts of one verifier on one fixture, and the tests of them."""

import numpy as np
import torch
from scipy import stats

from specbench.exactness.enumeration.laws import counted_ends, joint_tv, rule_lengths
from specbench.exactness.fixtures import Fixture
from specbench.exactness.statistics.g_tests import GTest, node_g_test
from specbench.exactness.steps import Steps, length_counts, node_counts
from specbench.rules.rule import Rule

ROUNDING = 1e-6  # share of steps that may accept a number of tokens which the rule, computed exactly, never does
_NEVER = 1e-9  # chance that a verifier with so large a share is found out by the count of them


class Tally:
    """Counts of verified steps.

    Args:
        fixture: small, on any device.
        rule: the verifier's; its acceptance is tested if the formulas of the rule are known.
    """

    def __init__(self, fixture: Fixture, rule: Rule):
        self.fixture, self.rule = fixture, rule
        self.draws = 0
        classes, device = fixture.gamma + 1, fixture.p.device
        self._nodes = torch.zeros((classes, *fixture.p.shape), dtype=torch.int64, device=device)
        self._lengths = torch.zeros((classes, classes), dtype=torch.int64, device=device)
        self.malformed = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, steps: Steps) -> None:
        """Counts the steps; nothing is copied to the host."""
        self.draws += len(steps.malformed)
        self._nodes = self._nodes + node_counts(steps)
        self._lengths = self._lengths + length_counts(steps)
        self.malformed = self.malformed + steps.malformed.sum()

    def nodes(self) -> np.ndarray:
        """[classes, rows, V], emitted tokens by num_draft_tokens and row."""
        return self._nodes.cpu().numpy()

    def lengths(self) -> np.ndarray:
        """[classes, lengths], steps by num_draft_tokens and accepted tokens."""
        return self._lengths.cpu().numpy()

    def joint(self) -> GTest:
        """The test of the joint distribution over a whole step."""
        nodes = self.nodes()
        probs = np.broadcast_to(self.fixture.p.cpu().numpy(), nodes.shape)
        return node_g_test(nodes.reshape(-1, nodes.shape[-1]), probs.reshape(-1, nodes.shape[-1]))

    def acceptance(self) -> GTest | None:
        """Whether as many tokens are accepted as the rule says, but for rounding. Not a test of losslessness."""
        if not self.rule.has_law:
            return None
        lengths, probs = self.lengths(), rule_lengths(self.rule, self.fixture).numpy()
        # Where p = q a sound kernel refuses one token in 1e7, since float32 places its threshold a little below 1; that
        # may be the very first.
        if lengths[probs == 0].sum() <= stats.poisson.isf(_NEVER, ROUNDING * lengths.sum()):
            lengths = np.where(probs == 0, 0, lengths)
        return node_g_test(lengths, probs)

    def mean_accepted(self) -> float:
        """Drafted tokens accepted, a step."""
        lengths = self.lengths()
        return float((lengths * np.arange(lengths.shape[1])).sum() / lengths.sum())

    def observed_tv(self) -> float:
        """Total variation of the empirical joint from the target's, noise included.

        The largest over draft lengths and variants.
        """
        return max(
            joint_tv(variant, counted_ends(variant, nodes[c]))
            for variant, nodes in self.by_variant()
            for c in set(self.fixture.counts)
            if c or nodes[c].sum()
        )

    def by_variant(self) -> list[tuple[Fixture, torch.Tensor]]:
        """Each variant of the fixture with the counts of its own rows."""
        parts = torch.from_numpy(self.nodes()).chunk(self.fixture.variants, dim=1)
        return [(self.fixture.variant(i), part) for i, part in enumerate(parts)]
