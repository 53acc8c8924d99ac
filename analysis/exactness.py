"""Is every verifier that says lossless lossless? Certificates of a run side by side, and their figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.pages import Illustration, command_line, markdown, write_figures, write_page
from specbench.plots import exactness as plots
from specbench.results import read_jobs, read_results

QUESTION = "Is every verifier that says lossless lossless, and how sure can one be?"
NOTE = """\
Verdict: nothing was rejected in either tier, or what was. Enumerated: total variation of a step's joint distribution
from the target's, without Monte Carlo, the largest over fixtures; by the code with injected uniforms where it takes
them.
Detectable: the bias a step that every small fixture would have shown with the power asked for. At most: 99% upper
confidence bound on the total variation that remains, the largest over the small fixtures. Draws: on small fixtures
together."""
JOINT = """\
Shares of whole steps over the target's probabilities. The band holds 95% of the points of an exact rule; it narrows
with the draws, so that what stays inside says how small a bias can still be."""
QQ = """\
p-values of the tests on the small fixtures over many seeds. On the diagonal the tests are calibrated: they reject an
exact verifier as often as they say. A verifier that is biased bends them up on the right."""
COLUMNS = ["verifier", "rule", "verdict", "enumerated", "detectable", "at most", "draws", "seconds"]


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
    words = "\n".join(f"- **{each['verifier']}**: {each['words']}" for each in certificates.values())
    names = {job: each["verifier"] for job, each in certificates.items()}
    shown = write_figures(folder, _illustrations(run_dir, names))
    sections = [
        f"# Exactness\n\n{QUESTION}",
        f"## Result\n\n{markdown(_text(table))}\n\n{NOTE}\n\n{words}",
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
    errors = [row["error"] for row in certificate["exact"] if row["error"] is not None]
    return {
        "verifier": certificate["verifier"],
        "rule": certificate["rule"],
        "verdict": certificate["verdict"],
        "enumerated": max(errors) if errors else None,
        "detectable": certificate["detectable_tv"],
        "at most": certificate["tv_upper_bound"],
        "draws": certificate["draws"],
        "seconds": certificate["seconds"],
    }


def _text(table: pd.DataFrame) -> pd.DataFrame:
    forms = {"enumerated": ".1e", "detectable": ".2g", "at most": ".2g", "draws": ",", "seconds": ".0f"}
    shown = table.copy().astype(object)
    for name, form in forms.items():
        shown[name] = ["-" if pd.isna(value) else format(value, form) for value in table[name]]
    return shown


def _illustrations(run_dir: Path, names: dict[int, str]) -> Iterator[Illustration]:
    cells = read_jobs(run_dir, "joint_cells.parquet")
    for job, name in names.items():
        if len(cells) and (cells["job"] == job).any():
            figure = plots.empirical_joint(cells[cells["job"] == job], name)
            yield Illustration(f"joint_{name.replace('/', '_')}", figure, JOINT)
    calibration = read_jobs(run_dir, "calibration.parquet")
    if len(calibration):
        for job, rows in calibration.groupby("job", sort=True):
            name = names[int(job)]  # ty: ignore[invalid-argument-type]
            seeds = rows["seed"].nunique()
            title = f"{name}: {rows['fixture'].nunique()} fixtures, {seeds} seeds"
            yield Illustration(f"qq_{name.replace('/', '_')}", plots.qq(rows, title), QQ)


def _where(certificates: dict[int, dict]) -> str:
    first = next(iter(certificates.values()))
    lines = [f"- {key} {value}" for key, value in first["environment"].items()]
    settings = ", ".join(f"{key} {value}" for key, value in first["settings"].items())
    return "\n".join([*lines, f"- seed {first['seed']}; {settings}", f"- replay: `{first['command']}`"])


if __name__ == "__main__":
    command_line("exactness", report, lambda run_dir: _text(_table(run_dir)))
