"""How long does each verifier take from raw logits to tokens, and how far is that from the speed of memory?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from specbench.benchmark.tables import LATENCY, LATENCY_SAMPLES, LATENCY_SCHEMA
from specbench.core.errors import ConfigError
from specbench.metrics.intervals import ratio_of_medians
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, interval, number
from specbench.reports.plots import latency as plots
from specbench.rules import RULES, TOKEN

from .command import main
from .folder import read_rows, read_table
from .page import page

GOAL = 1.15  # of times with penalties or bans over times without


def build(run_dir: Path) -> Report:
    """The report of a run."""
    results, cases = read_rows(run_dir), read_cases(run_dir)
    timed = cases[cases["skipped"].isna()]
    ordered = in_order(timed)
    speed, shaped, base = speed_ratios(run_dir, timed), ordered[ordered["times_plain"].notna()], _base(timed)
    quoted = headlines(timed)
    raw = pd.concat([ordered, cases[cases["skipped"].notna()]])
    shown = {
        "headline": Table("headline", headline(timed), left=("verifier",)),
        "speed": Table("speed", speed_table(speed), left=("case",)) if len(speed) else None,
        "shaping": shaping(shaped) if len(shaped) else None,
        "cases": Table("cases", case_table(ordered), raw, left=("verifier", "case")),
        "time_against_batch": plots.time_against_batch(timed),
        "ratio_to_floor": plots.ratio_to_floor(timed),
    }
    with_law = timed["rule"].isin([info.name for info in RULES.values() if info.has_law])
    return page(
        run_dir,
        results,
        "verifier_latency",
        shown,
        timed["rule"],
        data={"speed": speed},
        headlines=quoted,
        timed=timed,
        base=base if (base["variant"] == "base").any() else timed,
        quoted=quoted,
        requests=_requests(int(quoted["LatencyRequests"])),
        twins=timed[with_law],
        others=timed[~with_law],
        skipped=cases[cases["skipped"].notna()],
        references=" and ".join(dict.fromkeys(speed["reference"])),
        bandwidth=timed.groupby("job")["copy_bandwidth"].first() / 1e12,
        goal=GOAL,
    )


def read_cases(run_dir: Path) -> pd.DataFrame:
    """The cases of all jobs, skipped ones among them; a verifier timed by several jobs has their numbers in its name.

    Raises:
        ConfigError: a folder without results, or without timings.
    """
    cases = read_table(run_dir, LATENCY, schema=LATENCY_SCHEMA, remedy=None)
    if cases.empty or cases["skipped"].notna().all():
        raise ConfigError("RUN_DIR", run_dir, "no verifier was timed in it", "Use protocol=latency.")
    cases = cases.sort_values(["job", "case"], kind="stable", ignore_index=True)
    repeated = cases.groupby("verifier")["job"].transform("nunique") > 1
    cases.loc[repeated, "verifier"] += " (job " + cases["job"].astype(str) + ")"
    return cases


def headlines(timed: pd.DataFrame) -> dict[str, str]:
    """What an abstract would quote: the quickest verifier in the largest batch of the base case."""
    chosen = _base(timed)
    largest = chosen[chosen["batch_size"] == chosen["batch_size"].max()]
    best = largest.loc[largest["median_us"].idxmin()]
    return {
        "Latency": interval(best, "median_us", ".1f"),
        "LatencyFloors": interval(best, "ratio"),
        "LatencyRequests": str(best["batch_size"]),
        "LatencyVerifier": best["verifier"],
    }


def headline(timed: pd.DataFrame) -> pd.DataFrame:
    """The base case: a line a verifier, a column a batch size: microseconds, and how many times the floor."""
    chosen = _base(timed)
    texts = [f"{interval(row, 'median_us', '.1f')}, {row['ratio']:.2f} floors" for _, row in chosen.iterrows()]
    wide = _side_by_side(chosen, ["verifier"], "batch_size", texts)
    sizes = sorted(map(int, chosen["batch_size"].unique()))
    return wide[["verifier", *sizes]].rename(columns={size: _requests(size) for size in sizes})


def _side_by_side(rows: pd.DataFrame, line: list[str], column: str, texts: list[str]) -> pd.DataFrame:
    """The rows' texts in a line for each value of ``line`` and a column for each of ``column``; a dash for no row."""
    wide = rows.assign(text=texts).pivot_table(index=line, columns=column, values="text", aggfunc="last", sort=False)
    return wide[list(dict.fromkeys(rows[column]))].fillna(NONE).rename_axis(columns=None).reset_index()


