"""Does evidence from whole texts grow against flawed verifiers, and against them alone?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from specbench.core import rounding
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, file_name, number
from specbench.reports.plots import evidence as plots

from .command import main
from .exactness import read_certificate
from .folder import read_rows, read_table
from .page import Shown, page


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    rows = rows[rows["temperature"] != 0]  # those are of greedy_divergence.py
    paths = read_table(run_dir, "eprocess.parquet", rows, ["verifier", "lossless"])
    summaries = certificates(run_dir, rows)
    paths = paths.merge(summaries[["job", "setting", "false_alarm"]], on="job").sort_values(["job", "bet", "token"])
    left = ("verifier", "sampling", "verdict", "strongest bet")
    together = paths[paths["bet"] == "all bets"]
    shown: dict[str, Shown] = {
        "table": Table("table", table(summaries), summaries, left=left),
        "evidence_paths": plots.evidence_paths(together, float(together["false_alarm"].max())),
    }
    bets = []
    for (job, verifier, setting), own in paths.groupby(["job", "verifier", "setting"], sort=True):  # ty: ignore[not-iterable]
        name = f"bets_{job}_{file_name(str(verifier))}"
        shown[name] = plots.eprocess(own, float(own["false_alarm"].iloc[0]), f"{verifier}, {setting}")
        bets.append((name, verifier, setting))
    return page(run_dir, "eprocess", shown, rows=rows, found=summaries, bets=bets)


def certificates(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """One line a job: what its certificate says, flat, with bounds on the share of positions without a bet.

    Raises:
        ConfigError: a job without a certificate.
    """
    lines = []
    for _, row in rows.sort_values("job").iterrows():
        certificate = read_certificate(run_dir, row["job"], "e_certificate.json")
        share = stats.binomtest(certificate["without_bet"], certificate["tokens"]).proportion_ci(method="exact")
        growth = certificate["growth"] or dict.fromkeys(("value", "low", "high"))  # None where evidence is infinite
        keys = ("verdict", "tokens", "texts", "without_bet", "impossible", "rejected_at", "strongest_bet", "dtype")
        lines.append(
            {
                "job": row["job"],
                "verifier": row["verifier"],
                "lossless": row["lossless"],
                "setting": setting(certificate),
                **{key: certificate[key] for key in keys},
                "log10_e_value": math.inf if certificate["log10_e_value"] is None else certificate["log10_e_value"],
                "without_bet_share": certificate["without_bet"] / certificate["tokens"],
                "without_bet_low": float(share.low),
                "without_bet_high": float(share.high),
                **{f"growth_{name}": value for name, value in growth.items()},
                "rounding": certificate["rounding"]["largest"],
                "rounding_over_tolerance": certificate["rounding"]["over_tolerance"],
                "false_alarm": certificate["false_alarm"],
                "seed": certificate["seed"],
                "command": certificate["command"],
            }
        )
    return pd.DataFrame(lines)


def setting(certificate: dict[str, Any]) -> str:
    """How was sampled, in short: ``T=1 top_p=0.9 float32``."""
    sampling = certificate["sampling"]
    off = {"top_k": (0, -1), "top_p": (1,), "min_p": (0,)}
    parts = [f"T={sampling['temperature']:g}"]
    parts += [f"{name}={sampling[name]:g}" for name, values in off.items() if sampling[name] not in values]
    parts += [f"{name}={value}" for name, value in sampling.items() if name not in ("temperature", *off)]
    return " ".join([*parts, certificate["dtype"]])


def table(summaries: pd.DataFrame) -> pd.DataFrame:
    """The lines as text."""
    return cells.shown(summaries, _line)


def _line(row: pd.Series) -> dict[str, str]:
    share = f"{row['without_bet_share']:.2%} [{row['without_bet_low']:.2%}, {row['without_bet_high']:.2%}]"
    growth = [row[f"growth_{end}"] for end in ("value", "low", "high")]
    return {
        "verifier": row["verifier"],
        "sampling": row["setting"],
        "verdict": row["verdict"],
        "log10 evidence": "infinite" if row["log10_e_value"] == math.inf else f"{row['log10_e_value']:.2f}",
        "rejected after": number(row["rejected_at"], ",.0f"),
        "tokens": f"{row['tokens']:,}",
        "no bet": f"{row['without_bet']:,} ({share})",
        "impossible": f"{row['impossible']:,}",
        "strongest bet": row["strongest_bet"],
        "growth": NONE if pd.isna(growth[0]) else rounding.interval(*growth),
        "rounding": f"{row['rounding']:.1e} ({row['rounding_over_tolerance']:.0%})",
    }


if __name__ == "__main__":
    main("eprocess", build)
