"""The protocol ``exactness``: is the verifier lossless? Ends in a certificate, as JSON and Markdown.

Its tables also say which test would catch the verifier, after how many draws: on flawed verifiers (``+exp=flawed_zoo``)
this shows what each test is good for.
"""

import os
from typing import Any

import pandas as pd
import torch

from specbench.core.checks import check_count
from specbench.core.machine.disk import write_text
from specbench.core.machine.progress import say
from specbench.core.sampling_params import LARGEST_SEED
from specbench.exactness import tables
from specbench.exactness.certificate import BROKEN, NOT_LOSSLESS, NOT_REJECTED, Certificate, certificate_of
from specbench.exactness.evidence import Evidence
from specbench.exactness.inputs import fresh_seed
from specbench.exactness.settings import settings_of
from specbench.exactness.suite import Examination
from specbench.exactness.trials.run import CONFIGURED, configured_stratum
from specbench.exactness.verdict import breaks_lossy_rule, names_another_rule
from specbench.metrics.exactness_rows import CELLS
from specbench.metrics.run_row import emptied
from specbench.protocols.protocol import Outcome, ParquetTable, RunContext
from specbench.protocols.settings import check_no_history
from specbench.reports.plots import exactness as plots

JSON, PAGE = "certificate.json", "certificate.md"
CONFIGURED_KEYS = ("gamma", "sampler", "batch_size", "dtype")  # read by the calls under the conditions of the run
NO_CALLS = "It is for calls drawn from D, and protocol.calls=0 leaves them out."


class ExactnessProtocol:
    """See the module.

    Args:
        suite: the name of a set of settings, exactness.settings.SUITES.
        inputs_seed: of the calls drawn from D; None takes a fresh one from the operating system.
        settings: fields of exactness.settings.Settings, which take the place of the suite's own unless they are None.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False

    def __init__(self, suite: str = "default", inputs_seed: int | None = None, **settings: Any):
        self.suite, self.settings = suite, settings_of(suite, **settings)
        self.inputs_seed = (
            None if inputs_seed is None else check_count("protocol.inputs_seed", inputs_seed, 0, LARGEST_SEED)
        )
        self.own_conditions = {} if self.settings.calls else dict.fromkeys(CONFIGURED_KEYS, NO_CALLS)

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        examination = self.examination(context)
        command = context.command
        if self.inputs_seed is None:
            command = f"{command} protocol.inputs_seed={examination.inputs_seed}"
        certified = examination, context.verifier_name, self.suite, command

        def save(_: Evidence) -> None:
            """Saves what there is of a run that leaves no row."""
            certificate = certificate_of(*certified)
            if context.folder is not None:
                write_text(context.folder / JSON, certificate.json())
                write_text(context.folder / PAGE, certificate.page)
            say(f"{certificate.headline}; {_place(context)}", style="bold red")

        def stuck(evidence: Evidence) -> None:
            """Ends the process, since a call that hangs in compiled code never will."""
            save(evidence)
            os._exit(1)

        examination.stuck, examination.interrupted = stuck, save
        evidence = examination.run()
        certificate = certificate_of(*certified)
        made = tables.tables_of(evidence, self.settings)
        cells, _ = made[CELLS]
        figures = (
            {"empirical_joint": plots.empirical_joint(pd.DataFrame(cells), context.verifier_name)} if cells else {}
        )
        return Outcome(
            f"{certificate.headline}; {_place(context)}",
            {} if any(row.stratum == CONFIGURED for row in evidence.inputs) else emptied(CONFIGURED_KEYS),
            {name: ParquetTable(rows, kind) for name, (rows, kind) in made.items()},
            figures,
            {JSON: certificate.json(), PAGE: certificate.page},
            failure=_failure(certificate, evidence),
        )

    def examination(self, context: RunContext) -> Examination:
        """The suite of a run. Raises ConfigError for requests that depend on earlier text."""
        check_no_history(context)
        return Examination(
            verifier=context.verifier,
            settings=self.settings,
            seed=context.seed,
            device=context.device,
            inputs_seed=fresh_seed() if self.inputs_seed is None else self.inputs_seed,
            configured=configured_stratum(context.sampling, context.gamma, context.batch_size, context.dtype),
            report=lambda text: say(f"{context.verifier_name}: {text}"),
            journal=context.journal,
        )


def _failure(certificate: Certificate, evidence: Evidence) -> str | None:
    """Why the run should not exit with 0: it is broken, or it is not what it says that it is, lossless or of a rule."""
    if certificate.verdict == BROKEN:
        return " ".join(certificate.words)
    if certificate.verdict == NOT_LOSSLESS and certificate.declared_lossless:
        return f"it is declared lossless and is {certificate.headline}"
    if certificate.verdict == NOT_LOSSLESS and breaks_lossy_rule(evidence):
        return f"it does not follow the rule {certificate.rule} that it names: {certificate.headline}"
    if certificate.verdict == NOT_REJECTED and names_another_rule(evidence):
        return f"it names the rule {certificate.rule} and emits other tokens: {certificate.headline}"
    return None


def _place(context: RunContext) -> str:
    return f"certificate: {os.path.relpath(context.folder / PAGE) if context.folder is not None else PAGE}"
