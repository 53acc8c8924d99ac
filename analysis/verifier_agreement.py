"""On what share of draws does a verifier differ from its rule's plain twin, and is every difference rounding?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES
from specbench.core.errors import ConfigError
from specbench.metrics.results import read_jobs
from specbench.reports import Bullets, Link, Paragraph, Report, Section, Strong, Table, Text
from specbench.reports.cells import NONE, number, values
from specbench.reports.text import section

from .command import main
from .decoding import WHERE
from .folder import read_rows, read_whole, report_of

QUESTION = """\
Verifiers of one rule that read the same uniforms promise the same tokens. A fast one computes in single precision and
adds in another order, so a draw next to a threshold may fall on its other side. How often, and is that all?"""
METHOD = (
    """\
A draw is a decision on a drafted token, or an emitted token. A difference is rounding if some relative error of p
and q up to the tolerance leads to it (specbench/rules/agreement.py); anything else is a bug. The interval of the
share is Clopper and Pearson's, 95%. On the small fixtures, whose thresholds are known, a difference is rounding if the
uniform lies within 1e-6 of the threshold at which the two part. """,
    Link("table.csv", "table.csv"),
    " holds every column, unrounded, ",
    Link("differences.csv", "differences.csv"),
    " each difference, and ",
    Link("fixtures.csv", "fixtures.csv"),
    " the small fixtures one by one.",
)
COUNTS = ["requests", "rounding", "structural", "another_rule"]


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results, or without comparisons.
    """
    results = read_rows(run_dir)
    compared, fixtures = read_compared(run_dir), read_fixtures(run_dir, results)
    if compared.empty and fixtures.empty:
        raise ConfigError("RUN_DIR", run_dir, "no verifier was compared in it", "Use protocol=agreement.")
    # Without draws there is nothing to show, and table.csv is there all the same.
    about = f"Draws that differ from the rule's plain twin, of {len(compared)} runs; 95% intervals."
    shown = Table("table", table(compared), compared, about, METHOD, left=("verifier", "twin"))
    sections = [
        section("Result", *(sentence(row) for _, row in compared.iterrows()), *on_fixtures(fixtures)),
        Section("Table", (shown,) if len(compared) else (Paragraph(NONE), Paragraph(METHOD))),
        where_it_ran(results),
    ]
    data = {"fixtures": fixtures, "differences": read_jobs(run_dir, DIFFERENCES)}
    if compared.empty:
        data["table"] = compared
    rules = compared["rule"] if len(compared) else ()
    return report_of(run_dir, "verifier_agreement", "Verifier agreement", QUESTION, sections, rules, data)


def where_it_ran(results: pd.DataFrame) -> Section:
    """Hardware, versions and settings."""
    lines = (
        f"hardware: {values(results, 'hardware')}; device {values(results, 'device')}",
        f"versions: specbench {values(results, 'version')}, commit {values(results, 'commit')}; "
        f"Python {values(results, 'python')}, PyTorch {values(results, 'torch')}",
        f"gamma {values(results, 'gamma')}, {values(results, 'batch_size')} requests a step, "
        f"{values(results, 'dtype')}, temperature {values(results, 'temperature')}, top_k "
        f"{values(results, 'top_k')}, top_p {values(results, 'top_p')}, min_p {values(results, 'min_p')}; "
        f"seed {values(results, 'seed')}",
    )
    return Section(WHERE, (Bullets(lines),))


def read_compared(run_dir: Path) -> pd.DataFrame:
    """A row a job that compared draws; without rows if none did."""
    compared = read_whole(run_dir, AGREEMENT, AGREEMENT_SCHEMA)
    return compared if compared.empty else compared.sort_values("job", ignore_index=True)


def read_fixtures(run_dir: Path, results: pd.DataFrame) -> pd.DataFrame:
    """A row a job and small fixture, with the job's verifier; without rows if none was compared on them."""
    fixtures = read_jobs(run_dir, "comparisons.parquet")
    return fixtures if fixtures.empty else fixtures.merge(results[["job", "verifier"]], on="job")


def on_fixtures(fixtures: pd.DataFrame) -> list[Text]:
    """What each job found on the small fixtures."""
    if fixtures.empty:
        return []
    sentences: list[Text] = []
    for _, row in fixtures.groupby(["job", "verifier"], as_index=False)[COUNTS].sum().iterrows():
        differ = row["rounding"] + row["structural"] + row["another_rule"]
        text = f"{row['verifier']} differs in {differ:,} of {row['requests']:,} requests of the small fixtures"
        text += f", in {row['rounding']:,} of them by rounding." if differ else "."
        wrong = (Strong(f"{text} {row['structural']:,} are no rounding."),)
        sentences.append(wrong if row["structural"] else text)
    return sentences


def sentence(row: pd.Series) -> Text:
    """What one job found."""
    text = (
        f"{row['verifier']} differs from {row['twin']} in {row['differences']} of {row['draws']:,} draws at a "
        f"vocabulary of {row['vocabulary']:,}, a share of {row['share']:.2g} "
        f"[{row['share_low']:.2g}, {row['share_high']:.2g}]."
    )
    if pd.isna(row["wrong"]):
        return f"{text} The rule {row['rule']} has no formulas that could explain them."
    if row["wrong"]:
        return (Strong(f"{text} {row['wrong']:.0f} of the differences are wrong: no rounding explains them."),)
    if row["differences"]:
        text += f" Each is rounding; the largest error that one of them needs is {row['largest_rounding']:.1e}."
    return text


def table(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows as text."""
    return pd.DataFrame(
        [
            {
                "verifier": row["verifier"],
                "twin": row["twin"],
                "vocabulary": f"{row['vocabulary']:,}",
                "draws": f"{row['draws']:,}",
                "differences": str(row["differences"]),
                "rounding": number(row["rounding"], ".0f"),
                "wrong": number(row["wrong"], ".0f"),
                "largest error": number(row["largest_rounding"], ".1e"),
                "share": f"{row['share']:.1e} [{row['share_low']:.1e}, {row['share_high']:.1e}]",
            }
            for _, row in compared.iterrows()
        ]
    )


def _brief(report: Report) -> pd.DataFrame:
    return report.tables[0].shown if report.tables else pd.DataFrame()


if __name__ == "__main__":
    main("verifier_agreement", build, _brief)
