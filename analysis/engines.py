"""Do engines write the same texts with speculation as without? One line a run of protocol=judge.

A line is what the run's certificate says, certificate.json. Instead of folders it takes such files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.core.errors import ConfigError
from specbench.core.rounding import most
from specbench.core.sampling_params import DEFAULTS
from specbench.metrics.findings import DIFFERENCE, OF_CHECKPOINT, OF_GREEDY, OF_TEXTS, REFUTED, SHARES
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, number
from specbench.reports.plots import comparisons as plots

from .command import main
from .folder import read_rows
from .page import page
from .parameters import parameters_of

USUAL_CONFIDENCE = 0.99  # protocol.power of conf/protocol/judge.yaml, for certificates that do not tell theirs
QUESTIONS = {"texts": OF_TEXTS, "scored": OF_CHECKPOINT, "greedy": OF_GREEDY}


def build(run_dir: Path, *others: Path) -> Report:
    """The report of a sweep over methods of an engine, and of further sweeps over other engines'; or of certificates.

    Raises:
        ConfigError: a folder without findings of protocol=judge, a file that is no certificate of it, or both kinds.
    """
    files = [path for path in (run_dir, *others) if path.is_file()]
    if files and len(files) <= len(others):
        raise ConfigError("RUN_DIR", files[0], "a file beside folders", "Give certificates alone, or folders alone.")
    parts = [pd.DataFrame(map(certified, files))] if files else [judged(folder) for folder in (run_dir, *others)]
    lines = pd.concat(parts, ignore_index=True)
    lines["name"] = lines["engine_under_test"].map(short) + ", " + lines["method"] + ", " + lines["asks"]
    if files:  # runs that differ in their models alone have the name of their file as well
        twice = lines["name"].duplicated(keep=False)
        lines["name"] = lines["name"].where(~twice, lines["name"] + [f" ({path.stem})" for path in files])
        lines["certificate"] = [path.name for path in files]
    rows = Table("table", table(lines), lines, left=("engine", "method", "texts"))
    bars = [(row["name"], row["drawn"], row["drawn_bound"]) for _, row in lines.iterrows()]
    confidence = lines["confidence"].min()  # at which all bounds hold
    shown = {"table": rows, "bias_by_engine": plots.engines([bar for bar in bars if pd.notna(bar[2])], confidence)}
    refuted = lines[lines["refuted"]]
    of_sweep = None if files else run_dir
    return page(of_sweep, lines, "engines", shown, refuted=refuted, confidence=confidence)


def judged(run_dir: Path) -> pd.DataFrame:
    """The rows of a sweep, each with what its certificate says."""
    rows = read_rows(run_dir, "source")
    lines = rows.join(pd.DataFrame([certified(run_dir / str(job) / "certificate.json") for job in rows["job"]]))
    return lines.assign(asks=[parameters_of(row) for _, row in rows.iterrows()])


def certified(path: Path) -> dict[str, Any]:
    """What a certificate says: the engine, its method and parameters, the verdicts of its findings by question, and the
    numbers that the table and the figure show.

    Where a checkpoint scored the texts, differences of both ways in shares of sets of tokens are drawn in the place of
    classes, since a faulty engine may take other tokens of the same class.

    Raises:
        ConfigError: another file, or none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        engine, sampling, findings = content["engine"], content["sampling"], content["findings"]
        by_question = {finding["question"]: finding for finding in findings}
        shares = [row for finding in findings for row in finding["rows"].get(SHARES, ()) if row["mode"] == DIFFERENCE]
        temperature = f"T={sampling['temperature']:g}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        remedy = "Give certificate.json of a run of protocol=judge."
        raise ConfigError("RUN_DIR", path, f"no certificate of an engine ({error!r})", remedy) from error
    changed = {name: value for name, value in sampling.items() if name != "temperature" and value != DEFAULTS[name]}
    cuts = [f"{name}={value:g}" if isinstance(value, int | float) else name for name, value in changed.items()]
    answers = {name: by_question.get(question, {}) for name, question in QUESTIONS.items()}
    texts, scored, greedy = (answer.get("numbers", {}) for answer in answers.values())
    return {
        "engine_under_test": engine,
        **{f"{name}_verdict": answer.get("verdict") for name, answer in answers.items()},
        "refuted": any(finding["verdict"] == REFUTED for finding in findings),
        "sampled": texts.get("texts"),
        "nats": texts.get("nats_a_token"),
        "log10_evidence": texts.get("log10_evidence"),
        "log10_evidence_scored": scored.get("log10_evidence"),
        "observed": texts.get("observed"),
        "bound": texts.get("bound"),
        "confidence": texts.get("confidence", USUAL_CONFIDENCE),
        "drawn": max((abs(row["difference"]) for row in shares), default=texts.get("observed")),
        "drawn_bound": max((row["bound"] for row in shares), default=texts.get("bound")),
        "bound_scored": scored.get("bound"),
        "forks": greedy.get("forks_per_thousand"),
        "method": content.get("method") or NONE,
        "asks": " ".join([temperature, *cuts]),
    }


def short(engine: str) -> str:
    """The first words of an engine's name and version, for the figure."""
    return " ".join(engine.split()[:2])


def table(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines as text."""
    return cells.shown(
        lines,
        lambda row: {
            "engine": row["engine_under_test"],
            "method": row["method"],
            "texts": f"{row['asks']}; {number(row['sampled'], ',.0f')}, {number(row['nats'])} nats a token",
            "against plain texts": _verdict(row, "texts", "log10_evidence"),
            "bias, at most": _most(row["bound"]),
            "against the checkpoint": _verdict(row, "scored", "log10_evidence_scored"),
            "bias, at most (scored)": _most(row["bound_scored"]),
            "temperature 0": row["greedy_verdict"] or NONE,
            "forks": number(row["forks"], ".1f"),
            **({"certificate": row["certificate"]} if "certificate" in row else {}),
        },
    )


def _most(bound: float | None) -> str:
    return most(bound) if pd.notna(bound) else NONE


def _verdict(row: pd.Series, question: str, evidence: str) -> str:
    verdict = row[f"{question}_verdict"]
    if not isinstance(verdict, str):
        return NONE
    return f"{verdict}, 10^{row[evidence]:.1f}" if pd.notna(row[evidence]) else verdict


if __name__ == "__main__":
    main("engines", build, several=True)
