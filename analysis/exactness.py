"""Is every verifier that says lossless lossless? Certificates of a run side by side, and their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.core.errors import ConfigError
from specbench.core.machine.files import wrap_library_errors
from specbench.core.rounding import most
from specbench.metrics.exactness_rows import CELLS
from specbench.metrics.results import read_jobs
from specbench.reports import Report, Table, cells
from specbench.reports.cells import Run, file_name, number
from specbench.reports.plots import exactness as plots

from .command import main
from .folder import read_rows
from .page import Shown, page


def build(run_dir: Path) -> Report:
    """The report of a run."""
    run_rows = read_rows(run_dir)
    certificates = {int(job): read_certificate(run_dir, job) for job in run_rows[Run.job]}
    rows = pd.DataFrame([_row(certificate) for certificate in certificates.values()])
    shown: dict[str, Shown] = {"table": Table("table", cells.shown(rows, _line), rows, left=tuple(rows.columns[:3]))}
    joint, verifiers = read_jobs(run_dir, CELLS), [certificate["verifier"] for certificate in certificates.values()]
    for job, certificate in certificates.items():
        several = verifiers.count(certificate["verifier"]) > 1
        certificate["name"] = f"{certificate['verifier']} (job {job})" if several else certificate["verifier"]
        certificate["joint_name"] = ""
        if len(joint) and (joint[Run.job] == job).any():
            end = f"_{job}" if several else ""
            certificate["joint_name"] = f"joint_{file_name(certificate['verifier'])}{end}"
            shown[certificate["joint_name"]] = plots.empirical_joint(joint[joint[Run.job] == job], certificate["name"])
    rules = [certificate["rule"] for certificate in certificates.values()]
    return page(run_dir, run_rows, "exactness", shown, rules, certificates=list(certificates.values()))


def read_certificate(run_dir: Path, job: int) -> dict[str, Any]:
    """The certificate of a job.

    Raises:
        ConfigError: the job has none, a damaged one, or one of an engine.
    """
    path = run_dir / str(job) / "certificate.json"
    if not path.is_file():
        raise ConfigError("RUN_DIR", run_dir, f"no {path.name} of job {job}", "Use protocol=exactness.")
    with wrap_library_errors("RUN_DIR", path, "damaged", "Run the job again."):
        certificate = json.loads(path.read_text(encoding="utf-8"))
    if "bounds" not in certificate:
        raise ConfigError("RUN_DIR", path, "no certificate of a verifier", "Use protocol=exactness.")
    return certificate


def _row(certificate: dict[str, Any]) -> dict[str, Any]:
    bounds = certificate["bounds"]
    located = [row["located"] for row in bounds if row["method"] == "located"]
    everywhere = bounds and all(row["method"] != "counted" for row in bounds)
    return {
        **{key: certificate[key] for key in ("verifier", "rule", "verdict")},
        "located": max(located) if located and everywhere else None,
        "small at most": certificate["tv_upper_bound"],
        "over D at most": certificate["inputs_upper_bound"],
        "proved": f"{sum(row['proved'] for row in bounds)} of {len(bounds)}",
        **{key: certificate[key] for key in ("draws", "seconds")},
    }


def _line(row: pd.Series) -> dict[str, str]:
    return {
        **row,
        **{name: most(None if pd.isna(row[name]) else row[name]) for name in ("small at most", "over D at most")},
        "located": number(row["located"], ".1e"),
        "draws": number(row["draws"], ","),
        "seconds": number(row["seconds"], ".0f"),
    }


if __name__ == "__main__":
    main("exactness", build)
