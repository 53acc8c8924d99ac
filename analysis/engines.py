"""Do engines write the same texts with speculation as without? One line a run of protocol=judge.

A line is what the run's certificate says, certificate.json. Instead of folders it takes such files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.core.errors import ConfigError
from specbench.core.rounding import most
from specbench.core.sampling_params import DEFAULTS
from specbench.metrics.columns import columns_of, frame_of, typed
from specbench.metrics.findings import DIFFERENCE, OF_CHECKPOINT, OF_GREEDY, OF_TEXTS, REFUTED, SHARES
from specbench.metrics.run_row import RunRow
from specbench.reports import Report, Table
from specbench.reports.cells import NONE, Run, number
from specbench.reports.plots import comparisons as plots

from .command import main
from .folder import read_rows
from .page import page
from .parameters import parameters_of

USUAL_CONFIDENCE = 0.99  # protocol.power of conf/protocol/judge.yaml, for certificates that do not tell theirs


@dataclass(frozen=True)
class JudgedRow:
    """What a certificate says; ``scored`` is of the texts that a checkpoint scored.

    Where a checkpoint scored the texts, differences of both ways in shares of sets of tokens are drawn in the place of
    classes, since a faulty engine may take other tokens of the same class.
    """

    engine_under_test: str
    texts_verdict: str | None
    scored_verdict: str | None
    greedy_verdict: str | None
    refuted: bool  # whether any finding is
    sampled: int | None  # texts
    nats: float | None  # entropy a token
    log10_evidence: float | None  # against the engine
    log10_evidence_scored: float | None
    observed: float | None  # bias a token
    bound: float | None  # of it
    confidence: float  # at which all bounds hold
    drawn: float | None  # the bias in the figure
    drawn_bound: float | None
    bound_scored: float | None
    forks: float | None  # in a thousand greedy tokens
    method: str
    asks: str  # sampling parameters


@dataclass(frozen=True, kw_only=True)
class EngineRow(JudgedRow):
    """A line of the table."""

    name: str  # in the figure
    certificate: str | None = None  # its file; None of a sweep's run


Line = columns_of(EngineRow)


def build(run_dir: Path, *others: Path) -> Report:
    """The report of a sweep over methods of an engine, and of further sweeps over other engines'; or of certificates.

    Raises:
        ConfigError: a folder without findings of protocol=judge, a file that is no certificate of it, or both kinds.
    """
    files = [path for path in (run_dir, *others) if path.is_file()]
    if files and len(files) <= len(others):
        raise ConfigError("RUN_DIR", files[0], "a file beside folders", "Give certificates alone, or folders alone.")
    parts = [frame_of(map(certified, files), JudgedRow)] if files else map(judged, (run_dir, *others))
    lines = pd.concat(parts, ignore_index=True)
    lines[Line.name] = lines[Line.engine_under_test].map(short) + ", " + lines[Line.method] + ", " + lines[Line.asks]
    if files:  # runs that differ in their models alone have the name of their file as well
        twice = lines[Line.name].duplicated(keep=False)
        lines[Line.name] = lines[Line.name].where(~twice, lines[Line.name] + [f" ({path.stem})" for path in files])
        lines[Line.certificate] = [path.name for path in files]
    rows, confidence = typed(lines, EngineRow), lines[Line.confidence].min()
    bars = [
        (row.name, row.drawn, row.drawn_bound) for row in rows if row.drawn is not None and row.drawn_bound is not None
    ]
    shown = {
        "table": Table("table", table(rows), lines, left=("engine", "method", "texts")),
        "bias_by_engine": plots.engines(bars, confidence),
    }
    refuted = [row for row in rows if row.refuted]
    return page(None if files else run_dir, lines, "engines", shown, refuted=refuted, confidence=confidence)


def judged(run_dir: Path) -> pd.DataFrame:
    """The rows of a sweep, each with what its certificate says."""
    rows = read_rows(run_dir, Run.source)
    certificates = [certified(run_dir / str(job) / "certificate.json") for job in rows[Run.job]]
    asks = list(map(parameters_of, typed(rows, RunRow)))
    return rows.join(frame_of(certificates, JudgedRow)).assign(asks=asks)


def certified(path: Path) -> JudgedRow:
    """What a certificate says.

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
    answers = [by_question.get(question, {}) for question in (OF_TEXTS, OF_CHECKPOINT, OF_GREEDY)]
    texts, scored, greedy = (answer.get("numbers", {}) for answer in answers)
    return JudgedRow(
        engine,
        *(answer.get("verdict") for answer in answers),
        refuted=any(finding["verdict"] == REFUTED for finding in findings),
        sampled=texts.get("texts"),
        nats=texts.get("nats_a_token"),
        log10_evidence=texts.get("log10_evidence"),
        log10_evidence_scored=scored.get("log10_evidence"),
        observed=texts.get("observed"),
        bound=texts.get("bound"),
        confidence=texts.get("confidence", USUAL_CONFIDENCE),
        drawn=max((abs(row["difference"]) for row in shares), default=texts.get("observed")),
        drawn_bound=max((row["bound"] for row in shares), default=texts.get("bound")),
        bound_scored=scored.get("bound"),
        forks=greedy.get("forks_per_thousand"),
        method=content.get("method") or NONE,
        asks=" ".join([temperature, *cuts]),
    )


def short(engine: str) -> str:
    """The first words of an engine's name and version, for the figure."""
    return " ".join(engine.split()[:2])


def table(rows: Iterable[EngineRow]) -> pd.DataFrame:
    """The lines as text."""
    return pd.DataFrame(
        {
            "engine": row.engine_under_test,
            "method": row.method,
            "texts": f"{row.asks}; {number(row.sampled, ',.0f')}, {number(row.nats)} nats a token",
            "against plain texts": _verdict(row.texts_verdict, row.log10_evidence),
            "bias, at most": _most(row.bound),
            "against the checkpoint": _verdict(row.scored_verdict, row.log10_evidence_scored),
            "bias, at most (scored)": _most(row.bound_scored),
            "temperature 0": row.greedy_verdict or NONE,
            "forks": number(row.forks, ".1f"),
            **({"certificate": row.certificate} if row.certificate else {}),
        }
        for row in rows
    )


def _most(bound: float | None) -> str:
    return NONE if bound is None else most(bound)


def _verdict(verdict: str | None, evidence: float | None) -> str:
    if verdict is None:
        return NONE
    return verdict if evidence is None else f"{verdict}, 10^{evidence:.1f}"


if __name__ == "__main__":
    main("engines", build, several=True)
