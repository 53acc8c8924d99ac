"""One job: configuration -> objects -> protocol -> rows -> tracking, in whichever process a launcher starts it."""

import dataclasses
import os
import traceback
from typing import Any

import torch

from specbench.core.errors import ConfigError, NotInstalledError, SpecbenchError
from specbench.core.machine import ranks
from specbench.core.machine.devices import PYTORCH_THREADS, choose_device, choose_dtype, device_of_rank
from specbench.core.machine.disk import OF_JOBS, WriteError, write_text, writing
from specbench.core.machine.journal import Journal
from specbench.core.machine.progress import name_job, say
from specbench.core.machine.provenance import environment
from specbench.core.machine.signals import interruptible
from specbench.core.rng import seed_global_generators
from specbench.metrics.run_row import NO_DRAFT, RunRow
from specbench.protocols import MeasurementProtocol, Outcome, RunContext
from specbench.protocols.protocol import options_of
from specbench.protocols.settings import check_conditions, check_parameters, unused
from specbench.rules.verifier import capabilities
from specbench.runs.choices import build_part, build_source
from specbench.runs.config import Config, as_config, write_settings
from specbench.runs.gpus import pinned
from specbench.runs.job import JobInfo, rules_of_job
from specbench.runs.job_row import checked_outcome, component_name, draw_figures, settings_columns, write_tables
from specbench.runs.overrides import values_of
from specbench.runs.parallel import cause_of, confirm, follow, interrupted, settle, watched, words_for_ranks
from specbench.runs.plan import PLAN, point_latest
from specbench.runs.samplings import processors_text, sampling_params
from specbench.runs.state import (
    ERROR,
    STATE,
    JobRunning,
    JobState,
    Status,
    clear_attempt,
    locked_job,
    write_ending,
    write_state,
    written_state,
)
from specbench.runs.tracking.run import TrackedRun, check_settings
from specbench.runs.tracking.sweeps import describe, job_run

UNFINISHED = "its process ended before its figures and its tracking were finished"


def run_job(composed: Any, job: JobInfo) -> None:
    """Runs a job. What becomes of it is written to its folder, and nothing is raised but Interrupted: a failure must
    not cost a sweep its other jobs.

    A job that needs an optional package which is not there is skipped: it fails nothing but itself.

    Args:
        composed: its configuration, as Hydra has composed it.
    """
    ranks.begin(f"job {job.number}")
    if not ranks.is_rank0():
        follow(lambda: _measured(as_config(composed), job, None, None))
        return
    try:
        with interruptible(), locked_job(job.folder):
            state = written_state(job.folder)
            if state is None and not (job.folder.parent / PLAN).is_file():
                _leave(f"job {job.number} failed: {job.folder} is not planned; was the sweep moved?", "red")
            elif state is None:
                remedy = f"Delete {job.folder}, and resume={job.folder.parent} runs the job again."
                _leave(f"job {job.number} failed: no {STATE} in its folder that can be read. {remedy}", "red")
            elif state.status is Status.DONE:  # another process has been faster
                ranks.broadcast_from_rank0(lambda: False)
            else:
                _attempt(composed, job, state)
    except JobRunning as error:
        _leave(f"job {job.number} ({job.label}) left alone: {error}", "yellow")
    except WriteError as error:
        _leave(f"job {job.number} ({job.label}) failed: {error}", "red")


def _leave(reason: str, style: str) -> None:
    """No attempt is made, by no rank."""
    ranks.broadcast_from_rank0(lambda: False)
    say(reason, style=style)


def _attempt(composed: Any, job: JobInfo, before: JobState) -> None:
    clear_attempt(job.folder)
    state = before.begun()
    write_state(job.folder, state)
    ranks.broadcast_from_rank0(lambda: True)
    jobs = len(job.plan.jobs) if job.plan else 1
    name_job(f"job {job.number}" if jobs > 1 else "")
    if jobs > 1:
        say(f"job {job.number} ({job.label}) begins; {jobs} jobs in all")
    tracked = job_run(job, state)
    try:
        _run(composed, job, state, tracked)
    finally:
        tracked.close()


def _run(composed: Any, job: JobInfo, state: JobState, tracked: TrackedRun) -> None:
    try:
        config: Config = as_config(composed)
        tracked.settings = config.tracking
        with (
            watched(lambda reason: write_state(job.folder, state.ending(Status.FAILED, reason))),
            pinned(device_of_rank(config.device), job.folder.parent, job.beside) as device,
        ):
            outcome = _measured(config, job, device, tracked)
        confirm()
        done = state.ending(Status.DONE, verdict=outcome.failure, warnings=(UNFINISHED,))
        write_state(job.folder, done)
    except NotInstalledError as error:
        _end(job, state.ending(Status.SKIPPED, str(error)), error, tracked)
        return
    except KeyboardInterrupt as error:
        _write_end(job, state.ending(Status.FAILED, interrupted(error)))  # the sweep's end tracks it
        raise
    except (Exception, SystemExit) as error:  # a bug in one verifier must not cost the sweep its other jobs
        expected = isinstance(error, SpecbenchError)
        reason = str(error) if expected else f"{cause_of(error)} (see {job.folder}/error.txt)"
        _end(job, state.ending(Status.FAILED, reason), error, tracked)
        return
    warnings = _shown(job, outcome, tracked)
    ended = state.ending(Status.DONE, verdict=outcome.failure, warnings=warnings)
    try:
        write_state(job.folder, ended)
    except WriteError as error:  # it is done nevertheless, as its folder says already
        warnings.append(str(error))
    point_latest(job.folder.parent)
    say(f"job {job.number} ({job.label}): {outcome.headline}")
    for warning in warnings:
        say(f"job {job.number}: {warning}", style="yellow")
    if ended.verdict:  # all was measured; this is why the exit status is not 0
        say(f"job {job.number} failed: {ended.verdict}", style="red")