def _base(timed: pd.DataFrame) -> pd.DataFrame:
    chosen = timed[timed["variant"] == "base"]
    chosen = timed if chosen.empty else chosen
    return chosen[chosen["variant"] == chosen["variant"].iloc[0]]


def _requests(size: int) -> str:
    return "1 request" if size == 1 else f"{size} requests"


def in_order(timed: pd.DataFrame) -> pd.DataFrame:
    """The cases, those of one setting together."""
    settings = timed.groupby(["variant", "batch_size"], sort=False).ngroup()
    return timed.assign(setting=settings).sort_values(["setting", "job"], kind="stable").drop(columns="setting")


def case_table(timed: pd.DataFrame) -> pd.DataFrame:
    """Every case as text."""
    return cells.shown(
        timed,
        lambda row: {
            "case": row["variant"],
            "requests": str(row["batch_size"]),
            "verifier": row["verifier"],
            "µs": interval(row, "median_us", ".1f"),
            "5% to 95%": f"{row['q05_us']:.1f} to {row['q95_us']:.1f}",
            "floor µs": number(row["floor_us"], ".2f"),
            "ratio": interval(row, "ratio"),
            "eager µs": number(row["eager_us"], ".0f"),
            "graph": "yes" if row["graph"] else "no",
            "accepted a token": number(row["token_acceptance"]),
            "rounding": f"{row['rounding']:.0f} of {row['checked']:.0f}",
        },
    )


def shaping(cases: pd.DataFrame) -> Table:
    """What penalties and bans cost, a line a case: with, without, their ratio, and whether it meets the goal."""
    shown = cells.shown(
        cases,
        lambda row: {
            "parameters": row["variant"].removeprefix("sampler="),
            "requests": str(row["batch_size"]),
            "verifier": row["verifier"],
            "tokens of a text": f"{row['context']:.0f}",
            "µs": interval(row, "median_us", ".1f"),
            "µs without": interval(row, "plain_us", ".1f"),
            "ratio": interval(row, "times_plain"),
            f"at most {GOAL}": verdict(row),
        },
    )
    return Table("shaping", shown, left=("parameters", "verifier"))


def verdict(row: pd.Series) -> str:
    """By the interval of the ratio, if the two times can be compared with a goal that was set for GPUs."""
    if row["device"] == "cpu" or not row["comparable"]:
        return "not comparable"
    if row["times_plain_high"] <= GOAL:
        return "met"
    return "missed" if row["times_plain_low"] > GOAL else "open"


def speed_ratios(run_dir: Path, timed: pd.DataFrame) -> pd.DataFrame:
    """Time over the reference's, with intervals, a line a case and verifier.

    The reference is the rule's `timing_baseline` if it was timed, else the first verifier of that rule. Verifiers of
    rules that are not registered are compared with the token rule's.
    """
    times = {
        key: np.stack([rounds["microseconds"].to_numpy() for _, rounds in case.groupby("round")])
        for key, case in read_table(run_dir, LATENCY_SAMPLES).groupby(["job", "case"])
    }
    key, lines = ["variant", "batch_size"], []
    for info in RULES.values():
        rows = timed[timed["rule"].map(lambda rule: RULES.get(rule, TOKEN)) == info]
        verifiers = list(rows["verifier"])
        reference = info.timing_baseline if info.timing_baseline in verifiers else next(iter(verifiers), "")
        is_reference = rows["verifier"] == reference
        references = rows[is_reference].drop_duplicates(key, keep="last")
        for _, row in rows[~is_reference].merge(references, on=key, suffixes=("", "_reference")).iterrows():
            ratio = ratio_of_medians(times[row["job"], row["case"]], times[row["job_reference"], row["case_reference"]])
            comparable = bool(row["comparable"] and row["comparable_reference"])
            lines.append((*row[[*key, "verifier"]], reference, ratio.value, ratio.low, ratio.high, comparable))
    columns = ["variant", "batch_size", "verifier", "reference", "times", "times_low", "times_high", "comparable"]
    return pd.DataFrame(lines, columns=columns)


def speed_table(speed: pd.DataFrame) -> pd.DataFrame:
    """speed_ratios as text: a line a case, a column a verifier."""
    several = speed["reference"].nunique() > 1
    named = speed.assign(
        case=speed["variant"],
        requests=speed["batch_size"].astype(str),
        ratio=speed["verifier"] + (" / " + speed["reference"] if several else ""),
    )
    remarks = speed["comparable"].map({True: "", False: " (not comparable)"})
    texts = [interval(row, "times") + remark for (_, row), remark in zip(speed.iterrows(), remarks, strict=True)]
    return _side_by_side(named, ["case", "requests"], "ratio", texts)


if __name__ == "__main__":
    main("verifier_latency", build)
