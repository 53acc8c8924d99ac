"""What a certificate answers: one verifier, how hard to look, and the conditions of a run."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specbench.core.machine.journal import Journal
from specbench.core.machine.provenance import environment
from specbench.core.sampling_params import SamplingParams
from specbench.exactness.certificate.certify import Certificate, certify
from specbench.exactness.evidence import Evidence
from specbench.exactness.inputs.draw import MOST_CELLS
from specbench.exactness.settings import Settings
from specbench.exactness.suite import Examination
from specbench.exactness.trials.run import Configured
from specbench.rules.rule import rule_name

CONFIGURED_VOCABULARY = 32_003  # of the calls under the conditions of a run
_LEAST_VOCABULARY = 257  # of them, where large batches of long drafts leave no room for more


def fresh_seed() -> int:
    """A seed for the calls of one certificate that no earlier one had, so that no code can be made for its inputs."""
    return secrets.randbelow(10**12)


@dataclass(frozen=True, kw_only=True)
class Question:
    """See the module.

    Attributes:
        verifier: under test: whatever somebody means to be a Verifier.
        name: what pages call it.
        suite, settings: the name of a suite, and what it stands for here (settings.settings_of).
        sampling, gamma, batch_size, dtype: conditions of a run, from which calls are drawn beside those of D; not used
            if settings.calls is 0.
        seed: request seeds on small fixtures follow from it.
        inputs_seed: of the calls drawn from D.
        command: what repeats the examination.
    """

    verifier: Any
    name: str
    suite: str
    settings: Settings
    sampling: SamplingParams
    gamma: int
    batch_size: int
    dtype: torch.dtype
    seed: int
    inputs_seed: int
    device: torch.device
    command: str

    def examine(
        self,
        report: Callable[[str], None] = lambda _: None,
        stuck: Callable[[Evidence], None] | None = None,
        journal: Journal | None = None,
        interrupted: Callable[[Evidence], None] = lambda _: None,
    ) -> Evidence:
        """Runs the suite; see :class:`specbench.exactness.suite.Examination`."""
        conditions = (self.verifier, self.settings, self.seed, self.device, self.inputs_seed, self.configured())
        return Examination(*conditions, report, stuck, journal, interrupted).run()

    def configured(self) -> Configured:
        """The conditions of the run; a smaller vocabulary where the batch would not fit into memory."""
        fits = MOST_CELLS // (self.batch_size * (self.gamma + 1))
        vocabulary = max(_LEAST_VOCABULARY, min(CONFIGURED_VOCABULARY, fits))
        dtype = str(self.dtype).removeprefix("torch.")
        return Configured.of(self.sampling, self.gamma, self.batch_size, dtype, vocabulary)

    def answer(self, evidence: Evidence) -> Certificate:
        """The certificate that follows from what ``examine`` found."""
        return certify(
            evidence,
            self.settings,
            verifier=self.name,
            rule=rule_name(self.verifier),
            declared_lossless=getattr(self.verifier, "lossless", None) is True,
            suite=self.suite,
            seed=self.seed,
            command=self.command,
            environment=environment(self.device),
        )
