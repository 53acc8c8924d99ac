"""A sweep's plan: its jobs, written before the first of them starts, and the commands that run them again."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.machine.disk import WriteError, beside, read_json, write_json, write_text, writing
from specbench.runs.overrides import key_of, labels_of, values_of
from specbench.runs.state import IDENTITY, STATE, JobState, write_state

PLAN, LOCK, LATEST = "plan.json", "plan.lock", "latest"
OUTPUTS = Path("outputs")
ONE = f"Give a folder of outputs/<exp>/<time>, or {LATEST} for the one that was begun last."


@dataclass(frozen=True)
class PlannedJob:
    """One job.

    Attributes:
        number: the name of its folder, and its place in the order of the plan.
        id: what determines its numbers (identity.py); of two jobs that ask the same, the second has ``-2`` behind it.
        label: what tells it from the other jobs of the plan.
        overrides: of the command line, from which Hydra composes it.
        files: digests of the files that it reads, by configuration key.
        choices: of conf, by group; empty in plans that are older than this.
        together: of a job that may share its rounds with others: its ``verifier`` and ``gamma``, and ``rest``, a digest
            of its other settings.
    """

    number: int
    id: str
    label: str
    overrides: Sequence[str]
    files: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    together: dict[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """What the job asks: its id without the number that jobs have that ask the same."""
        return self.id.partition("-")[0]


@dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes:
        created: UTC, ISO 8601.
        started_in: the folder that relative paths lead from.
        config_dir: the user's own configurations (``--config-dir``).
        begun_with: the number of jobs before ``resume=`` added more; 0 in plans that are older than this.
    """

    exp: str
    created: str
    started_in: str
    config_dir: str | None
    jobs: list[PlannedJob]
    begun_with: int = 0

    @staticmethod
    def new(exp: str, config_dir: str | None) -> Plan:
        return Plan(exp, datetime.now(UTC).isoformat(), os.getcwd(), config_dir, [])

    def widened(self, wanted: Iterable[PlannedJob]) -> Plan:
        """With the jobs that are not there yet, numbered from where this plan ends."""
        jobs, counts = list(self.jobs), Counter[str]()
        there = {job.id for job in jobs}
        for job in wanted:
            counts[job.id] += 1
            name = job.id if counts[job.id] == 1 else f"{job.id}-{counts[job.id]}"
            if name not in there:
                jobs.append(dataclasses.replace(job, id=name, number=len(jobs)))
        labels = labels_of([job.overrides for job in jobs])
        relabelled = [dataclasses.replace(job, label=label) for job, label in zip(jobs, labels, strict=True)]
        return dataclasses.replace(self, jobs=relabelled, begun_with=self.begun_with or len(self.jobs) or len(jobs))

    def sharing_rounds(self, number: int) -> list[PlannedJob]:
        """Returns the jobs that may share their rounds with a job (protocol.together), itself among them; else none."""
        rest = next((job.together.get("rest") for job in self.jobs if job.number == number), None)
        return [job for job in self.jobs if rest is not None and job.together.get("rest") == rest]


def read_plan(sweep: Path) -> Plan | None:
    """The plan of a sweep's folder; None if there is none, or none that can be read."""
    written = read_json(sweep / PLAN)
    try:
        plan = Plan(jobs=[PlannedJob(**job) for job in written.pop("jobs")], **written)
        texts = [plan.exp, plan.created, plan.started_in]
        texts += [part for job in plan.jobs for part in (job.id, *job.overrides)]
    except (AttributeError, TypeError, KeyError):
        return None
    numbered = [job.number for job in plan.jobs] == list(range(len(plan.jobs)))
    sound = plan.jobs and numbered and all(isinstance(job.overrides, list) for job in plan.jobs)
    return plan if sound and all(isinstance(text, str) for text in texts) else None


def write_plan(sweep: Path, plan: Plan, identities: Mapping[str, str] = {}) -> None:
    """Writes the plan, and a folder for each of its jobs that says that it is planned. Raises WriteError.

    Args:
        identities: what ids are digests of, by question; written if a job's folder lacks it.
    """
    for job in plan.jobs:
        folder = sweep / str(job.number)
        with writing(sweep):
            folder.mkdir(exist_ok=True)
        if job.question in identities and not (folder / IDENTITY).exists():
            write_text(folder / IDENTITY, identities[job.question])
        if not (folder / STATE).exists():
            write_state(folder, JobState(job.id))
    write_json(sweep / PLAN, dataclasses.asdict(plan))


def claim(folder: Path, chosen: bool) -> Path:
    """Makes the folder of a new sweep, which no other process gets.

    Args:
        chosen: whether the user named the folder; otherwise a name that is taken gets ``_2`` behind it, and so on.

    Raises:
        ConfigError: a folder of the user's that holds something already.
        WriteError: it cannot be made.
    """
    if chosen:
        _check_free(folder)
    with writing(folder):
        (folder if chosen else folder.parent).mkdir(parents=True, exist_ok=True)
    if chosen:
        return folder
    for number in range(1, 10_000):
        free = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        with writing(folder):
            try:
                free.mkdir()
            except FileExistsError:
                continue
        return free
    raise ConfigError("hydra.sweep.dir", folder, "9,999 sweeps of this name are there", "Choose another folder.")


