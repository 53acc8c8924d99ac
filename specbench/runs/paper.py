"""``python -m specbench paper RUN... --out FOLDER``: tables, figures and numbers of runs, for a LaTeX document."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from specbench import __version__
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import say
from specbench.reports import Report
from specbench.reports.latex import folder
from specbench.reports.plots.style import drawn_for
from specbench.runs.plan import LATEST, OUTPUTS, PLAN, find_sweep
from specbench.runs.reporting import analysis_module, find_analysis
from specbench.runs.status import SweepStatus

ABOUT = """\
Tables (booktabs), figures (PDF, at the widths of one column and of the text), a macro for each number of tables and
headlines, BibTeX of the rules, and a small document that includes them all: one folder, which your own document
includes as main.tex does."""


def paper(arguments: Sequence[str]) -> int:
    """Writes a paper's folder; returns the exit status.

    Raises:
        ConfigError: a run that cannot be shown, or a folder that holds something else.
    """
    options = _parser().parse_args(arguments)
    if not 1 <= options.column <= options.wide <= 30:
        remedy = "Inches, such as --column 3.3 --wide 7."
        raise ConfigError(
            "--column, --wide", f"{options.column}, {options.wide}", "not the widths of a document", remedy
        )
    _check_font(options.font)
    runs = [find_run(run) for run in options.runs]
    for run in runs:
        check_whole(run, options.partial)
    pages = folder.pages(options.column, options.wide, options.font)
    reports: dict[str, list[Report]] = {}
    for end, page in pages.items():
        with drawn_for(page):
            reports[end] = [build_report(run) for run in runs]
    names = [report.name for report in reports["column"]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError("RUN", twice[0], "two runs of one experiment", "Give each a folder of its own with --out.")
    for path in folder.write(folder.files(reports, pages, __version__), options.out):
        say(f"kept: {options.out / path}, which was changed by hand")
    say(f"Paper: {options.out}. To see it: cd {shlex.quote(str(options.out))}; latexmk -pdf main")
    return 0


def find_run(name: str) -> Path:
    """The folder of a run: as named, or the newest one of the experiment of that name.

    Raises:
        ConfigError: there is none.
    """
    if Path(name).is_dir():
        return Path(name)
    if analysis_module(name) is not None:
        if any((OUTPUTS / name).glob(f"*/{PLAN}")):
            return find_sweep(LATEST, name, "RUN")
        remedy = f"Run python -m specbench +exp={name} first, or give the folder of a run."
        raise ConfigError("RUN", name, f"no run of it under ./{OUTPUTS / name}", remedy)
    remedy = f"Give a folder of {OUTPUTS}/<exp>/<time>, or the name of an experiment that was run here."
    raise ConfigError("RUN", name, "neither the folder of a run nor an experiment with a report", remedy)


def check_whole(run: Path, partial: bool) -> None:
    """Raises ConfigError if jobs of a run failed or are missing, unless ``partial``."""
    status = SweepStatus.of(run)
    if status is not None and not status.complete and not partial:
        troubles = [sentence for style, sentence in status.problems() if style == "bold red"]
        problem = "; ".join([status.sentence(), *troubles[:2]]).removesuffix(".")
        remedy = f"{status.remedy()}, or add --partial: captions then say so"
        raise ConfigError("RUN", run, problem, f"{remedy}.")


def build_report(run: Path) -> Report:
    """The report of a run, its figures drawn for the page of now.

    Raises:
        ConfigError: an experiment without a report, or a run without rows.
    """
    exp, analysis = find_analysis(run)
    if analysis is None:
        remedy = "Experiments with a report are those of specbench.analysis, such as gamma_sweep, or vary the same."
        raise ConfigError("RUN", run, f"a run of {exp}, which has no report", remedy)
    return analysis.build(run)


def _check_font(font: str) -> None:
    from matplotlib.font_manager import findfont

    try:
        findfont(font, fallback_to_default=False)
    except ValueError as error:
        remedy = "Name a family that is installed as TrueType, or leave it out: STIXGeneral comes with matplotlib."
        raise ConfigError("--font", font, "no such font", remedy) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specbench paper", description=ABOUT)
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="folders of runs, or experiments: their newest run under ./outputs"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new, or written by this before")
    parser.add_argument("--column", type=float, default=3.3, metavar="INCHES", help="width of a column (default: 3.3)")
    parser.add_argument("--wide", type=float, default=7.0, metavar="INCHES", help="width of the text (default: 7)")
    parser.add_argument(
        "--font", default="STIXGeneral", help="of the figures (default: STIXGeneral, which goes with Times)"
    )
    parser.add_argument("--partial", action="store_true", help="also if jobs failed or are missing")
    return parser
