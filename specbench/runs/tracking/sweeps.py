"""What W&B is told of the jobs of a sweep, and of the sweep: also of jobs whose process was killed."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, TrackingError
from specbench.core.machine.disk import read_json
from specbench.rules.verifier import capabilities
from specbench.runs.config import TrackingConfig, read_settings
from specbench.runs.job import JobInfo
from specbench.runs.job_row import HF, model_name
from specbench.runs.plan import PlannedJob, commands, varied
from specbench.runs.state import JobState, Status
from specbench.runs.status import SweepStatus
from specbench.runs.tracking.panels import SWEEP
from specbench.runs.tracking.process import WRITE_REPORT, WandbProcess
from specbench.runs.tracking.run import TrackedRun, check_settings, tags_of
from specbench.runs.tracking.wandb_report import REPORT


def job_run(job: JobInfo, state: JobState) -> TrackedRun:
    """The W&B run of an attempt that begins, which goes nowhere before its settings are known."""
    return _run(TrackingConfig(mode="disabled"), job.exp, job.folder, job, state)


def describe(run: TrackedRun, job: JobInfo, context: Any, ignored: Container[str]) -> None:
    """Says of a run what the job came to: its rule, its device, what its verifier promises.

    Args:
        ignored: keys that the protocol makes no use of, whose tags would mislead.
    """
    from specbench.rules.rule import rule_name

    facts = {key: value for key, value in facts_of(job.choices, job.folder).items() if key not in ignored}
    words = []
    facts["device"] = context.device.type
    if hasattr(context, "engine") and "engine" in facts:
        facts["engine"] = context.engine.name
    run.kind = facts["protocol"]
    if "verifier" in facts:
        run.kind = facts["verifier"] = context.verifier_name
        with contextlib.suppress(Exception):  # attributes of a user's verifier that raise are the protocol's to find
            facts["rule"] = rule_name(context.verifier)
            lossless = bool(getattr(context.verifier, "lossless", False))
            words = ["synthetic"] if capabilities(context.verifier).synthetic else []
            words += ["lossless" if lossless else "flawed" if context.verifier_name.startswith("flawed/") else "lossy"]
    run.tags = tags_of(facts, *words)


def track_sweep(status: SweepStatus, ended: bool, online: bool) -> Iterator[str]:
    """Logs the jobs without a run, whose process was killed or which never began, and the sweep if it has ended.

    A resumed sweep replaces its earlier run.

    Args:
        ended: whether this process ran it. Otherwise it is only looked at, and the sweep itself has its run already.
        online: whether anything may be sent now; otherwise it is kept in the folder, whatever tracking.mode says.

    Yields:
        what went wrong.
    """
    for job, state in zip(status.plan.jobs, status.states, strict=True):
        folder = status.folder / str(job.number)
        has_run = any(folder.glob("wandb/*run-*/*.wandb"))  # whole or broken off
        if state.status in (Status.FAILED, Status.SKIPPED, Status.DIED) and not has_run:
            settings = _settings(status, online, folder)
            run = _run(settings, status.plan.exp, folder, job, state) if settings else None
            if run and (warning := run.end()):
                yield f"job {job.number}: {warning}"
    settings = _settings(status, online)
    is_whole = ended and len(status.states) > 1 and not status.count(Status.RUNNING)
    if settings and is_whole and (warning := sweep_run(status, settings).end()):
        yield f"sweep: {warning}"


def sweep_run(status: SweepStatus, settings: TrackingConfig) -> TrackedRun:
    """The run of a sweep, with the tags that all its jobs have. Resumed, a sweep has the same one."""
    folder, plan = status.folder, status.plan
    tags = [tags_of(facts_of(job.choices, folder / str(job.number))) for job in plan.jobs]
    return TrackedRun(
        settings=settings,
        group=group_of(plan.exp, folder),
        folder=folder,
        name=f"{SWEEP} {folder.resolve().name}",
        kind=SWEEP,
        tags=[*sorted(set(tags[0]).intersection(*tags)), SWEEP],
        config={"exp": plan.exp, "command": "\n".join(commands(plan)), "varied": varied(plan)},
        number=hashlib.sha256(f"{plan.created}/{folder.name}".encode()).hexdigest()[:12],
    )


def track_report(status: SweepStatus, online: bool) -> Iterator[str]:
    """Writes a sweep's report as W&B has it, and saves it if its runs were sent.

    Yields:
        what went wrong.
    """
    if (settings := _settings(status, online)) is not None:
        try:
            _write_report(status, settings)
        except TrackingError as error:
            yield f"no report for W&B ({error})"


def publish(status: SweepStatus) -> str:
    """Saves a sweep's report on W&B's server, wherever its runs were kept at first; they may have been synced since.

    Returns:
        The entity and the project, as ``ENTITY/PROJECT``.

    Raises:
        ConfigError: a sweep that was not tracked, or no key for the server.
        TrackingError: it could not be saved.
    """
    settings = _settings(status, online=True)
    if settings is None:
        raise ConfigError("--publish", status.folder, "its runs are not in W&B", "Run it with tracking.mode=offline.")
    settings = dataclasses.replace(settings, mode="online")
    check_settings(settings)
    _write_report(status, settings)
    saved = read_json(status.folder / "report" / REPORT)
    return f"{saved['entityName']}/{saved['projectName']}"


def _write_report(status: SweepStatus, settings: TrackingConfig) -> None:
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise TrackingError("it needs wandb-workspaces; pip install 'specbench[wandb-workspaces]'")
    folder, place = status.folder.resolve(), {"project": settings.project, "entity": settings.entity}
    place["group"] = group_of(status.plan.exp, folder)
    online = settings.mode == "online"
    WandbProcess(WRITE_REPORT, folder, settings.mode, folder=str(folder), online=online, **place).end()


def _run(settings: TrackingConfig, exp: str, folder: Path, job: JobInfo | PlannedJob, state: JobState) -> TrackedRun:
    return TrackedRun(
        settings=settings,
        group=group_of(exp, folder.parent),
        folder=folder,
        name=job.label,
        kind=job.choices.get("verifier", "job"),
        tags=tags_of(facts_of(job.choices, folder)),
        config={**read_settings(folder), "choices": job.choices, "attempt": state.attempt},
    )


def facts_of(choices: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The choices of a job, with the target's name in the place of ``hf``, as in its rows."""
    pair = read_settings(folder).get("pair", {})
    named = choices.get("pair") == HF and isinstance(pair, dict) and pair.get("target")
    return {**choices, "pair": model_name(str(named))} if named else dict(choices)


def group_of(exp: str, sweep: Path) -> str:
    """What W&B calls a sweep: its experiment and its folder, without what filters of W&B's reports would misread."""
    return re.sub(r"[^\w./+ -]", "_", f"{exp}/{sweep.resolve().name}")


def _settings(status: SweepStatus, online: bool, *first: Path) -> TrackingConfig | None:
    """As the configuration of the first job that began says, or that in the folder ``first``; None if none did, or if
    tracking was disabled."""
    folders = (*first, *(status.folder / str(job.number) for job in status.plan.jobs))
    written = next(filter(None, (read_settings(folder).get("tracking") for folder in folders)), None)
    if written is None or written["mode"] == "disabled":
        return None
    settings = TrackingConfig(**written)
    settings = settings if online else dataclasses.replace(settings, mode="offline")
    try:
        check_settings(settings)
    except ConfigError:  # the jobs have said so
        return None
    return settings