def _check_free(folder: Path) -> None:
    key = "hydra.sweep.dir"
    here = Path.cwd()
    if folder.resolve() == here or folder.resolve() in here.parents:
        raise ConfigError(key, folder, "would put jobs beside your own files", "Name a folder that is not there yet.")
    if (folder / PLAN).exists():
        remedy = f"Add resume={shlex.quote(str(folder))} in its place to go on with that one, or choose another folder."
        raise ConfigError(key, folder, "holds an earlier sweep", remedy)
    try:
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise ConfigError(key, folder, f"cannot be read ({error.strerror})", "Choose another folder.") from error
    ours = [name for name in names if name.isdigit() or name in ("results.parquet", "report")]
    if ours:
        raise ConfigError(key, folder, f"holds {', '.join(ours[:3])}", "Choose another folder, or move that one.")


def find_sweep(name: str, exp: str | None = None, key: str = "FOLDER") -> Path:
    """The folder of an earlier sweep: as named, or the newest under ./outputs (of an experiment) for ``latest``.

    Raises:
        ConfigError: there is none.
    """
    if name != LATEST:
        if not (Path(name) / PLAN).is_file():
            raise ConfigError(key, name, "no sweep (no plan.json in it)", ONE)
        if read_plan(Path(name)) is None:
            remedy = "Put it back from a copy, or start a new sweep; the rows of its jobs are in their folders."
            raise ConfigError(key, name, f"its {PLAN} is damaged", remedy)
        return Path(name)
    folders = [path.parent for path in OUTPUTS.glob(f"{exp or '*'}/*/{PLAN}")]
    folders = [folder for folder in folders if folder.name != LATEST]  # a link, which leads to one of the others
    plans = [(plan.created, folder) for folder in folders if (plan := read_plan(folder)) is not None]
    if not plans:
        where = OUTPUTS / exp if exp else OUTPUTS
        remedy = f"Give the folder of one{', or start it without resume' if key == 'resume' else ''}."
        raise ConfigError(key, LATEST, f"no sweep under ./{where}", remedy)
    return max(plans)[1]


def point_latest(sweep: Path) -> None:
    """Makes ``outputs/<exp>/latest`` a link to a sweep, in one step, if links are to be had and the name is free."""
    link = sweep.parent / LATEST
    if sweep.resolve().parent.parent != OUTPUTS.resolve() or (link.exists() and not link.is_symlink()):
        return
    try:
        with beside(link) as temporary:
            temporary.symlink_to(sweep.name, target_is_directory=True)
    except WriteError:  # a file system without links: resume=latest and the reports find the newest without it
        pass


def commands(plan: Plan) -> list[str]:
    """Lines for a shell: one if the jobs are all combinations of some values, as of a sweep, else one a job."""
    jobs = [sorted(job.overrides, key=lambda override: key_of(override) != "exp") for job in plan.jobs]
    lines = [_grid(jobs)] if len(jobs) > 1 and _grid(jobs) else jobs
    return [command_line(overrides, plan.config_dir, plan.started_in) for overrides in lines]


def varied(plan: Plan) -> dict[str, list[str]]:
    """The keys of the command line in which jobs differ, each with its values in their order."""
    jobs = [values_of(job.overrides) for job in plan.jobs]
    keys = dict.fromkeys(key for job in jobs for key in job)
    values = {key: list(dict.fromkeys(job.get(key, "") for job in jobs)) for key in keys}
    return {key: different for key, different in values.items() if len(different) > 1}


def _grid(jobs: list[list[str]]) -> list[str]:
    """One list of overrides for all jobs, with commas between values; empty if there is none."""
    by_key = [{key_of(override): override for override in job} for job in jobs]
    keys = list(by_key[0])
    if any(list(job) != keys or len(job) != len(jobs[0]) for job in by_key):
        return []
    grid: list[str] = []
    sizes: list[int] = []
    for key in keys:
        first, *others = dict.fromkeys(job[key] for job in by_key)
        values = [override.partition("=")[2] for override in (first, *others)]
        if others and any(re.search(r"[^\w./:+-]", value) for value in values):
            return []  # a value that holds commas or quotes
        grid.append(f"{first.partition('=')[0]}={','.join(values)}" if others else first)
        sizes.append(len(values))
    return grid if math.prod(sizes) == len(jobs) == len({tuple(job) for job in jobs}) else []


def command_line(overrides: Sequence[str], config_dir: str | None, folder: str, python_path: str = "") -> str:
    """A line for a shell that runs a job or a sweep.

    Args:
        config_dir: the user's own configurations (``--config-dir``), as an absolute path.
        folder: where to start; named only if the user's own modules or configurations are needed.
        python_path: of the environment, which such modules may be found by.
    """
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    line = shlex.join(["python", "-m", "specbench", *flags, *overrides])
    if not flags and not any("_target_=" in override for override in overrides):
        return line
    path = f"PYTHONPATH={shlex.quote(python_path)} " if python_path else ""
    return f"cd {shlex.quote(folder)} && {path}{line}"
