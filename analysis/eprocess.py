"""Does evidence from whole texts grow against flawed verifiers, and against them alone?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from specbench.core import rounding
from specbench.core.errors import ConfigError
from specbench.reports import Picture, Report, Strong, Table, Text
from specbench.reports.cells import NONE, file_name
from specbench.reports.plots import evidence as plots
from specbench.reports.text import join, section

from .command import main
from .decoding import where_it_ran
from .folder import read_rows, read_table, report_of

QUESTION = """\
A verifier that is lossless emits tokens that follow the target's distribution at every prefix. Bets against that,
placed on each token of whole texts, earn nothing in the long run unless it is false. Which verifiers lose to them,
after how many tokens?"""
NOTE = """\
log10 evidence: the largest value that all bets together, with equal stakes, reached; an exact verifier reaches
1 / false alarm with at most that probability, however often one looks. Rejected after: tokens, in the order of
decoding. No bet: positions at which rounding could have moved a token over the edge of top-k, top-p or min-p; bounds
by Clopper and Pearson, 95%, as if positions were independent. Impossible: emitted tokens that the target cannot emit,
whatever the rounding. Growth: log10 evidence in 1,000 tokens of the bet that came furthest, 95% by bootstrap over
texts; that bet was chosen afterwards, which flatters it. Rounding: the largest difference of a logit between the two
passes on a few texts, and its share of the tolerance."""
PATHS = """\
Evidence of all bets together; solid where the verifier says that it is lossless, dashed where it is flawed. The scale
is logarithmic beyond 10. Beyond the dashed level a verifier is rejected, falsely as rarely as the legend says. An arrow
marks a token that the target cannot emit: from there on the evidence is infinite."""
ALONE = """\
All bets together, and each bet alone (pale), which sinks where it is wrong. Beyond the dashed level the verifier is
rejected, falsely as rarely as the legend says."""


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    rows = read_rows(run_dir)
    rows = rows[rows["temperature"] != 0]  # those are of greedy_divergence.py
    paths = read_table(run_dir, "eprocess.parquet", rows, ["verifier", "lossless"])
    found = certificates(run_dir, rows)
    paths = paths.merge(found[["job", "setting", "false_alarm"]], on="job").sort_values(["job", "bet", "token"])
    caption = f"Evidence against each verifier. {about(found)}"
    left = ("verifier", "sampling", "verdict", "strongest bet")
    shown = Table("table", table(found), found, caption, NOTE, left)
    sections = [
        section("Result", *findings(found)),
        section("Table", shown),
        section("Figures", *_pictures(paths, about(found))),
        where_it_ran(rows),
    ]
    return report_of(run_dir, "eprocess", "Evidence from texts", QUESTION, sections)


def about(found: pd.DataFrame) -> str:
    """What a caption says of the run."""
    tokens = sorted(found["tokens"])
    count = f"{tokens[0]:,}" if tokens[0] == tokens[-1] else f"{tokens[0]:,} to {tokens[-1]:,}"
    return f"{len(found)} runs of {count} tokens; false alarm {found['false_alarm'].max():g} a run."


def certificates(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """One line a job: what its certificate says, flat, with bounds on the share of positions without a bet.

    Raises:
        ConfigError: a job without a certificate.
    """
    lines = []
    for _, row in rows.sort_values("job").iterrows():
        path = run_dir / str(row["job"]) / "e_certificate.json"
        if not path.is_file():
            raise ConfigError("RUN_DIR", run_dir, f"no {path.name} of job {row['job']}", "Use protocol=eprocess.")
        told = json.loads(path.read_text(encoding="utf-8"))
        share = stats.binomtest(told["without_bet"], told["tokens"]).proportion_ci(method="exact")
        growth = told["growth"] or dict.fromkeys(("value", "low", "high"))  # None where evidence is infinite
        keys = ("verdict", "tokens", "texts", "without_bet", "impossible", "rejected_at", "strongest_bet", "dtype")
        lines.append(
            {
                "job": row["job"],
                "verifier": row["verifier"],
                "lossless": row["lossless"],
                "setting": setting(told),
                **{key: told[key] for key in keys},
                "log10_e_value": math.inf if told["log10_e_value"] is None else told["log10_e_value"],
                "without_bet_share": told["without_bet"] / told["tokens"],
                "without_bet_low": float(share.low),
                "without_bet_high": float(share.high),
                **{f"growth_{name}": value for name, value in growth.items()},
                "rounding": told["rounding"]["largest"],
                "rounding_over_tolerance": told["rounding"]["over_tolerance"],
                "false_alarm": told["false_alarm"],
                "seed": told["seed"],
                "command": told["command"],
            }
        )
    return pd.DataFrame(lines)


def setting(told: dict[str, Any]) -> str:
    """How was sampled, in short: ``T=1 top_p=0.9 float32``."""
    sampling = told["sampling"]
    off = {"top_k": (0, -1), "top_p": (1,), "min_p": (0,)}
    parts = [f"T={sampling['temperature']:g}"]
    parts += [f"{name}={sampling[name]:g}" for name, values in off.items() if sampling[name] not in values]
    parts += [f"{name}={value}" for name, value in sampling.items() if name not in ("temperature", *off)]
    return " ".join([*parts, told["dtype"]])


def findings(found: pd.DataFrame) -> list[Text]:
    """Who was rejected, and who should have been."""
    rejected = found["verdict"] == "rejected"
    alarms = found[found["lossless"] & rejected]
    sound, flawed = found[found["lossless"]], found[~found["lossless"]]
    sentences: list[Text] = []
    if len(sound):
        highest = sound["log10_e_value"].max()
        text = (
            f"Sound verifiers: {len(alarms)} of {len(sound)} runs rejected; evidence reached at most 10^{highest:.2f}, "
            f"where 10^{-math.log10(found['false_alarm'].max()):.0f} rejects."
        )
        sentences.append((Strong(text), " " + _names(alarms)) if len(alarms) else text)
    if len(flawed):
        missed = flawed[flawed["verdict"] != "rejected"]
        text = f"Flawed verifiers: {len(flawed) - len(missed)} of {len(flawed)} runs rejected."
        unseen = (Strong("Not seen"), f" in so many tokens: {_names(missed)}") if len(missed) else ""
        sentences.append(join([text, unseen]))
    over = found[found["rounding_over_tolerance"] > 1]
    if len(over):
        reason = f", so that rejections prove nothing: {_names(over)}"
        sentences.append((Strong("Rounding exceeded the tolerance"), reason))
    return sentences


def _names(rows: pd.DataFrame) -> str:
    return (
        "; ".join(f"{row['verifier']} at {row['setting']} ({row['tokens']:,} tokens)" for _, row in rows.iterrows())
        + "."
    )


def table(found: pd.DataFrame) -> pd.DataFrame:
    """The lines as text."""
    return pd.DataFrame(
        [
            {
                "verifier": row["verifier"],
                "sampling": row["setting"],
                "verdict": row["verdict"],
                "log10 evidence": "infinite" if row["log10_e_value"] == math.inf else f"{row['log10_e_value']:.2f}",
                "rejected after": NONE if pd.isna(row["rejected_at"]) else f"{int(row['rejected_at']):,}",
                "tokens": f"{row['tokens']:,}",
                "no bet": f"{row['without_bet']:,} "
                f"({row['without_bet_share']:.2%} [{row['without_bet_low']:.2%}, {row['without_bet_high']:.2%}])",
                "impossible": f"{row['impossible']:,}",
                "strongest bet": row["strongest_bet"],
                "growth": NONE
                if pd.isna(row["growth_value"])
                else rounding.interval(*(row[f"growth_{end}"] for end in ("value", "low", "high"))),
                "rounding": f"{row['rounding']:.1e} ({row['rounding_over_tolerance']:.0%})",
            }
            for _, row in found.iterrows()
        ]
    )


def _pictures(paths: pd.DataFrame, where: str) -> Iterator[Picture]:
    together = paths[paths["bet"] == "all bets"]
    figure = plots.evidence_paths(together, float(together["false_alarm"].max()))
    yield Picture("evidence_paths", figure, "Against which verifiers does evidence grow?", f"{PATHS} {where}")
    for (job, verifier, setting), own in paths.groupby(["job", "verifier", "setting"], sort=True):  # ty: ignore[not-iterable]
        figure = plots.eprocess(own, float(own["false_alarm"].iloc[0]), f"{verifier}, {setting}")
        question = f"Which bets earn on {verifier} at {setting}?"
        yield Picture(f"bets_{job}_{file_name(str(verifier))}", figure, question, ALONE)


if __name__ == "__main__":
    main("eprocess", build)
