"""How long does each verifier take from raw logits to tokens, and how far is that from the speed of memory?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.benchmark.tables import LATENCY, LATENCY_SAMPLES, LATENCY_SCHEMA, LatencyRow, LatencySample
from specbench.core.errors import ConfigError
from specbench.metrics.columns import columns_of, frame_of, typed
from specbench.metrics.intervals import ratio_of_medians
from specbench.reports import Report, Table
from specbench.reports.cells import NONE, interval, number
from specbench.reports.plots import latency as plots
from specbench.rules import RULES, TOKEN

from .command import main
from .folder import read_rows, read_table
from .page import page

GOAL = 1.15  # of times with penalties or bans over times without


@dataclass(frozen=True, kw_only=True)
class CaseRow(LatencyRow):
    """A case that was timed, and the job."""

    job: int
    median_us: float


@dataclass(frozen=True)
class RatioRow:
    """How many times as long as the reference a verifier takes, in one case."""

    variant: str
    batch_size: int
    verifier: str
    reference: str
    times: float
    times_low: float
    times_high: float
    comparable: bool  # as both are


Case, Sample, Ratio = columns_of(CaseRow), columns_of(LatencySample), columns_of(RatioRow)


def build(run_dir: Path) -> Report:
    """The report of a run."""
    results, cases = read_rows(run_dir), read_cases(run_dir)
    is_timed = cases[Case.skipped].isna()
    timed, skipped = cases[is_timed], cases[~is_timed]
    ordered, base = in_order(timed), _base(timed)
    speed, shaped, quoted = speed_ratios(run_dir, timed), ordered[ordered[Case.times_plain].notna()], headlines(timed)
    shown = {
        "headline": Table("headline", headline(timed), left=("verifier",)),
        "speed": Table("speed", speed_table(speed), left=("case",)) if speed else None,
        "shaping": shaping(shaped) if len(shaped) else None,
        "cases": Table("cases", case_table(ordered), pd.concat([ordered, skipped]), left=("verifier", "case")),
        "time_against_batch": plots.time_against_batch(timed),
        "ratio_to_floor": plots.ratio_to_floor(timed),
    }
    with_law = timed[Case.rule].isin([info.name for info in RULES.values() if info.has_law])
    return page(
        run_dir,
        results,
        "verifier_latency",
        shown,
        timed[Case.rule],
        data={"speed": frame_of(speed, RatioRow)},
        headlines=quoted,
        timed=timed,
        base=base if (base[Case.variant] == "base").any() else timed,
        quoted=quoted,
        requests=_requests(int(quoted["LatencyRequests"])),
        twins=timed[with_law],
        others=timed[~with_law],
        skipped=skipped,
        references=" and ".join(dict.fromkeys(row.reference for row in speed)),
        bandwidth=timed.groupby(Case.job)[Case.copy_bandwidth].first() / 1e12,
        goal=GOAL,
    )


def read_cases(run_dir: Path) -> pd.DataFrame:
    """The cases of all jobs, skipped ones among them; a verifier timed by several jobs has their numbers in its name.

    Raises:
        ConfigError: a folder without results, or without timings.
    """
    cases = read_table(run_dir, LATENCY, schema=LATENCY_SCHEMA, remedy=None)
    if cases.empty or cases[Case.skipped].notna().all():
        raise ConfigError("RUN_DIR", run_dir, "no verifier was timed in it", "Use protocol=latency.")
    cases = cases.sort_values([Case.job, Case.case], kind="stable", ignore_index=True)
    repeated = cases.groupby(Case.verifier)[Case.job].transform("nunique") > 1
    cases.loc[repeated, Case.verifier] += " (job " + cases[Case.job].astype(str) + ")"
    return cases


def headlines(timed: pd.DataFrame) -> dict[str, str]:
    """What an abstract would quote: the quickest verifier in the largest batch of the base case."""
    rows = typed(_base(timed), CaseRow)
    largest = max(row.batch_size for row in rows)
    best = min((row for row in rows if row.batch_size == largest), key=lambda row: row.median_us)
    return {
        "Latency": interval(best, Case.median_us, ".1f"),
        "LatencyFloors": interval(best, Case.ratio),
        "LatencyRequests": str(largest),
        "LatencyVerifier": best.verifier,
    }


def headline(timed: pd.DataFrame) -> pd.DataFrame:
    """The base case: a line a verifier, a column a batch size: microseconds, and how many times the floor."""
    rows = typed(_base(timed), CaseRow)
    sizes, lines = sorted({row.batch_size for row in rows}), dict[str, dict[str, str]]()
    for row in rows:
        line = lines.setdefault(row.verifier, {"verifier": row.verifier})
        line[_requests(row.batch_size)] = f"{interval(row, Case.median_us, '.1f')}, {row.ratio:.2f} floors"
    return pd.DataFrame(lines.values(), columns=["verifier", *map(_requests, sizes)]).fillna(NONE)


def _base(timed: pd.DataFrame) -> pd.DataFrame:
    variants = timed[Case.variant]
    return timed[variants == ("base" if (variants == "base").any() else variants.iloc[0])]


def _requests(size: int) -> str:
    return "1 request" if size == 1 else f"{size} requests"


def in_order(timed: pd.DataFrame) -> pd.DataFrame:
    """The cases of read_cases, those of one setting together."""
    settings = timed.groupby([Case.variant, Case.batch_size], sort=False).ngroup()
    return timed.iloc[settings.argsort(kind="stable")]


def case_table(timed: pd.DataFrame) -> pd.DataFrame:
    """Every case as text."""
    return pd.DataFrame(
        {
            "case": row.variant,
            "requests": str(row.batch_size),
            "verifier": row.verifier,
            "µs": interval(row, Case.median_us, ".1f"),
            "5% to 95%": f"{row.q05_us:.1f} to {row.q95_us:.1f}",
            "floor µs": number(row.floor_us, ".2f"),
            "ratio": interval(row, Case.ratio),
            "eager µs": number(row.eager_us, ".0f"),
            "graph": "yes" if row.graph else "no",
            "accepted a token": number(row.token_acceptance),
            "rounding": f"{row.rounding:.0f} of {row.checked:.0f}",
        }
        for row in typed(timed, CaseRow)
    )


def shaping(cases: pd.DataFrame) -> Table:
    """What penalties and bans cost, a line a case: with, without, their ratio, and whether it meets the goal."""
    shown = pd.DataFrame(
        {
            "parameters": row.variant.removeprefix("sampler="),
            "requests": str(row.batch_size),
            "verifier": row.verifier,
            "tokens of a text": f"{row.context:.0f}",
            "µs": interval(row, Case.median_us, ".1f"),
            "µs without": interval(row, Case.plain_us, ".1f"),
            "ratio": interval(row, Case.times_plain),
            f"at most {GOAL}": verdict(row),
        }
        for row in typed(cases, LatencyRow)
    )
    return Table("shaping", shown, left=("parameters", "verifier"))


def verdict(row: LatencyRow) -> str:
    """By the interval of the ratio, if the two times can be compared with a goal that was set for GPUs."""
    low, high = row.times_plain_low, row.times_plain_high
    if low is None or high is None or row.device == "cpu" or not row.comparable:
        return "not comparable"
    if high <= GOAL:
        return "met"
    return "missed" if low > GOAL else "open"


def speed_ratios(run_dir: Path, timed: pd.DataFrame) -> list[RatioRow]:
    """Time over the reference's, with intervals, a line a case and verifier.

    The reference is the rule's `timing_baseline` if it was timed, else the first verifier of that rule. Verifiers of
    rules that are not registered are compared with the token rule's.
    """
    times = {
        key: np.stack([rounds[Sample.microseconds].to_numpy() for _, rounds in case.groupby(Sample.round)])
        for key, case in read_table(run_dir, LATENCY_SAMPLES).groupby([Case.job, Case.case])
    }
    ratios = []
    for info in RULES.values():
        rows = [row for row in typed(timed, CaseRow) if RULES.get(row.rule, TOKEN) == info]
        verifiers = [row.verifier for row in rows]
        reference = info.timing_baseline if info.timing_baseline in verifiers else next(iter(verifiers), "")
        references = {(row.variant, row.batch_size): row for row in rows if row.verifier == reference}
        for row in rows:
            other = references.get((row.variant, row.batch_size))
            if other is None or row.verifier == reference:
                continue
            ratio = ratio_of_medians(times[row.job, row.case], times[other.job, other.case])
            comparable = row.comparable and other.comparable
            case = row.variant, row.batch_size, row.verifier
            ratios.append(RatioRow(*case, reference, ratio.value, ratio.low, ratio.high, comparable))
    return ratios


def speed_table(speed: list[RatioRow]) -> pd.DataFrame:
    """speed_ratios as text: a line a case, a column a verifier; a dash where it was not timed."""
    several = len({row.reference for row in speed}) > 1
    headings, lines = dict[str, None](), dict[tuple[str, int], dict[str, str]]()
    for row in speed:
        heading = f"{row.verifier} / {row.reference}" if several else row.verifier
        line = lines.setdefault((row.variant, row.batch_size), {"case": row.variant, "requests": str(row.batch_size)})
        line[heading] = interval(row, Ratio.times) + ("" if row.comparable else " (not comparable)")
        headings[heading] = None
    return pd.DataFrame(lines.values(), columns=["case", "requests", *headings]).fillna(NONE)


if __name__ == "__main__":
    main("verifier_latency", build)
