"""What a protocol gets and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa
import torch
from matplotlib.figure import Figure

from specbench.core.machine.journal import Journal
from specbench.rules.verifier import Verifier, capabilities
from specbench.sampling import SamplingParams
from specbench.sources import Source

if TYPE_CHECKING:  # drafters import transformers, which takes seconds, and most protocols need no model
    from specbench.drafters import Drafter


@dataclass(frozen=True)
class Together:
    """The jobs of a sweep that differ in verifier and gamma alone, and run one after the other in this process.

    Attributes:
        jobs: the numbers of this one and of the jobs without rows, in their order.
        context_of: makes the ModelContext of one of them. Raises SpecbenchError.
    """

    jobs: Sequence[int]
    context_of: Callable[[int], Any]


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What every run is made of, built and validated.

    Attributes:
        verifier_name: the choice of conf/verifier, as in results.parquet.
        title: what tells this job from the others of its sweep.
        command: the command line that repeats this job alone.
        drafter: not yet bound to models; None in a run without any.
        asked_pair: target and draft, where the command line names a pair; None where it says nothing of one.
        names_verifier: whether the command line names a verifier.
        folder: the job's; None outside a run.
        source: the engine under test, not yet opened; None if the command names none. The protocol opens and closes it.
        processors: what sampler.processors says, as JSON; empty for none.
        journal: for numbers that a user wants to see while the run goes on.
        together: the jobs of the sweep that may share their rounds with this one; None if it runs by itself.
    """

    verifier: Verifier
    verifier_name: str
    sampling: SamplingParams
    gamma: int
    batch_size: int
    seed: int
    device: torch.device
    dtype: torch.dtype
    title: str
    command: str
    drafter: Drafter | None = None
    asked_pair: tuple[str, str] | None = None
    names_verifier: bool = False
    folder: Path | None = None
    source: Source | None = None
    processors: str = ""
    journal: Journal = field(default_factory=Journal)
    together: Together | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """Fields of results.RunRow that say what the configuration's parts came to."""
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "verifier": self.verifier_name,
            "lossless": bool(getattr(self.verifier, "lossless", False)),
            "synthetic": capabilities(self.verifier).synthetic,
        }


@dataclass(frozen=True)
class ParquetTable:
    """Rows (dataclass instances or dicts, or a table that is made already) of one parquet file and their columns.

    Attributes:
        schema: the columns, or the dataclass whose fields they are.
    """

    rows: Iterable[object] | pa.Table
    schema: pa.Schema | type


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        headline: the run's result in a few words, for the console.
        measured: fields of results.RunRow.
        tables: by file name, such as "steps.parquet".
        figures: by name; each becomes a PNG in the job's folder and an image in W&B.
        documents: further files by name, as text; W&B gets them with the tables.
        failure: why the command should not exit with 0 although all was measured; None where nothing is wrong.
    """

    headline: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, ParquetTable] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None


@runtime_checkable
class MeasurementProtocol(Protocol):
    """Runs a measurement. Built from its yaml's ``_target_`` and arguments. What else it may have: ProtocolOptions.

    Attributes:
        needs_models: whether ``run`` gets a ModelContext; a protocol that does not is run without loading any.
    """

    needs_models: bool

    def run(self, context: Any) -> Outcome:
        """Measures in a ModelContext or RunContext. Raises SpecbenchError for anything the user can mend."""
        ...


Conditions = Mapping[str, str | None]  # see ProtocolOptions.own_conditions
Ignored = Mapping[str, str]  # see ProtocolOptions.ignored_parameters


@dataclass(frozen=True)
class ProtocolOptions:
    """The optional attributes of a protocol, and the default of each.

    Attributes:
        mixed_sampling: whether it goes by each request's own sampling parameters, so that lines of a workload may have
            some; otherwise such a workload is refused.
        reads_source: whether it samples from ``context.source``; otherwise a run that names one is refused.
        drafts: whether it drafts; otherwise a gamma of a workload's line is refused.
        times: whether it measures times, which jobs that run beside each other on one machine would spoil.
        own_conditions: by key of the configuration that it makes no use of (one of COLUMNS_OF in metrics/run_row.py),
            what a user should know or do instead. Columns of these keys are empty in results.parquet, and a command
            line that gives one is refused, since it would be ignored. None: the protocol itself looks at what the
            command line gives. Protocols without models need not name the keys that only models have use for.
        ignored_parameters: by sampling parameter that it makes no use of, what to do instead. A protocol that says
            nothing ignores how texts are shown, and one without models all that concerns texts.
        precheck: called with the RunContext before models are loaded; raises ConfigError.
    """

    mixed_sampling: bool = False
    reads_source: bool = False
    drafts: bool = True
    times: bool = False
    own_conditions: Conditions = field(default_factory=dict)
    ignored_parameters: Ignored | None = None
    precheck: Callable[[RunContext], None] = lambda context: None


def options_of(protocol: MeasurementProtocol) -> ProtocolOptions:
    """The optional attributes of a protocol, with defaults for those that it lacks."""
    names = [option.name for option in fields(ProtocolOptions)]
    return ProtocolOptions(**{name: getattr(protocol, name) for name in names if hasattr(protocol, name)})
