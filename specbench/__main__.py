"""``python -m specbench [+exp=NAME] [key=value ...]``; ``--help`` lists what can be chosen."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

import hydra
from omegaconf import DictConfig

from specbench import config, results
from specbench.errors import SpecbenchError
from specbench.progress import say
from specbench.run import Session, run_job
from specbench.summary import print_summary

_PACKAGED = Path(__file__).parent / "conf"  # in a wheel
CONF = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent / "conf"


def check_arguments(arguments: list[str]) -> str | None:
    """What is wrong with the command line that Hydra would let pass, in words."""
    for argument in arguments:
        if re.match(r"\+?exp=.*,", argument):
            return f"{argument}: several experiments at once would lose their own sweeps. Run one after the other."
        if re.fullmatch(r"(pair|drafter|sampler|verifier|workload|protocol|tracking)=null", argument):
            return f"{argument}: a run needs one. See --help for the choices."
        if argument.startswith("hydra.run.dir="):
            return f"{argument}: a job's folder is hydra.sweep.dir/<its number>. Set hydra.sweep.dir instead."
    chosen = [a for a in arguments if a.startswith("hydra.sweep.dir=")]
    if chosen and (problem := _unwritable(chosen[-1].partition("=")[2].split("${")[0])):
        return f"{chosen[-1]}: {problem}. Choose another folder."
    if not chosen and (problem := _unwritable("outputs")):
        return f"./outputs: {problem}. Run from another folder, or set hydra.sweep.dir."
    return None


def _unwritable(folder: str) -> str | None:
    place = Path(folder)
    while not place.exists():  # nothing is made here: --help must leave nothing
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return f"cannot be written ({error.strerror})"


def build_report(session: Session) -> Path | None:
    """The report of an experiment that has an analysis module of its name."""
    name = f"analysis.{session.exp}"
    if session.folder is None or importlib.util.find_spec("analysis") is None or importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name).report(session.folder)


def finish(session: Session) -> int:
    """Prints the table, the report's path and the failures; returns the exit status."""
    if session.folder is None:
        return 0  # --help, --cfg and the like
    if session.finished:
        decoded = results.read_results(session.folder).query("protocol == 'decode'")
        if len(decoded):
            print_summary(decoded)
        try:
            report = build_report(session)
        except SpecbenchError as error:
            session.failures["report"] = str(error)
            say(f"no report: {error}", style="bold red")
        else:
            place = report or session.folder / results.RESULTS
            say(f"{'Report' if report else 'Results'}: {os.path.relpath(place)}")
    for label, reason in session.skipped.items() if session.jobs > 1 else ():
        say(f"skipped: {label}: {reason}", style="yellow")
    for label, reason in session.failures.items() if session.jobs > 1 else ():
        say(f"failed: {label}: {reason}", style="bold red")
    return 1 if session.failures or not session.finished else 0


def main() -> None:
    """Runs the command line."""
    if problem := check_arguments(sys.argv[1:]):
        say(problem, style="bold red")
        sys.exit(2)
    config.register()
    session = Session()

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def job(cfg: DictConfig) -> None:
        run_job(cfg, session)  # ty: ignore[invalid-argument-type]

    job()
    sys.exit(finish(session))


if __name__ == "__main__":
    main()
