"""What a certificate answers: one verifier, how hard to look, and the conditions of its own regime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specbench.exactness.bias import as_dicts, bias_rows
from specbench.exactness.certificate.certify import Certificate, certify
from specbench.exactness.certificate.verdict import NOT_LOSSLESS
from specbench.exactness.evidence import Evidence, Settings
from specbench.exactness.fixtures import Regime, as_configured, regimes
from specbench.exactness.suite import examine
from specbench.journal import Journal
from specbench.provenance import environment
from specbench.rules import known
from specbench.sampling_params import SamplingParams

CONFIGURED_VOCABULARY = 32_003  # of the regime with the asker's own sampler and gamma


@dataclass(frozen=True, kw_only=True)
class Question:
    """See the module.

    Attributes:
        verifier: under test: whatever somebody means to be a Verifier.
        name: what pages call it.
        suite, settings: the name of a suite, and what it stands for here (evidence.settings_of).
        sampling, gamma, batch_size, dtype: of one regime more, beside those of every certificate; not used if
            settings.vocabulary is 0, which leaves out all regimes.
        seed: request seeds follow from it.
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
    device: torch.device
    command: str

    def examine(
        self,
        report: Callable[[str], None] = lambda _: None,
        stuck: Callable[[Evidence], None] | None = None,
        journal: Journal | None = None,
    ) -> Evidence:
        """Runs the suite; see :func:`specbench.exactness.suite.examine`."""
        asked = (self.verifier, self.settings, self.seed, self.device)
        return examine(*asked, regimes=self.regimes(), report=report, stuck=stuck, journal=journal)

    def regimes(self) -> tuple[Regime, ...]:
        """Those of every certificate, and the asker's own."""
        if not self.settings.vocabulary:
            return ()
        vocabulary = min(CONFIGURED_VOCABULARY, self.settings.vocabulary)
        dtype = str(self.dtype).removeprefix("torch.")
        own = as_configured(self.sampling, self.gamma, self.batch_size, dtype, vocabulary)
        return (*regimes(self.settings.vocabulary), own)

    def answer(self, evidence: Evidence) -> Certificate:
        """The certificate that follows from what ``examine`` found."""
        certificate = certify(
            verifier=self.name,
            rule=known.name_of(self.verifier),
            declared_lossless=getattr(self.verifier, "lossless", None) is True,
            evidence=evidence,
            suite=self.suite,
            settings=self.settings,
            seed=self.seed,
            command=self.command,
            environment=environment(self.device),
            bias=[],
        )
        if certificate.verdict == NOT_LOSSLESS:
            certificate.bias.extend(as_dicts(bias_rows(evidence)))
        return certificate
