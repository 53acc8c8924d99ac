"""Pages of many experiments in one folder: an index, and a report of each sweep.

python -m specbench pages [FOLDER ...] [--to FOLDER]
"""

import argparse
import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specbench.core.errors import ConfigError, message_of
from specbench.core.machine.disk import writing
from specbench.core.machine.progress import say
from specbench.metrics import results
from specbench.reports import Report, html
from specbench.reports.cells import file_name
from specbench.reports.markdown import literal
from specbench.reports.writing import REPORT, write
from specbench.runs.plan import LATEST, OUTPUTS, PLAN
from specbench.runs.reporting import find_analysis
from specbench.runs.status import SweepStatus

INDEX, PAGES = "index.html", OUTPUTS / "pages"
ELSEWHERE = "Free space there or make it writable, or name another folder by --to."
NO_ANALYSIS = "no analysis of this name, and none that fits its rows"


@dataclass(frozen=True)
class Entry:
    """A line of the index.

    Attributes:
        page: its address relative to the index; empty if there is none, and ``trouble`` says why.
        date: of the newest row, ISO 8601; empty if nothing says.
    """

    name: str
    question: str
    page: str = ""
    answer: str = ""
    date: str = ""
    hardware: str = ""
    trouble: str = ""


def write_pages(folders: Iterable[Path], to: Path) -> Path:
    """Writes the pages of all experiments under some folders; returns the path of their index.

    Args:
        folders: each holds sweeps at any depth (with plan.json or results.parquet).
        to: the folder of the pages, which can be moved or published as a whole.

    Raises:
        ConfigError: a folder that is not there, or no sweep in any of them.
        WriteError: the pages cannot be written.
    """
    folders = list(folders)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError("FOLDER", folder, "no such folder", "Name folders with sweeps, such as outputs.")
    with writing(to, ELSEWHERE):
        to.mkdir(parents=True, exist_ok=True)
    sweeps = [path for folder in folders for path in _sweeps(folder, to)]
    entries: list[Entry] = []
    for sweep in sweeps:
        entries.append(_sweep_entry(sweep, to, {Path(entry.page).parts[0] for entry in entries if entry.page}))
    if not entries:
        raise ConfigError(
            "FOLDER", ", ".join(map(str, folders)), "no sweep in it", "Run python -m specbench +exp=NAME."
        )
    index, page = to / INDEX, html.page("index.html.j2", title="Experiments", entries=entries)
    with writing(to, ELSEWHERE):
        index.write_text(page, encoding="utf-8")
    return index


def command(arguments: list[str]) -> int:
    """The command line; says where the index lies. Raises SpecbenchError as :func:`write_pages`."""
    parser = argparse.ArgumentParser(prog="python -m specbench pages", description="Pages of many experiments.")
    folders = "folders with sweeps (default: outputs)"
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, help=folders)
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=PAGES, help="of the pages (default: %(default)s)")
    options = parser.parse_args(arguments)
    index = write_pages(options.folders or [OUTPUTS], options.to)
    say(f"Pages: {index}")
    return 0


def _sweeps(folder: Path, to: Path) -> list[Path]:
    """The folders of sweeps under a folder, in order; without links to them, and without what lies in a sweep."""
    paths = []
    for here, inner, files in os.walk(folder):
        path = Path(here)
        if PLAN in files or results.RESULTS in files:
            paths.append(path)
            inner.clear()
        inner[:] = [name for name in inner if name != LATEST and (path / name).resolve() != to.resolve()]
    return sorted(paths)


def _sweep_entry(sweep: Path, to: Path, taken: set[str]) -> Entry:
    name, exp = "/".join(sweep.parts[-2:]), ""
    try:
        exp, analysis = find_analysis(sweep)
        if analysis is None:
            status = SweepStatus.of(sweep)
            whole = status is None or status.complete
            trouble = NO_ANALYSIS if whole else f"{NO_ANALYSIS}; {status.sentence()}. {status.remedy()}"
            return Entry(name, exp, trouble=trouble)
        report: Report = analysis.build(sweep)
        stem = file_name(name)
        numbered = (f"{stem}_{number}" for number in itertools.count(2))
        folder = to / next(candidate for candidate in itertools.chain([stem], numbered) if candidate not in taken)
        write(report, folder)
    except Exception as error:  # one faulty sweep must not hide the others
        if not isinstance(error, ConfigError):
            say(f"{sweep}: {message_of(error)}", style="bold red")
        return Entry(name, exp, trouble=message_of(error))
    rows = results.read_results(sweep)
    date, hardware = rows["created"].max(), ", ".join(dict.fromkeys(rows["hardware"]))
    page = f"{folder.name}/{REPORT}/report.html"
    question = next(
        (sentence for sentence in _sentences(literal(report.question)) if sentence.endswith("?")), report.title
    )
    return Entry(name, question, page, _sentences(answer_of(report))[0], str(date)[:10], hardware, report.warning)


def answer_of(report: Report) -> str:
    """What the first section says first, in words alone: its links lead from the report's own folder."""
    first = next((block for block in report.sections[0].blocks if isinstance(block, str)), "")
    return literal(first.removeprefix("- ").partition("\n")[0])


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?!])\s+", text)
