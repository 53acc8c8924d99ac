"""Is every verifier that says lossless lossless? Certificates of a run side by side, and their figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.plots import exactness as plots
from specbench.results import read_jobs, read_results
from specbench.rounding import most

from .pages import Illustration, command_line, markdown, write_figures, write_page

QUESTION = "Is every verifier that says lossless lossless, and how sure can one be?"
NOTE = """\
Verdict: lossless up to a bound, not rejected (nothing speaks against it, and less is known), not lossless, or broken.
Located: the bias a step (total variation) that the code's own thresholds imply, the largest over the small fixtures; a
dash if they could not be found everywhere. Small at most: what was located plus what may hide, 99% upper confidence
bound over all small fixtures. Large at most: likewise over the regimes of large vocabularies, long drafts and large
batches, by the requests in which it did not emit its rule's tokens. Proved: fixtures on which its operations were run
over whole intervals. Draws: on small fixtures together."""
JOINT = """\
Shares of whole steps over the target's probabilities. The band holds 95% of the points of an exact rule; it narrows
with the draws, so that what stays inside says how small a bias can still be."""
QQ = """\
p-values of the tests on the small fixtures over many seeds. On the diagonal the tests are calibrated: they reject an
exact verifier as often as they say. A verifier that is biased bends them up on the right."""
COLUMNS = [
    "verifier", "rule", "verdict", "located", "small at most", "large at most", "proved", "draws", "seconds",
]  # fmt: skip


def report(run_dir: Path) -> Path:
    """Writes report.md, table.csv and figures under ``run_dir``/report; returns the path of report.md.

    Raises:
        ConfigError: a folder without results.
    """
    results = read_results(run_dir)
    certificates = {job: _certificate(run_dir, job) for job in results["job"]}
    table = _table(run_dir)
    folder = run_dir / "report"
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "table.csv", index=False)
    (folder / "table.md").write_text(markdown(_text(table)) + "\n", encoding="utf-8")
    words = "\n".join(
        f"- **{each['verifier']}**: {each['headline']}. {' '.join(each['words'])}" for each in certificates.values()
    )
    names = {job: each["verifier"] for job, each in certificates.items()}
    shown = write_figures(folder, _illustrations(run_dir, names))
    sections = [
        f"# Exactness\n\n{QUESTION}",
        f"## Result\n\n{markdown(_text(table))}\n\n{NOTE}\n\n{words}",
        f"## What was covered\n\n{_scope(certificates)}",
        f"## Figures\n\n{shown}",
        f"## Where it ran\n\n{_where(certificates)}",
    ]
    return write_page(folder, sections)


def _table(run_dir: Path) -> pd.DataFrame:
    jobs = read_results(run_dir)["job"]
    return pd.DataFrame([_row(_certificate(run_dir, job)) for job in jobs], columns=COLUMNS)


def _certificate(run_dir: Path, job: int) -> dict:
    return json.loads((run_dir / str(job) / "certificate.json").read_text(encoding="utf-8"))


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
        "large at most": certificate["regime_upper_bound"],
        "proved": f"{sum(row['proved'] for row in bounds)} of {len(bounds)}",
        "draws": certificate["draws"],
        "seconds": certificate["seconds"],
    }


def _text(table: pd.DataFrame) -> pd.DataFrame:
    forms = {"located": ".1e", "draws": ",", "seconds": ".0f"}
    shown = table.copy().astype(object)
    for name, form in forms.items():
        shown[name] = ["-" if pd.isna(value) else format(value, form) for value in table[name]]
    for name in ("small at most", "large at most"):
        shown[name] = [most(None if pd.isna(value) else value) for value in table[name]]
    return shown


def _illustrations(run_dir: Path, names: dict[int, str]) -> Iterator[Illustration]:
    cells = read_jobs(run_dir, "joint_cells.parquet")
    for job, name in names.items():
        if len(cells) and (cells["job"] == job).any():
            figure = plots.empirical_joint(cells[cells["job"] == job], name)
            yield Illustration(f"joint_{_file(name)}", figure, JOINT)
    calibration = read_jobs(run_dir, "calibration.parquet")
    if len(calibration):
        for job, rows in calibration.groupby("job", sort=True):
            name = names[int(job)]  # ty: ignore[invalid-argument-type]
            seeds = rows["seed"].nunique()
            title = f"{name}: {rows['fixture'].nunique()} fixtures, {seeds} seeds"
            yield Illustration(f"qq_{_file(name)}", plots.qq(rows, title), QQ)


def _file(name: str) -> str:
    """A verifier's name as part of a file's."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _scope(certificates: dict[int, dict]) -> str:
    """Of the first verifier; what others refused stands with them."""
    first = next(iter(certificates.values()))
    lines = [f"- {line}" for line in first["covered"]]
    return "\n".join([*lines, "- not: " + "; ".join(first["not_covered"])])


def _where(certificates: dict[int, dict]) -> str:
    first = next(iter(certificates.values()))
    lines = [f"- {key} {value}" for key, value in first["environment"].items()]
    settings = ", ".join(f"{key} {value}" for key, value in first["settings"].items())
    return "\n".join(
        [*lines, f"- seed {first['seed']}; suite {first['suite']}: {settings}", f"- repeat: `{first['command']}`"]
    )


if __name__ == "__main__":
    command_line("exactness", report, lambda run_dir: _text(_table(run_dir)))
