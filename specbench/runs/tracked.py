"""What W&B is told of the jobs of a sweep, and of the sweep: also of jobs whose process was killed."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from specbench.core.errors import ConfigError, TrackingError
from specbench.core.machine.disk import read_json
from specbench.reports import Report
from specbench.reports.tracking import (
    JobRun,
    WandbWorkspace,
    check_settings,
    is_tracked,
    log_sweep,
    tags_of,
    write_report,
)
from specbench.reports.tracking.reports import REPORT, to_wandb
from specbench.rules.verifier import capabilities
from specbench.runs.config import Config
from specbench.runs.job import HF, JobInfo, model_name
from specbench.runs.plan import PlannedJob
from specbench.runs.repeat import commands, varied
from specbench.runs.state import JobState, Status
from specbench.runs.status import SweepStatus


def job_run(config: Config, job: JobInfo, state: JobState) -> JobRun:
    """The W&B run of an attempt that begins."""
    settings: Any = OmegaConf.to_container(cast("Any", config.tracking), resolve=True)
    workspace = WandbWorkspace(**settings, group=group_of(job.exp, job.folder.parent))
    return _run(workspace, job.folder, job.label, job.choices, state)


def describe(run: JobRun, job: JobInfo, context: Any, ignored: Container[str]) -> None:
    """Says of a run what the job came to: its rule, its device, what its verifier promises.

    Args:
        context: the RunContext.
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


def track(run: JobRun, state: JobState) -> str:
    """Logs an attempt that has ended; returns a warning, or nothing."""
    try:
        run.end(str(state.status), state.reason, state.verdict)
    except TrackingError as error:
        return f"not tracked in W&B ({error})"
    return ""


def track_sweep(status: SweepStatus, ended: bool, online: bool) -> Iterator[str]:
    """Logs what nobody has logged: jobs whose process was killed or that never began, and the sweep if it has ended.

    Args:
        status: the sweep.
        ended: whether this process ran it. Otherwise it is only looked at, and the sweep itself has its run already.
        online: whether anything may be sent now; otherwise it is kept in the folder, whatever tracking.mode says.

    Yields:
        what went wrong.
    """
    for job, state in zip(status.plan.jobs, status.states, strict=True):
        folder = status.folder / str(job.number)
        if state.status in (Status.FAILED, Status.SKIPPED, Status.DIED) and not is_tracked(folder):
            workspace = _workspace(status, folder, online)
            if workspace is not None:
                gone = f"process {state.pid} on {state.host} is gone" if state.status is Status.DIED else state.reason
                final = dataclasses.replace(state, reason=gone)
                if warning := track(_run(workspace, folder, job.label, job.choices, final), final):
                    yield f"job {job.number}: {warning}"
    workspace = _workspace(status, status.folder / "0", online)
    if not ended or workspace is None or len(status.states) == 1 or status.count(Status.RUNNING):
        return
    jobs = [_job_facts(job, state) for job, state in zip(status.plan.jobs, status.states, strict=True)]
    facts = [facts_of(job.choices, status.folder / str(job.number)) for job in status.plan.jobs]
    shared = set.intersection(*(set(tags_of(tags)) for tags in facts))
    try:
        plan = status.plan
        config = {"exp": plan.exp, "command": "\n".join(commands(plan)), "varied": varied(plan)}
        log_sweep(workspace, status.folder, plan.created, jobs, sorted(shared), bool(status.exit_status), config)
    except TrackingError as error:
        yield f"the sweep is not tracked in W&B ({error})"


def track_report(status: SweepStatus, report: Report, online: bool) -> Iterator[str]:
    """Writes a sweep's report as W&B has it, and saves it if its runs were sent.

    Yields:
        what went wrong.
    """
    workspace = _workspace(status, status.folder / "0", online)
    if workspace is None:
        return
    try:
        _write_report(status, report, workspace)
    except TrackingError as error:
        yield f"no report for W&B ({error})"


def publish(status: SweepStatus, report: Report | None) -> str:
    """Saves a sweep's report on W&B's server, wherever its runs were kept at first; they may have been synced since.

    Returns:
        The entity and the project, as ``ENTITY/PROJECT``.

    Raises:
        ConfigError: no report, a sweep that was not tracked, or no key for the server.
        TrackingError: it could not be saved.
    """
    if report is None:
        raise ConfigError("--publish", status.folder, "a sweep without a report", "Give one that has a report.")
    workspace = _workspace(status, status.folder / "0", online=True)
    if workspace is None:
        raise ConfigError("--publish", status.folder, "its runs are not in W&B", "Run it with tracking.mode=offline.")
    workspace = dataclasses.replace(workspace, mode="online")
    check_settings(workspace.mode, workspace.project, workspace.entity)
    _write_report(status, report, workspace)
    saved = read_json(status.folder / "report" / REPORT)
    return f"{saved['entityName']}/{saved['projectName']}"


def _write_report(status: SweepStatus, report: Report, workspace: WandbWorkspace) -> None:
    described = to_wandb(report, workspace.entity or "", workspace.project, workspace.group)
    write_report(described, status.folder, workspace, varied(status.plan))


def _job_facts(job: PlannedJob, state: JobState) -> dict[str, Any]:
    facts = {"job": job.number, "label": job.label, "status": str(state.status), "reason": state.reason}
    return {**facts, "verdict": state.verdict, "attempt": state.attempt, "started": state.started, "ended": state.ended}


def _run(workspace: WandbWorkspace, folder: Path, name: str, choices: dict[str, str], state: JobState) -> JobRun:
    config = {**_configuration(folder), "choices": choices, "attempt": state.attempt}
    return JobRun(workspace, folder, name, choices.get("verifier", "job"), tags_of(facts_of(choices, folder)), config)


def facts_of(choices: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The choices of a job, with the target's name in the place of ``hf``, as in its rows."""
    pair = _configuration(folder).get("pair", {})
    named = choices.get("pair") == HF and isinstance(pair, dict) and pair.get("target")
    return {**choices, "pair": model_name(str(named))} if named else dict(choices)


def group_of(exp: str, sweep: Path) -> str:
    """What W&B calls a sweep: its experiment and its folder, without what filters of W&B's reports would misread."""
    return re.sub(r"[^\w./+ -]", "_", f"{exp}/{sweep.resolve().name}")


def _workspace(status: SweepStatus, folder: Path, online: bool) -> WandbWorkspace | None:
    """As the job's configuration says, or that of the first job that began; None if none did, or if it was disabled."""
    places = (folder, *(status.folder / str(job.number) for job in status.plan.jobs))
    settings = next(filter(None, (_configuration(place).get("tracking") for place in places)), None)
    if settings is None or settings["mode"] == "disabled":
        return None
    workspace = WandbWorkspace(**settings, group=group_of(status.plan.exp, status.folder))
    workspace = workspace if online else dataclasses.replace(workspace, mode="offline")
    try:
        check_settings(workspace.mode, workspace.project, workspace.entity)
    except ConfigError:  # the jobs have said so
        return None
    return workspace


def _configuration(job: Path) -> dict[str, Any]:
    try:
        made = OmegaConf.to_container(OmegaConf.load(job / "config.yaml"))
    except (OSError, ValueError):
        return {}
    return {str(key): value for key, value in made.items()} if isinstance(made, dict) else {}
