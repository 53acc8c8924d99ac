"""A command as a sweep: Hydra composes its jobs, which are checked, planned on disk, and given to a launcher.

Hydra's sweepers are not used: they start at once, and know nothing of jobs that are done. Its config loader composes
the jobs, and its launchers run them, in this process or in others. A single run is a sweep of one.
"""

import copy
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks  # which every launcher has to be given
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, open_dict, read_write

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError, SpecbenchError
from specbench.core.machine import ranks
from specbench.core.machine.disk import FULL, WriteError, clear_temporaries, locked, read_json, write_text
from specbench.core.machine.progress import say
from specbench.runs import config
from specbench.runs.checks import check_job, check_sweep, check_times
from specbench.runs.combinations import combinations, is_of_choice, with_every_bug, with_own_keys
from specbench.runs.commandline import Command
from specbench.runs.identity import APART, differences, identity, together_part
from specbench.runs.launchers import choices_of, make_launcher
from specbench.runs.overrides import in_quotes, key_of, labels_of
from specbench.runs.plan import LOCK, Plan, PlannedJob, claim, read_plan, write_plan
from specbench.runs.state import IDENTITY, JobState, Status, read_state, write_state

MOST_CHANGES = 3  # that a message names


@dataclass(frozen=True)
class Composed:
    """A job as Hydra composed it, or why it cannot run."""

    job: PlannedJob
    refusal: str | None = None
    identity: str = ""  # what its id is a digest of; empty if it cannot run


class JobsRefused(SpecbenchError):
    """None of a command's jobs can run."""


@dataclass(frozen=True)
class Sweep:
    """A planned sweep: its folder, and the jobs to launch."""

    folder: Path
    waiting: list[PlannedJob]


