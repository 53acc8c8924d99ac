"""The protocol ``exactness``: is the verifier lossless? Ends in a certificate, as JSON and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specbench.errors import ConfigError
from specbench.exactness import tables
from specbench.exactness.bias import as_dicts, bias_rows
from specbench.exactness.calibration import p_values
from specbench.exactness.certificate import NOT_LOSSLESS, certify, markdown
from specbench.exactness.enumeration import completed, counted_ends, target_joint
from specbench.exactness.evidence import Evidence, Settings
from specbench.exactness.exact import exact_tier
from specbench.exactness.suite import examine
from specbench.plots import exactness as plots
from specbench.progress import say
from specbench.protocols.base import Outcome, RunContext, Table
from specbench.provenance import environment

LEAST_SEEDS = 20  # fewer p-values show nothing


class ExactnessProtocol:
    """See the module.

    Args:
        suite: fields of exactness.evidence.Settings.
        agreement_requests: requests a fixture put before a verifier that draws from its seeds by itself and the
            reference of its rule.
        calibration_seeds, calibration_draws: how often the small fixtures' tests are repeated on fresh seeds, and with
            how many steps each; 0 seeds skip it, and so does a verifier too slow for 20 of them.
        calibration_seconds: no further seed is begun after this long; 0 is no limit.
    """

    needs_models = False

    def __init__(
        self,
        suite: Mapping[str, Any],
        agreement_requests: int,
        calibration_seeds: int,
        calibration_draws: int,
        calibration_seconds: float | int,
    ):
        self.settings = Settings(**suite)
        for name, value, least in (
            ("agreement_requests", agreement_requests, 0),
            ("calibration_seeds", calibration_seeds, 0),
            ("calibration_draws", calibration_draws, 1),
            ("calibration_seconds", calibration_seconds, 0),
        ):
            if value < least:
                raise ConfigError(f"protocol.{name}", value, f"below {least}", f"Use {least} or more.")
        self.agreement_requests = agreement_requests
        self.calibration = (calibration_seeds, calibration_draws)
        self.calibration_seconds = calibration_seconds

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        verifier, device = context.verifier, context.device
        evidence = examine(
            verifier, self.settings, context.seed, device, lambda text: say(f"{context.verifier_name}: {text}")
        )
        exact = exact_tier(verifier, self.agreement_requests, context.seed, device)
        bias = bias_rows(evidence, exact)
        certificate = certify(
            verifier=context.verifier_name,
            rule=verifier.rule,
            declared_lossless=verifier.lossless,
            evidence=evidence,
            exact=exact,
            settings=self.settings,
            seed=context.seed,
            command=context.command,
            environment=environment(device),
            bias=[],
        )
        if certificate.verdict == NOT_LOSSLESS:
            certificate.bias.extend(as_dicts(bias))
        calibration = []
        seeds, draws = self.calibration
        a_seed = evidence.seconds * draws / max((tally.draws for tally in evidence.tallies.values()), default=1)
        in_time = self.calibration_seconds == 0 or a_seed * LEAST_SEEDS <= self.calibration_seconds
        if certificate.verdict != NOT_LOSSLESS and in_time:
            calibration = p_values(verifier, seeds, draws, context.seed, device, self.calibration_seconds)
        cells = joint_cells(evidence)
        figures = {"empirical_joint": plots.empirical_joint(cells, context.verifier_name)} if cells else {}
        if calibration:
            figures["qq"] = plots.qq([vars(each) for each in calibration], context.verifier_name)
        bound = certificate.tv_upper_bound
        return Outcome(
            f"{certificate.verdict}"
            + (f", TV at most {bound:.2g} a step on small fixtures" if bound and not bias_found(certificate) else ""),
            {},
            {
                tables.TESTS: Table(evidence.rows, tables.TESTS_SCHEMA),
                tables.EXACT: Table(exact, tables.EXACT_SCHEMA),
                tables.CALIBRATION: Table(calibration, tables.CALIBRATION_SCHEMA),
                tables.CELLS: Table(cells, tables.CELLS_SCHEMA),
                tables.BIAS: Table(bias, tables.BIAS_SCHEMA),
            },
            figures,
            {"certificate.json": certificate.json(), "certificate.md": markdown(certificate)},
        )


def bias_found(certificate: Any) -> bool:
    """Whether the verdict is that the verifier is not lossless."""
    return certificate.verdict == NOT_LOSSLESS


def joint_cells(evidence: Evidence) -> list[dict[str, Any]]:
    """Shares and probabilities of whole steps of the longest draft, completed with the target, by fixture.

    A fixture of several sets of sampling parameters is shown by the first.
    """
    rows = []
    for name, tally in evidence.tallies.items():
        if not tally.fixture.whole_prefix:
            continue
        fixture, nodes = tally.by_variant()[0]
        counts = nodes[max(fixture.counts)]
        shares = completed(fixture, counted_ends(fixture, counts)).tolist()
        probs = target_joint(fixture, fixture.gamma + 1).tolist()
        draws = int(counts[0].sum())
        for index, (share, prob) in enumerate(zip(shares, probs, strict=True)):
            digits = [index // fixture.vocabulary**i % fixture.vocabulary for i in reversed(range(fixture.gamma + 1))]
            sequence = " ".join(map(str, digits))
            rows.append({"fixture": name, "sequence": sequence, "prob": prob, "share": share, "draws": draws})
    return rows
