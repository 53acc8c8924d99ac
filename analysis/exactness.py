"""Is every verifier that says lossless lossless? Certificates of a run side by side, and their figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.core.errors import ConfigError
from specbench.core.rounding import most
from specbench.metrics.results import read_jobs
from specbench.reports import Bullets, Picture, Report, Section, Strong, Table, Text
from specbench.reports.cells import file_name
from specbench.reports.plots import exactness as plots
from specbench.reports.text import section

from .command import main
from .decoding import WHERE
from .folder import read_rows, report_of

QUESTION = "Is every verifier that says lossless lossless, and how sure can one be?"
NOTE = """\
Verdict: lossless up to a bound, not rejected (nothing speaks against it, and less is known), not lossless, or broken.
Located: the bias a step (total variation) that the code's own thresholds imply, the largest over the small fixtures; a
dash if they could not be found everywhere. Small at most: what was located plus what the search may have missed, in the
mean over the calls of all small fixtures (99% upper confidence bound). Over D at most: likewise in the mean over the
input distribution D, whose tables each certificate has. Proved: fixtures on which its operations were run over whole
intervals. Draws: on small fixtures together."""
JOINT = """\
Shares of whole steps over the target's probabilities. The band holds 95% of the points of an exact rule; points outside
it are diamonds. It narrows with the draws, so that what stays inside says how small a bias can still be."""
QQ = """\
p-values of the tests on the small fixtures over many seeds. On the diagonal the tests are calibrated: they reject an
exact verifier as often as they say; the band holds 95% of the p-values of an exact one. A verifier that is biased bends
them up on the right."""
COLUMNS = [
    "verifier", "rule", "verdict", "located", "small at most", "over D at most", "proved", "draws", "seconds",
]  # fmt: skip


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results, or a job without a certificate.
    """
    certificates = {job: _certificate(run_dir, job) for job in read_rows(run_dir)["job"]}
    names = {job: each["verifier"] for job, each in certificates.items()}
    rows = pd.DataFrame([_row(each) for each in certificates.values()], columns=COLUMNS)
    shown = Table("table", _text(rows), rows, _caption(certificates), NOTE, left=tuple(COLUMNS[:3]))
    words = tuple(
        (Strong(each["verifier"]), f": {each['headline']}. {' '.join(each['words'])}") for each in certificates.values()
    )
    sections = [
        section("Result", shown, Bullets(words)),
        Section("What was covered", (Bullets(_scope(certificates)),)),
        section("Figures", *_pictures(run_dir, names)),
        Section(WHERE, (Bullets(_where(certificates)),)),
    ]
    return report_of(run_dir, "exactness", "Exactness", QUESTION, sections, rows["rule"])


def _caption(certificates: dict[int, dict]) -> str:
    first = next(iter(certificates.values()))
    return (
        f"Is each verifier lossless? Suite {first['suite']}, {len(first['bounds'])} small fixtures, seed "
        f"{first['seed']}; upper bounds at 99% confidence."
    )


def _certificate(run_dir: Path, job: int) -> dict:
    path = run_dir / str(job) / "certificate.json"
    if not path.is_file():
        raise ConfigError("RUN_DIR", run_dir, f"no {path.name} of job {job}", "Use protocol=exactness.")
    return json.loads(path.read_text(encoding="utf-8"))


def _row(certificate: dict) -> dict:
    bounds = certificate["bounds"]
    located = [row["located"] for row in bounds if row["method"] == "located"]
    everywhere = bounds and all(row["method"] != "counted" for row in bounds)
    return {
        "verifier": certificate["verifier"],
        "rule": certificate["rule"],
        "verdict": certificate["verdict"],
        "located": max(located) if located and everywhere else None,
        "small at most": certificate["tv_upper_bound"],
        "over D at most": certificate["inputs_upper_bound"],
        "proved": f"{sum(row['proved'] for row in bounds)} of {len(bounds)}",
        "draws": certificate["draws"],
        "seconds": certificate["seconds"],
    }


def _text(table: pd.DataFrame) -> pd.DataFrame:
    forms = {"located": ".1e", "draws": ",", "seconds": ".0f"}
    shown = table.copy().astype(object)
    for name, form in forms.items():
        shown[name] = ["-" if pd.isna(value) else format(value, form) for value in table[name]]
    for name in ("small at most", "over D at most"):
        shown[name] = [most(None if pd.isna(value) else value) for value in table[name]]
    return shown


def _pictures(run_dir: Path, names: dict[int, str]) -> Iterator[Picture]:
    cells = read_jobs(run_dir, "joint_cells.parquet")
    for job, name in names.items():
        if len(cells) and (cells["job"] == job).any():
            figure = plots.empirical_joint(cells[cells["job"] == job], name)
            question = f"Are whole steps of {name} distributed as the target's?"
            yield Picture(f"joint_{file_name(name)}", figure, question, JOINT)
    calibration = read_jobs(run_dir, "calibration.parquet")
    if len(calibration):
        for job, rows in calibration.groupby("job", sort=True):
            name = names[int(job)]  # ty: ignore[invalid-argument-type]
            seeds = rows["seed"].nunique()
            title = f"{name}: {rows['fixture'].nunique()} fixtures, {seeds} seeds"
            question = f"Do the tests of {name} reject as often as they say?"
            yield Picture(f"qq_{file_name(name)}", plots.qq(rows, title), question, QQ)


def _scope(certificates: dict[int, dict]) -> tuple[Text, ...]:
    """Of the first verifier; what others refused stands with them."""
    first = next(iter(certificates.values()))
    return (*first["covered"], "not: " + "; ".join(first["not_covered"]))


def _where(certificates: dict[int, dict]) -> tuple[Text, ...]:
    first = next(iter(certificates.values()))
    settings = ", ".join(f"{key} {value}" for key, value in first["settings"].items())
    return (
        *(f"{key} {value}" for key, value in first["environment"].items()),
        f"seed {first['seed']}; suite {first['suite']}: {settings}",
    )


if __name__ == "__main__":
    main("exactness", build, lambda report: report.tables[0].shown)