def _end(job: JobInfo, state: JobState, error: BaseException, tracked: TrackedRun) -> None:
    """Writes how an attempt ended, says it, tells the other ranks, and tracks it.

    Ranks are told first: they wait for some seconds, and W&B may take longer.
    """
    _write_end(job, state, error)
    settle(words_for_ranks(error))
    if warning := tracked.end():
        say(f"job {job.number}: {warning}", style="yellow")


def _write_end(job: JobInfo, state: JobState, error: BaseException | None = None) -> None:
    """Writes how an attempt ended, and says it; ``error.txt`` has the error, if there is one."""
    word, style = ("skipped", "yellow") if state.status is Status.SKIPPED else ("failed", "red")
    say(f"job {job.number} ({job.label}) {word}: {state.reason}", style=style)
    try:
        write_ending(job.folder, state)
        if error is not None:
            details = str(error) if isinstance(error, SpecbenchError) else "".join(traceback.format_exception(error))
            write_text(job.folder / ERROR, details)
    except WriteError as problem:
        say(f"job {job.number}: {problem}", style="red")


def _measured(config: Config, job: JobInfo, device: str | None, tracked: TrackedRun | None) -> Outcome:
    """Runs the protocol, and writes its rows. A rank that does not lead has no run to track, and writes nothing.

    Args:
        device: None takes the configured one.
    """
    if tracked is not None:
        write_settings(job.folder, config)
        tracked.config |= dataclasses.asdict(config)
    sharing = job.plan.sharing_rounds(job.number) if job.plan else []  # it may decode with their verifiers too
    with rules_of_job(dataclasses.asdict(config), *(other.together for other in sharing)):
        journal = Journal(None if tracked is None else job.folder)
        protocol, context = _built(config, job, device or device_of_rank(config.device), journal)
        ignored = unused(protocol)
        if tracked is not None:
            describe(tracked, job, context, ignored)
            times = options_of(protocol).times  # which a process that sends curves would disturb
            if not times if config.tracking.live is None else config.tracking.live:
                tracked.begin()
        outcome = checked_outcome(protocol.run(context), job.choices["protocol"])
        settings = settings_columns(config, job, context, ignored)
        columns: dict[str, Any] = {"exp": job.exp, "job": job.number, **environment(context.device), **settings}
        row = RunRow(**{**columns, **outcome.measured})  # a replay's dtype is its trace's
        if tracked is not None:
            with writing(job.folder, f"{OF_JOBS} What was measured: {outcome.headline}."):
                write_tables(job.folder, row, outcome)
    return outcome


def _built(config: Config, job: JobInfo, device_name: str, journal: Journal) -> tuple[MeasurementProtocol, RunContext]:
    """The protocol, and what it runs with. All that can be known without a model is checked first."""
    if config.threads > (cores := os.cpu_count() or 1):
        raise ConfigError("threads", config.threads, f"this machine has {cores} cores", "Use 0 to have it chosen.")
    sampling = sampling_params(vars(config.sampler))
    check_settings(config.tracking)
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton launches on the current device, whichever its tensors are on
    protocol, verifier = (build_part(group, getattr(config, group)) for group in ("protocol", "verifier"))
    values = values_of(job.overrides)
    source = {} if config.source is None else {"source": job.choices.get("source", "...")}  # also by a yaml of conf/exp
    check_conditions({**values, **source}, unused(protocol), job.choices["protocol"])
    named = {key.partition(".")[0] for key in values}
    torch.set_num_threads(config.threads or PYTORCH_THREADS)
    seed_global_generators(config.seed)  # else a user's code would draw other numbers than in a process of its own
    if capabilities(verifier).interpreted:
        say(f"verifier={job.choices['verifier']} runs through Triton's interpreter: exact, but its times say nothing.")
    context = RunContext(
        verifier=verifier,
        verifier_name=component_name("verifier", config.verifier, job),
        sampling=sampling,
        gamma=config.gamma,
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
        dtype=choose_dtype(config.dtype, device),
        title=job.label,
        command=job.command,
        asked_pair=(config.pair.target, config.pair.draft or NO_DRAFT) if "pair" in named else None,
        names_verifier="verifier" in named,
        folder=job.folder,
        source=build_source(config.source),
        journal=journal,
        processors=processors_text(vars(config.sampler)),
    )
    check_parameters(sampling, protocol)
    if protocol.needs_models:
        from specbench.runs.building import (
            together_with,
            with_models,  # and with it transformers: 3 seconds that other jobs are spared
        )

        made = with_models(context, config, protocol)
        context = dataclasses.replace(made, together=together_with(made, config, job))
    return protocol, context


def _shown(job: JobInfo, outcome: Outcome, tracked: TrackedRun) -> list[str]:
    """Draws and tracks what is written already; returns what went wrong with that, which costs the job nothing."""
    warnings = []
    try:
        draw_figures(job.folder, outcome)
    except Exception as error:  # matplotlib, a full disk
        warnings.append(f"figures are missing ({type(error).__name__}: {error})")
    if warning := tracked.end():
        warnings.append(warning)
    return warnings
