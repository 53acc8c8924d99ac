"""On what share of draws does a verifier differ from its rule's plain twin, and is every difference rounding?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.benchmark.tables import AGREEMENT, DIFFERENCES
from specbench.errors import ConfigError
from specbench.results import read_jobs, read_results

from .pages import NONE, command_line, markdown, number, values, write_page, write_table

QUESTION = """\
Verifiers of one rule that read the same uniforms promise the same tokens. A fast one computes in single precision and
adds in another order, so a draw next to a threshold may fall on its other side. How often, and is that all?"""
METHOD = """\
A draw is a decision on a drafted token, or an emitted token. A difference is rounding if some relative error of p
and q up to the tolerance leads to it (specbench/rules/agreement.py); anything else is a bug. The interval of the
share is Clopper and Pearson's, 95%. On the small fixtures, whose thresholds are known, a difference is rounding if the
uniform lies within 1e-6 of the threshold at which the two part. [table.csv](table.csv) holds every column, unrounded,
[differences.csv](differences.csv) each difference, and [fixtures.csv](fixtures.csv) the small fixtures one by one."""
COUNTS = ["requests", "rounding", "structural", "another_rule"]


def report(run_dir: Path) -> Path:
    """Writes the report of a run into ``run_dir``/report; returns the path of report.md.

    Raises:
        ConfigError: a folder without results, or without comparisons.
    """
    compared, fixtures, folder = read_compared(run_dir), read_fixtures(run_dir), run_dir / "report"
    if compared.empty and fixtures.empty:
        raise ConfigError("RUN_DIR", run_dir, "no verifier was compared in it", "Use protocol=agreement.")
    rendered, results = table(compared), read_results(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if len(compared):
        write_table(folder, "table", rendered, left=("verifier",))
    compared.to_csv(folder / "table.csv", index=False)
    fixtures.to_csv(folder / "fixtures.csv", index=False)
    read_jobs(run_dir, DIFFERENCES).to_csv(folder / "differences.csv", index=False)
    found = [sentence(row) for _, row in compared.iterrows()] + on_fixtures(fixtures)
    return write_page(
        folder,
        [
            f"# Verifier agreement\n\n{QUESTION}",
            "## Result\n\n" + "\n\n".join(found),
            f"## Table\n\n{markdown(rendered) if len(compared) else NONE}\n\n{METHOD}",
            "## Where it ran\n\n"
            f"- hardware: {values(results, 'hardware')}; device {values(results, 'device')}\n"
            f"- versions: specbench {values(results, 'version')}, commit {values(results, 'commit')}; "
            f"Python {values(results, 'python')}, PyTorch {values(results, 'torch')}\n"
            f"- gamma {values(results, 'gamma')}, {values(results, 'batch_size')} requests a step, "
            f"{values(results, 'dtype')}, temperature {values(results, 'temperature')}, top_k "
            f"{values(results, 'top_k')}, top_p {values(results, 'top_p')}, min_p {values(results, 'min_p')}; "
            f"seed {values(results, 'seed')}",
        ],
    )


def read_compared(run_dir: Path) -> pd.DataFrame:
    """A row a job that compared draws; without rows if none did."""
    compared = read_jobs(run_dir, AGREEMENT)
    return compared if compared.empty else compared.sort_values("job", ignore_index=True)


def read_fixtures(run_dir: Path) -> pd.DataFrame:
    """A row a job and small fixture, with the job's verifier; without rows if none was compared on them."""
    fixtures = read_jobs(run_dir, "comparisons.parquet")
    return fixtures if fixtures.empty else fixtures.merge(read_results(run_dir)[["job", "verifier"]], on="job")


def on_fixtures(fixtures: pd.DataFrame) -> list[str]:
    """What each job found on the small fixtures."""
    if fixtures.empty:
        return []
    sentences = []
    for _, row in fixtures.groupby(["job", "verifier"], as_index=False)[COUNTS].sum().iterrows():
        differ = row["rounding"] + row["structural"] + row["another_rule"]
        text = f"{row['verifier']} differs in {differ:,} of {row['requests']:,} requests of the small fixtures"
        text += f", in {row['rounding']:,} of them by rounding." if differ else "."
        sentences.append(f"**{text} {row['structural']:,} are no rounding.**" if row["structural"] else text)
    return sentences


def sentence(row: pd.Series) -> str:
    """What one job found."""
    text = (
        f"{row['verifier']} differs from {row['twin']} in {row['differences']} of {row['draws']:,} draws at a "
        f"vocabulary of {row['vocabulary']:,}, a share of {row['share']:.2g} "
        f"[{row['share_low']:.2g}, {row['share_high']:.2g}]."
    )
    if pd.isna(row["wrong"]):
        return f"{text} The rule {row['rule']} has no formulas that could explain them."
    if row["wrong"]:
        return f"**{text} {row['wrong']:.0f} of the differences are wrong: no rounding explains them.**"
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


if __name__ == "__main__":
    command_line("verifier_agreement", report, lambda run_dir: table(read_compared(run_dir)))
