"""Hydra's sweeper as this project needs it: plans on disk before anything starts, and launches what is not done yet.

Hydra composes the jobs and its launchers run them; plugins.py makes the class known to Hydra.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from specbench.core.errors import ConfigError, SpecbenchError
from specbench.core.machine import ranks
from specbench.core.machine.disk import WriteError, clear_temporaries, write_text
from specbench.core.machine.progress import say
from specbench.runs import config
from specbench.runs.identity import APART, identity
from specbench.runs.job import config_dir
from specbench.runs.job_count import check_number_of_jobs
from specbench.runs.launchers import check_launcher, check_parallel, check_settings, check_times, launcher_of
from specbench.runs.overrides import key_of, labels_of, spelled_out
from specbench.runs.plan import Plan, PlannedJob, claim, planning, read_plan, write_plan
from specbench.runs.signals import held_back
from specbench.runs.state import JobState, Status, read_state, write_state


@dataclass
class Asked:
    """One command: what it was asked, and what it came to. The command line and the sweeper both have it.

    Attributes:
        resume: the folder of an earlier sweep to go on with.
        folder: the sweep's; None while nothing is planned.
        refused: why jobs cannot run, by label, where not even a folder was made.
        launch_error: why the launcher gave up.
    """

    resume: Path | None = None
    folder: Path | None = None
    refused: dict[str, str] = field(default_factory=dict)
    launch_error: str | None = None


@dataclass(frozen=True)
class Composed:
    """A job as Hydra composed it, or why it cannot run."""

    job: PlannedJob
    refusal: str | None = None


class PlannedSweeper(Sweeper):
    """All combinations of what is given with commas, as Hydra's own sweeper has them; see the module.

    Args:
        max_batch_size: how many jobs the launcher gets at once; all if None.
        params: what an experiment sweeps.
    """

    current: ClassVar[Asked] = Asked()

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None):
        self.max_batch_size, self.params = max_batch_size, params
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None
        self.waiting: list[PlannedJob] = []
        self.extra: list[str] = []

    def setup(self, *, hydra_context: HydraContext, task_function: Callable[[Any], Any], config: DictConfig) -> None:
        """Plans. What is wrong with the command is found here, before anything is written.

        Raises:
            SpecbenchError: jobs that cannot be resumed, a folder that cannot be used.
        """
        self.hydra_context, self.config = hydra_context, config
        check_launcher(launcher_of(config.hydra))
        check_settings(config.hydra)
        sweep = self.current
        given: list[str] = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)  # ty: ignore
        apart = [each for each in given if key_of(each).partition(".")[0] in APART]
        rest = sweep.resume is not None and len(apart) == len(given)  # what is planned, and nothing more
        self.extra = apart if rest else []
        wanted = [] if rest else [self._composed(each) for each in self._combinations(given)]
        if wanted and all(each.refusal for each in wanted):
            labels = labels_of([each.job.overrides for each in wanted])
            sweep.refused = dict(zip(labels, (str(each.refusal) for each in wanted), strict=True))
            return
        exp = str(OmegaConf.select(config, "hydra.runtime.choices.exp") or "adhoc")
        try:
            self._follow(ranks.broadcast_from_rank0(lambda: self._plan(wanted, exp)))
        except WriteError as error:
            remedy = "Free space, or choose another folder with hydra.sweep.dir."
            raise ConfigError(
                "hydra.sweep.dir", config.hydra.sweep.dir, f"cannot be written ({error.reason})", remedy
            ) from error
        if launcher_of(config.hydra) == "joblib":
            with held_back():
                from specbench.runs.gpus import jobs_at_once  # which imports PyTorch

            with read_write(config), open_dict(config):
                config.hydra.launcher.n_jobs = jobs_at_once(config.hydra.launcher.n_jobs, config.device)
        from specbench.runs.plugins import unregister  # which imports this module

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        unregister()

    def sweep(self, arguments: list[str]) -> list[Any]:
        """Launches what is not done; the arguments are those that ``setup`` saw. Returns nothing: all is on disk."""
        if self.launcher is None:
            return []
        jobs = [[*job.overrides, *self.extra, f"hydra.sweep.subdir={job.number}"] for job in self.waiting]
        self._announce(len(jobs))
        size = self.max_batch_size or max(len(jobs), 1)
        try:
            for first in range(0, len(jobs), size):
                self.launcher.launch(jobs[first : first + size], initial_job_idx=first)
        except Exception as error:  # a worker that was killed, a queue that does not answer, a full disk
            self.current.launch_error = f"{type(error).__name__}: {error}"
        return []

    def _announce(self, waiting: int) -> None:
        folder = self.current.folder
        if self.current.resume is not None:
            say(f"{folder}: {waiting or 'none'} of its jobs left to run")
        elif waiting > 1:
            say(f"{waiting} jobs; their folder is {folder}")

    def _combinations(self, given: Sequence[str]) -> list[list[str]]:
        assert self.hydra_context is not None
        params = [f"{key}={value}" for key, value in (self.params or {}).items()]
        replaced = {key_of(each) for each in given}
        params = [each if key_of(each) in replaced else with_every_bug(each) for each in params]
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        # Imported here: Hydra executes the modules of its plugins anew when it looks for them.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        overrides = parser.parse_overrides([*params, *map(with_every_bug, given)])
        check_number_of_jobs(overrides)
        (jobs,) = BasicSweeper.split_arguments(overrides, None)
        return [[part for each in job for part in spelled_out(each)] for job in jobs]

    def _composed(self, overrides: Sequence[str]) -> Composed:
        """The job of some overrides, with all that can be checked without importing PyTorch.

        Raises:
            HydraException: overrides that do not compose.
        """
        assert self.hydra_context is not None
        assert self.config is not None
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        chosen = {key: value for key, value in composed.hydra.runtime.choices.items() if value is not None}
        choices = {key: str(value) for key, value in chosen.items() if "/" not in key}
        job = PlannedJob(-1, identity({}, {"overrides": str(overrides)})[0], "", list(overrides), choices=choices)
        try:
            check_times(composed)
            resolved = config.resolved(_own_part(composed))
            config.check(resolved)
            check_parallel(resolved["parallel"], resolved["device"])
        except SpecbenchError as error:
            return Composed(job, str(error))
        if resolved["parallel"] != "none":
            choices["ranks"] = str(ranks.size())
        name, files = identity(resolved, choices)
        return Composed(PlannedJob(-1, name, job.label, job.overrides, files, choices))

    def _plan(self, wanted: Sequence[Composed], exp: str) -> dict[str, Any]:
        """Writes the plan; returns what the other processes of a parallel run have to know of it."""
        assert self.config is not None
        sweep = self.current
        if sweep.resume is None:
            chosen = any(key_of(each) == "hydra.sweep.dir" for each in self.config.hydra.overrides.hydra)
            sweep.folder = claim(Path(self.config.hydra.sweep.dir), chosen)
        else:
            sweep.folder = sweep.resume
        _set_folder(self.config, sweep.folder)
        with planning(sweep.folder):
            plan = read_plan(sweep.folder) or Plan.new(exp, config_dir(self.config.hydra))
            if sweep.resume is not None:
                self._check_unchanged(plan, sweep.folder)
                clear_temporaries(sweep.folder)
            plan = plan.widened(each.job for each in wanted)
            write_plan(sweep.folder, plan)
        refused = {each.job.id: each.refusal for each in wanted if each.refusal}
        for job in plan.jobs:
            folder = sweep.folder / str(job.number)
            state = read_state(folder) or JobState(job.id)
            if job.id in refused:
                write_state(folder, state.begun().ending(Status.FAILED, refused[job.id]))
                write_text(folder / "error.txt", str(refused[job.id]))
            elif state.status not in (Status.DONE, Status.RUNNING):
                self.waiting.append(job)
        return {"folder": str(sweep.folder), "waiting": [dataclasses.asdict(job) for job in self.waiting]}

    def _follow(self, told: dict[str, Any]) -> None:
        """Takes what the process that planned tells."""
        self.current.folder = Path(told["folder"])
        self.waiting = [PlannedJob(**job) for job in told["waiting"]]
        assert self.config is not None
        _set_folder(self.config, self.current.folder)

    def _check_unchanged(self, plan: Plan, sweep: Path) -> None:
        """Raises ConfigError if a job of the plan would not be the same any more: rows of two questions do not mix."""
        for job in plan.jobs:
            now = self._composed([*job.overrides, *self.extra])
            if now.refusal or now.job.id == job.id.partition("-")[0]:
                continue
            keys = sorted(now.job.files.items() ^ job.files.items())
            what = " and ".join(dict.fromkeys(key for key, _ in keys)) or "the configuration"
            raise ConfigError(
                "resume",
                sweep,
                f"{what} changed since job {job.number} ({job.label}) was planned (in {plan.started_in})",
                "Put it back, go on from the folder where the sweep was started, or start a new sweep.",
            )


def with_every_bug(override: str) -> str:
    """``verifier=flawed/all`` and ``verifier.bug=all`` with the names of all bugs; any other override as it is."""
    key, _, value = override.partition("=")
    word = {"verifier": "flawed/all", "verifier.bug": "all"}.get(key)
    values = [each.strip() for each in value.split(",")]
    if word not in values:
        return override
    with held_back():
        from specbench.exactness.zoo.bugs import bugs  # which imports PyTorch
    members = ",".join(f"{word.removesuffix('all')}{bug}" for bug in bugs())
    return f"{key}={','.join(members if each == word else each for each in values)}"


def _own_part(composed: DictConfig) -> DictConfig:
    """The configuration without Hydra's, which interpolations find nevertheless, as they will in the job."""
    with read_write(composed), open_dict(composed):
        composed.hydra.job.num = 0  # the same in every place of a sweep
        composed.hydra.runtime.output_dir = "."
    HydraConfig.instance().set_config(composed)
    own = copy.copy(composed)
    with open_dict(own):
        del own["hydra"]
    return own


def _set_folder(composed: DictConfig, folder: Path) -> None:
    escaped = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(composed), open_dict(composed):
        composed.hydra.sweep.dir = str(folder)
        kept = [each for each in composed.hydra.overrides.hydra if key_of(each) != "hydra.sweep.dir"]
        composed.hydra.overrides.hydra = [*kept, f"hydra.sweep.dir='{escaped}'"]
