"""At temperature 0, where do speculative and plain text part, and is it rounding?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, number
from specbench.reports.plots import evidence as plots

from .command import main
from .folder import read_rows, read_table
from .page import page

SETTINGS = ["verifier", "dtype", "gamma"]


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    forks = read_table(run_dir, "greedy_divergence.parquet", rows, [*SETTINGS, "lossless"])
    summaries = pd.DataFrame([summary(own) for _, own in forks.groupby("job", sort=True)])
    known = forks[forks["logit_noise"].notna()]
    series = known.assign(series=known["verifier"] + ", " + known["dtype"])
    shown = {
        "table": Table("table", table(summaries), summaries, left=("verifier", "dtype")),
        "forks": plots.forks(series) if len(known) else None,
    }
    data = {"forks": forks[forks["position"].notna()]}
    return page(run_dir, "greedy_divergence", shown, data=data, rows=rows, found=summaries)


def summary(forks: pd.DataFrame) -> dict[str, Any]:
    """One job's texts, how many part, one fork in how many tokens, and why."""
    parted = forks[forks["position"].notna()]
    # A text is followed up to its fork; what comes after is another text.
    position = forks["position"].astype(float)  # objects where no text forks
    followed = int((position + 1).fillna(forks["tokens"]).sum())
    share = stats.binomtest(len(parted), len(forks)).proportion_ci(method="exact")
    rate = stats.binomtest(len(parted), max(followed, 1)).proportion_ci(method="exact")
    margins = parted[["plain_margin", "speculative_margin"]].abs()
    return {
        **{name: forks[name].iloc[0] for name in ("job", *SETTINGS, "lossless")},
        "texts": len(forks),
        "parted": len(parted),
        "parted_low": float(share.low),
        "parted_high": float(share.high),
        "tokens_followed": followed,
        "fork_rate": len(parted) / max(followed, 1),
        "fork_rate_low": float(rate.low),
        "fork_rate_high": float(rate.high),
        "near_ties": int((parted["cause"] == "near tie").sum()),
        "unexplained": int((parted["cause"] == "unexplained").sum()),
        "largest_smaller_margin": margins.min(axis=1).max(),
        "median_noise": parted["logit_noise"].median(),
        "largest_noise": parted["logit_noise"].max(),
    }


def table(summaries: pd.DataFrame) -> pd.DataFrame:
    """The lines as text."""
    return cells.shown(summaries, _line)


def _line(row: pd.Series) -> dict[str, str]:
    most = f"{1 / row['fork_rate_low']:,.0f}" if row["parted"] else "no bound"
    apart = f"{1 / row['fork_rate']:,.0f}" if row["parted"] else NONE
    return {
        "verifier": row["verifier"],
        "dtype": row["dtype"],
        "texts": str(row["texts"]),
        "parted": f"{row['parted']} ({row['parted_low']:.1%} to {row['parted_high']:.1%})",
        "tokens a fork": f"{apart} ({1 / row['fork_rate_high']:,.0f} to {most})",
        "near ties": str(row["near_ties"]),
        "unexplained": str(row["unexplained"]),
        "largest margin": number(row["largest_smaller_margin"], ".2g"),
        "noise, median (largest)": NONE
        if pd.isna(row["median_noise"])
        else f"{row['median_noise']:.2g} ({row['largest_noise']:.2g})",
    }


if __name__ == "__main__":
    main("greedy_divergence", build)
