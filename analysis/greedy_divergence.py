"""At temperature 0, where do speculative and plain text part, and is it rounding?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from specbench.reports import Picture, Report, Strong, Table, Text
from specbench.reports.cells import NONE
from specbench.reports.plots import evidence as plots
from specbench.reports.text import section

from .command import main
from .decoding import where_it_ran
from .folder import read_rows, read_table, report_of

QUESTION = """\
At temperature 0 speculative and plain decoding emit the target's argmax, so their texts are equal where arithmetic is
exact. A block of tokens rounds differently than one token, and where two logits nearly tie the texts part without
anything being wrong. How often, and is each fork such a tie?"""
NOTE = """\
Parted: texts, and 95% bounds of their share (Clopper and Pearson). Tokens a fork: tokens followed up to the forks, over
forks, with bounds of the same kind. A fork is a near tie where the margins of the two tokens, scored in either shape,
differ in sign, or where the smaller is within twice the noise: the largest difference of any logit between the two
shapes; what is not is unexplained. Largest margin: of the smaller margins. Near ties
of a flawed verifier may be bugs that the noise excuses."""
FORKS = """\
Forks whose logits were scored in both shapes: the smaller margin against the noise. Filled where the margins differ in
sign. Points above the dashed line (a margin of twice the noise) that are not filled are unexplained. Exact ties are
drawn at the bottom."""
SETTINGS = ["verifier", "dtype", "gamma"]


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    rows = read_rows(run_dir)
    forks = read_table(run_dir, "greedy_divergence.parquet", rows, [*SETTINGS, "lossless"])
    found = pd.DataFrame([summary(own) for _, own in forks.groupby("job", sort=True)])
    about = f"{found['texts'].sum()} texts of {len(found)} runs; 95% bounds by Clopper and Pearson."
    shown = Table("table", table(found), found, f"Where greedy texts part. {about}", NOTE, left=("verifier", "dtype"))
    sections = [
        section("Result", *findings(found)),
        section("Table", shown),
        section("Figures", *_pictures(forks, about)),
        where_it_ran(rows),
    ]
    data = {"forks": forks[forks["position"].notna()]}
    return report_of(run_dir, "greedy_divergence", "Forks of greedy texts", QUESTION, sections, data=data)


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


def findings(found: pd.DataFrame) -> list[Text]:
    """What the verifiers of each kind found, in words."""
    sentences: list[Text] = []
    for _, row in found.iterrows():
        text = (
            f"{row['verifier']} in {row['dtype']}: {row['parted']} of {row['texts']} texts part, "
            f"{row['near_ties']} at near ties, {row['unexplained']} unexplained."
        )
        # A sound verifier without an explanation and a flawed one with nothing but explanations are both news.
        surprising = row["unexplained"] > 0 if row["lossless"] else row["unexplained"] == 0
        sentences.append((Strong(text),) if surprising else text)
    return sentences


def table(found: pd.DataFrame) -> pd.DataFrame:
    """The lines as text."""
    return pd.DataFrame([_line(row) for _, row in found.iterrows()])


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
        "largest margin": NONE if pd.isna(row["largest_smaller_margin"]) else f"{row['largest_smaller_margin']:.2g}",
        "noise, median (largest)": NONE
        if pd.isna(row["median_noise"])
        else f"{row['median_noise']:.2g} ({row['largest_noise']:.2g})",
    }


def _pictures(forks: pd.DataFrame, about: str) -> Iterator[Picture]:
    known = forks[forks["logit_noise"].notna()]
    if len(known):
        figure = plots.forks(known.assign(series=known["verifier"] + ", " + known["dtype"]))
        yield Picture("forks", figure, "Is each fork a near tie of two logits?", f"{FORKS} {about}")


if __name__ == "__main__":
    main("greedy_divergence", build)
