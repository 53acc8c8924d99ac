"""What is said at the end of a sweep, or of ``python -m specbench report FOLDER``: table, report, what went wrong."""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from specbench.core.errors import ConfigError, SpecbenchError, message_of
from specbench.core.machine.disk import writing
from specbench.core.machine.progress import say
from specbench.runs.plan import LATEST, find_sweep
from specbench.runs.reporting import analysis_module, find_analysis
from specbench.runs.state import Status, written_state
from specbench.runs.status import SweepStatus
from specbench.runs.tracking.sweeps import publish, track_report, track_sweep


def report(arguments: Sequence[str]) -> int:
    """``python -m specbench report [FOLDER] [--publish]``; returns the exit status. Raises ConfigError for no sweep."""
    about = "How far a sweep is, its table and its report, from its folder."
    where = "outputs/<exp>/<time>, or latest for the newest one (default: %(default)s)"
    saves = "also save the report in W&B, where the sweep's runs are: sent by tracking.mode=online, or by `wandb sync`"
    parser = argparse.ArgumentParser(prog="python -m specbench report", description=about)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=LATEST, help=where)
    parser.add_argument("--publish", action="store_true", help=saves)
    options = parser.parse_args(arguments)
    folder = find_sweep(options.folder)
    if options.folder == LATEST:
        say(f"{folder}, which was begun last:")
    return tell(folder, just_ran=False, publishing=options.publish)


def tell(folder: Path, just_ran: bool, interrupted: bool = False, publishing: bool = False) -> int:
    """Collects the rows of a sweep, prints its table, where its report lies, and what became of its jobs.

    Each part is tried for itself: a full disk, or a fault in a report, must not hide what the jobs found.

    Args:
        just_ran: whether this process ran the jobs, so that a single one has said what became of it.
        interrupted: whether the user wants an end now: nothing is sent then.
        publishing: whether the report is to be saved on W&B's server.

    Returns:
        The exit status: 0 if all jobs are done, none was found wanting, and the report is written.
    """
    status = SweepStatus.of(folder)
    if status is None:
        say(f"{folder}: no plan.json in it, which every sweep has", style="bold red")
        return 1
    whole, has_report = True, False
    for part in (_collect, _table, _report) if status.count(Status.DONE) else ():
        try:
            has_report = bool(part(folder, status))
        except Exception as error:
            whole = False
            say(f"{part.__name__.strip('_')}: {message_of(error)}", style="bold red")
    if publishing:
        whole &= _publish(status, has_report)
    else:
        _track(status, has_report, ended=just_ran, online=just_ran and not interrupted)
    everything = len(status.states) > 1 or not just_ran
    for style, sentence in status.problems():
        if everything or sentence.startswith("died"):
            say(sentence, style=style)
    if everything or not (status.complete or status.count(Status.FAILED)):
        say(f"{status.sentence()}.", style=None if status.complete else "bold red")
        if remedy := status.remedy():
            say(remedy)
    return status.exit_status if whole else 1


def _collect(folder: Path, status: SweepStatus) -> None:
    from specbench.metrics import results
    from specbench.rules.recorded import recall_rules

    again = f"python -m specbench report {shlex.quote(str(folder))} collects them"
    with writing(folder, f"Free space there; rows stay in the jobs' folders, and {again}."):
        results.collect(folder)
    own = results.done_jobs(folder)
    for path in sorted(folder.glob(f"*/{results.RESULTS}")):
        state = written_state(path.parent)
        if path.parent not in own and state is not None and state.status is Status.DONE:
            rest = "which is left out; pandas.concat joins the rows of two sweeps"
            say(f"{path.parent} holds a job of another sweep, {rest}.", style="yellow")
    recall_rules(folder)
    ended = zip(status.plan.jobs, status.states, strict=True)
    done = [str(job.number) for job, state in ended if state.status is Status.DONE]
    if lost := [number for number in done if not (folder / number / results.RESULTS).exists()]:
        raise SpecbenchError(
            f"no {results.RESULTS} in the folders of jobs that are done: {', '.join(lost)}. What is told here lacks "
            f"their rows. Remove these folders, and python -m specbench resume={shlex.quote(str(folder))} runs the "
            "jobs again."
        )


def _table(folder: Path, _: SweepStatus) -> None:
    from specbench.metrics import results
    from specbench.runs.summary import print_categories, print_summary

    decoded = results.read_results(folder).query("protocol == 'decode'")
    if len(decoded):
        print_summary(decoded, folder)
        print_categories(decoded, results.read_jobs(folder, results.CATEGORIES))


def _track(status: SweepStatus, has_report: bool, ended: bool, online: bool) -> None:
    for part in (track_report(status, online) if has_report else (), track_sweep(status, ended, online)):
        try:
            for warning in part:
                say(warning, style="yellow")
        except Exception as error:  # a configuration that was changed meanwhile
            say(f"not tracked in W&B ({type(error).__name__}: {error})", style="yellow")


def _publish(status: SweepStatus, has_report: bool) -> bool:
    try:
        if not has_report:
            raise ConfigError("--publish", status.folder, "a sweep without a report", "Give one that has a report.")
        say(f"Published: the report is in W&B, in {publish(status)}.")
    except SpecbenchError as error:
        say(f"not published: {error}", style="bold red")
        return False
    return True


def _report(folder: Path, status: SweepStatus) -> bool:
    """Writes the report of a sweep; for a single run it says how to make one. Returns whether there is a report."""
    from specbench.metrics import results
    from specbench.reports.writing import write

    exp, analysis = find_analysis(folder)
    is_own = analysis_module(exp) is None
    single, report = is_own and len(status.states) == 1, None
    try:
        report = None if single or analysis is None else analysis.build(folder)
    except SpecbenchError as error:
        if not is_own:
            raise
        say(f"no report: {error}", style="yellow")  # nor did anybody ask for one
    if report is not None:
        say(f"Report: {os.path.relpath(write(report, folder))}")
    elif (folder / results.RESULTS).exists():  # else there was no room for it, as was said
        say(f"Results: {os.path.relpath(folder / results.RESULTS)}")
        if single and analysis is not None:
            say(f"python -m {analysis.__name__} {shlex.quote(os.path.relpath(folder))} makes a report of it.")
    return report is not None
