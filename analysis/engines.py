"""Do engines write the same texts with speculation as without? One line a run of protocol=judge.

Instead of folders it takes the certificates of runs, certificate.json, and makes the same table and figure of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import DEFAULTS
from specbench.metrics.findings import (
    DIFFERENCE,
    FINDINGS,
    OF_CHECKPOINT,
    OF_GREEDY,
    OF_TEXTS,
    REFUTED,
    SHARES,
    FindingRow,
)
from specbench.metrics.results import schema_of
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, number
from specbench.reports.plots import comparisons as plots

from .command import main
from .folder import read_rows, read_table
from .page import page
from .parameters import parameters_of

QUESTIONS = {"texts": OF_TEXTS, "scored": OF_CHECKPOINT, "greedy": OF_GREEDY}


def build(run_dir: Path, *others: Path) -> Report:
    """The report of a sweep over methods of an engine, and of further sweeps over other engines'; or of certificates.

    Raises:
        ConfigError: a folder without findings of protocol=judge, a file that is no certificate of it, or both kinds.
    """
    files = [path for path in (run_dir, *others) if path.is_file()]
    if files and len(files) <= len(others):
        raise ConfigError("RUN_DIR", files[0], "a file beside folders", "Give certificates alone, or folders alone.")
    parts = [certified(path) for path in files] or [judged(folder) for folder in (run_dir, *others)]
    lines = pd.concat(parts, ignore_index=True)
    if files:  # runs that differ in their models alone have the name of their file as well
        twice, stems = lines["name"].duplicated(keep=False), lines["certificate"].str.removesuffix(".json")
        lines["name"] = lines["name"].where(~twice, lines["name"] + " (" + stems + ")")
    rows = Table("table", table(lines), lines, left=("engine", "method", "texts"))
    bars = [(row["name"], row["drawn"], row["drawn_bound"]) for _, row in lines.iterrows()]
    shown = {"table": rows, "bias_by_engine": plots.engines([bar for bar in bars if pd.notna(bar[2])], 0.99)}
    refuted = lines[lines["refuted"]]
    return page(None if files else run_dir, "engines", shown, results=lines, refuted=refuted)


def certified(path: Path) -> pd.DataFrame:
    """The line of a certificate. Raises ConfigError for another file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sampling, findings = content["sampling"], pd.DataFrame(content["findings"]).assign(engine=content["engine"])
        shares = [row for rows in findings["rows"] for row in rows.get(SHARES, ())]
        findings["numbers"] = findings["numbers"].map(json.dumps)
    except (OSError, ValueError, LookupError, TypeError) as error:
        remedy = "Give certificate.json of a run of protocol=judge."
        raise ConfigError("RUN_DIR", path, f"no certificate of an engine ({error!r})", remedy) from error
    changed = {name: value for name, value in sampling.items() if name != "temperature" and value != DEFAULTS[name]}
    cuts = [f"{name}={value:g}" if isinstance(value, int | float) else name for name, value in changed.items()]
    asks, how = " ".join([f"T={sampling['temperature']:g}", *cuts]), content.get("method") or NONE
    finding = finding_columns(findings, pd.DataFrame([row for row in shares if row["mode"] == DIFFERENCE]))
    name = f"{short(content['engine'])}, {how}, {asks}"
    return pd.DataFrame([{**finding, "method": how, "asks": asks, "name": name, "certificate": path.name}])


def judged(run_dir: Path) -> pd.DataFrame:
    """The rows of a sweep with the verdicts and numbers of each run's findings."""
    rows = read_rows(run_dir, "source")
    findings = read_table(
        run_dir, FINDINGS, schema=schema_of(FindingRow), remedy="Give the folder of a run of protocol=judge."
    )
    shares = read_table(run_dir, SHARES, remedy=None)
    differences = shares[shares["mode"] == DIFFERENCE] if len(shares) else pd.DataFrame(columns=["job"])
    of_jobs = ((findings[findings["job"] == job], differences[differences["job"] == job]) for job in rows["job"])
    lines = rows.join(pd.DataFrame([finding_columns(*of_job) for of_job in of_jobs], index=rows.index))
    lines["method"] = [method_of(row) for _, row in rows.iterrows()]
    lines["asks"] = [parameters_of(row) for _, row in rows.iterrows()]
    lines["name"] = lines["engine_under_test"].map(short) + ", " + lines["method"] + ", " + lines["asks"]
    return lines


def method_of(row: pd.Series) -> str:
    """How the engine speculated, by its source's settings; our own decoder, by its verifier."""
    source = (json.loads(row["config"]) if isinstance(row["config"], str) else {}).get("source") or {}
    verifier = row["verifier"] if isinstance(row["verifier"], str) else None
    return str(source.get("method") or verifier or NONE)


def short(engine: str) -> str:
    """The first words of an engine's name and version, for the figure."""
    return " ".join(engine.split()[:2])


def finding_columns(findings: pd.DataFrame, shares: pd.DataFrame) -> dict[str, Any]:
    """The verdicts of a run's findings by question, and the numbers that the table and the figure show.

    Args:
        shares: differences of both ways in shares of sets of tokens, where a checkpoint scored them; they are drawn in
            the place of classes, since a faulty engine may take other tokens of the same class.
    """
    by_question = {row["question"]: row for _, row in findings.iterrows()}
    answers = {name: by_question.get(question, {}) for name, question in QUESTIONS.items()}
    numbers = {name: json.loads(answer.get("numbers", "{}")) for name, answer in answers.items()}
    texts, scored = numbers["texts"], numbers["scored"]
    return {
        "engine_under_test": next(iter(findings["engine"]), NONE),
        **{f"{name}_verdict": answer.get("verdict") for name, answer in answers.items()},
        "refuted": bool((findings["verdict"] == REFUTED).any()),
        "sampled": texts.get("texts"),
        "nats": texts.get("nats_a_token"),
        "log10_evidence": texts.get("log10_evidence"),
        "log10_evidence_scored": scored.get("log10_evidence"),
        "observed": texts.get("observed"),
        "bound": texts.get("bound"),
        "drawn": float(shares["difference"].abs().max()) if len(shares) else texts.get("observed"),
        "drawn_bound": float(shares["bound"].max()) if len(shares) else texts.get("bound"),
        "bound_scored": scored.get("bound"),
        "forks": numbers["greedy"].get("forks_per_thousand"),
    }


def table(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines as text."""
    return cells.shown(
        lines,
        lambda row: {
            "engine": row["engine_under_test"],
            "method": row["method"],
            "texts": f"{row['asks']}; {number(row['sampled'], ',.0f')}, {number(row['nats'])} nats a token",
            "against plain texts": _verdict(row, "texts", "log10_evidence"),
            "bias, at most": number(row["bound"], ".3f"),
            "against the checkpoint": _verdict(row, "scored", "log10_evidence_scored"),
            "bias, at most (scored)": number(row["bound_scored"], ".3f"),
            "temperature 0": row["greedy_verdict"] or NONE,
            "forks": number(row["forks"], ".1f"),
            **({"certificate": row["certificate"]} if "certificate" in row else {}),
        },
    )


def _verdict(row: pd.Series, question: str, evidence: str) -> str:
    verdict = row[f"{question}_verdict"]
    if not isinstance(verdict, str):
        return NONE
    return f"{verdict}, 10^{row[evidence]:.1f}" if pd.notna(row[evidence]) else verdict


if __name__ == "__main__":
    main("engines", build, several=True)