class Planner:
    """Composes the jobs of one command.

    Raises:
        HydraException: a command that Hydra cannot compose.
        ConfigError: settings under which no job runs.
    """

    def __init__(self, command: Command):
        config.register()
        # A key of a choice is composed with each job's own choice, which an experiment's yaml may sweep.
        overrides = [override for override in command.overrides if not is_of_choice(override)]
        with initialize_config_dir(str(CONF), job_name="specbench", version_base="1.3"):
            self.loader: Any = GlobalHydra.instance().config_loader()
        searched = self.loader.config_search_path
        if command.config_dir is not None:  # where hydra.main puts it
            searched.prepend("command-line", f"file://{command.config_dir}", anchor="schema")
        # The basic launcher composes jobs again when they run, of the yamls that they were planned by.
        self.loader.repository = config.Yamls(searched)
        self.command = command
        # Of all jobs: without the values that they differ in.
        self.shared = self.loader.load_configuration(command.config_name, overrides, RunMode.MULTIRUN)
        check_sweep(self.shared.hydra)

    def plan(self) -> Sweep:
        """Composes and checks the jobs, and writes the plan. What is wrong is found before anything is written.

        Raises:
            HydraException: a job that Hydra cannot compose.
            JobsRefused: why none of the jobs can run, a line each, or one if it is the same of all.
            ConfigError: jobs that cannot be resumed, a folder that cannot be used.
        """
        of_hydra = self.shared.hydra.overrides.hydra
        overrides = [override for override in self.command.overrides if override not in of_hydra]
        apart = [override for override in overrides if key_of(override).partition(".")[0] in APART]
        as_planned = self.command.resume is not None and len(apart) == len(overrides)
        self.extra = apart if as_planned else []  # not part of the plan, for the jobs of this command alone
        wanted = [] if as_planned else [self._composed(job) for job in self._jobs(overrides)]
        if wanted and all(job.refusal for job in wanted):
            reasons = dict.fromkeys(str(composed.refusal) for composed in wanted)
            labels = labels_of([composed.job.overrides for composed in wanted])
            lines = dict.fromkeys(f"{label}: {job.refusal}" for label, job in zip(labels, wanted, strict=True))
            raise JobsRefused("\n".join(reasons if len(reasons) == 1 else lines))
        try:
            folder, waiting = ranks.broadcast_from_rank0(lambda: self._written(wanted))
        except WriteError as error:
            place = os.path.join(".", self.shared.hydra.sweep.dir)  # which leaves an absolute one as it is
            remedy = "Free space there, or choose" if error.reason in FULL else "Choose"
            remedy += " another folder by hydra.sweep.dir."
            raise ConfigError("hydra.sweep.dir", place, f"cannot be written ({error.reason})", remedy) from error
        return Sweep(Path(folder), [PlannedJob(**job) for job in waiting])

    def _jobs(self, overrides: Sequence[str]) -> list[list[str]]:
        """The overrides of each job: those of the command line in place of what the experiment sweeps."""
        swept = {} if self.shared.hydra.mode == RunMode.RUN else self.shared.hydra.sweeper.params or {}
        replaced = set(map(key_of, overrides))
        # Those that are replaced stay, so that the order of the jobs and their labels is the experiment's.
        params = [(key, f"{key}={value}") for key, value in swept.items()]
        params = [override if key in replaced else with_every_bug(override) for key, override in params]
        parser = OverridesParser.create(config_loader=self.loader)
        return with_own_keys(combinations(parser.parse_overrides([*params, *map(with_every_bug, overrides)])))

    def _composed(self, overrides: Sequence[str]) -> Composed:
        """One job, with all that can be checked without importing PyTorch."""
        alone = list(overrides) == list(self.shared.hydra.overrides.task)  # which was composed with what all share
        composed = copy.deepcopy(self.shared) if alone else self.loader.load_sweep_config(self.shared, list(overrides))
        choices = choices_of(composed.hydra)
        job = PlannedJob(-1, _id_of_refused(overrides), "", list(overrides), choices=choices)
        try:
            job_config = config.as_config(_without_hydra(composed))
            check_job(job_config)
            check_times(job_config, composed.hydra)
        except SpecbenchError as error:
            return Composed(job, str(error))
        if job_config.parallel != "none":
            choices["ranks"] = str(ranks.size())
        settings = dataclasses.asdict(job_config)
        name, files, text = identity(settings, choices)
        together = together_part(settings, choices, files)
        return Composed(dataclasses.replace(job, id=name, files=files, together=together), identity=text)

    def _written(self, wanted: Sequence[Composed]) -> tuple[str, list[dict[str, Any]]]:
        """Writes the plan. Returns its folder and the jobs to launch, as the other ranks of a parallel run get them."""
        hydra, resume = self.shared.hydra, self.command.resume
        chosen = any(key_of(override) == "hydra.sweep.dir" for override in hydra.overrides.hydra)
        folder = claim(Path(hydra.sweep.dir), chosen) if resume is None else resume
        exp = str(hydra.runtime.choices.get("exp") or "adhoc")
        with locked(folder / LOCK):  # while one process changes the plan, others wait
            plan = read_plan(folder) or Plan.new(exp, self.command.config_dir)
            again = [] if resume is None else self._composed_again(plan, folder)
            if resume is not None:
                plan = dataclasses.replace(plan, jobs=[composed.job for composed in again])
                clear_temporaries(folder)
            refused = {composed.job.question: composed.refusal for composed in (*wanted, *again) if composed.refusal}
            identities = {one.job.question: one.identity for one in (*wanted, *again) if one.identity}
            if lacking := _lacking(plan, wanted):
                say(f"New jobs lack what all jobs of this sweep have: {' '.join(lacking)}. Repeat it, if it is meant.")
            plan = plan.widened(composed.job for composed in wanted)
            write_plan(folder, plan, identities)
        waiting = []
        for job in plan.jobs:
            place = folder / str(job.number)
            state = read_state(place) or JobState(job.id)
            if state.status in (Status.DONE, Status.RUNNING):
                continue
            if reason := refused.get(job.question):
                write_state(place, state.begun().ending(Status.FAILED, reason))
                write_text(place / "error.txt", reason)
            else:
                waiting.append(dataclasses.asdict(job))
        return str(folder), waiting

    def _composed_again(self, plan: Plan, folder: Path) -> list[Composed]:
        """The jobs of a plan, of which those that were refused and can run now have their ids.

        Raises:
            ConfigError: a job of the plan would not be the same any more. Rows of two questions do not mix.
        """
        again = []
        for job in plan.jobs:
            now, kept = self._composed([*job.overrides, *self.extra]), job
            if not now.refusal and job.question == _id_of_refused(job.overrides):
                own = {"id": now.job.id + job.id.removeprefix(job.question), "number": job.number, "label": job.label}
                kept = dataclasses.replace(now.job, overrides=job.overrides, **own)
            elif not now.refusal and now.job.id != job.question:
                changes = differences(read_json(folder / str(job.number) / IDENTITY), now.identity, job.files)
                more = f", and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
                what = ", ".join(changes[:MOST_CHANGES]) + more or "the configuration changed"
                raise ConfigError(
                    "resume",
                    folder,
                    f"{what} since job {job.number} ({job.label}) was planned (in {plan.started_in})",
                    "Put it back, go on from the folder where the sweep was started, or start a new sweep.",
                )
            again.append(dataclasses.replace(now, job=kept))
        return again

    def launch(self, sweep: Sweep) -> str | None:
        """Launches the jobs that wait; what becomes of each is in its folder.

        Returns:
            Why the launcher gave up; None if it did not.
        """
        folder = in_quotes(str(sweep.folder))
        jobs = [
            [*job.overrides, *self.extra, f"hydra.sweep.dir={folder}", f"hydra.sweep.subdir={job.number}"]
            for job in sweep.waiting
        ]
        if self.command.resume is not None:
            say(f"{sweep.folder}: {len(jobs) or 'none'} of its jobs left to run")
        elif len(jobs) > 1:
            say(f"{len(jobs)} jobs; their folder is {sweep.folder}")
        if not jobs:
            return None
        self.shared.hydra.sweep.dir = str(sweep.folder)
        callbacks = Callbacks(self.shared)
        callbacks.on_multirun_start(config=self.shared, config_name=self.command.config_name)
        launcher = make_launcher(HydraContext(self.loader, callbacks), self.shared)
        size = self.shared.hydra.sweeper.max_batch_size or len(jobs)
        try:
            for first in range(0, len(jobs), size):
                launcher.launch(jobs[first : first + size], initial_job_idx=first)
        except Exception as error:  # a worker that was killed, a queue that does not answer, a full disk
            return f"{type(error).__name__}: {error}"
        callbacks.on_multirun_end(config=self.shared, config_name=self.command.config_name)
        return None


def _id_of_refused(overrides: Sequence[str]) -> str:
    """The id of a job of which nothing but its words is known, since its configuration is refused."""
    return identity({}, {"overrides": str(list(overrides))}).name


def _lacking(plan: Plan, wanted: Sequence[Composed]) -> list[str]:
    """The overrides of all jobs of a plan whose keys some job that is added to it lacks."""
    if not plan.jobs or not wanted:
        return []
    keys_of_jobs = [set(map(key_of, composed.job.overrides)) for composed in wanted]
    shared = [word for word in plan.jobs[0].overrides if all(word in job.overrides for job in plan.jobs)]
    return [word for word in shared if not all(key_of(word) in keys for keys in keys_of_jobs)]


def _without_hydra(composed: DictConfig) -> DictConfig:
    """The configuration without Hydra's, which interpolations find nevertheless, as they will in the job."""
    with read_write(composed), open_dict(composed):
        composed.hydra.job.num = 0  # the same in every place of a sweep
        composed.hydra.runtime.output_dir = "."
    HydraConfig.instance().set_config(composed)
    without = copy.copy(composed)
    with open_dict(without):
        del without["hydra"]
    return without
