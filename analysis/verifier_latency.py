"""How long does each verifier take from raw logits to tokens, and how far is that from the speed of memory?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.benchmark.tables import LATENCY, LATENCY_SAMPLES, LATENCY_SCHEMA
from specbench.core.errors import ConfigError
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.latency import ratio_of_medians
from specbench.metrics.results import read_jobs
from specbench.reports import Block, Bullets, Link, Paragraph, Picture, Report, Section, Strong, Table, Text
from specbench.reports.cells import NONE, interval, number, values
from specbench.reports.plots import latency as plots
from specbench.reports.text import section
from specbench.rules.cards import BLOCK, CARDS, TOKEN, floor_card

from . import shaping
from .command import main
from .decoding import WHERE
from .folder import read_rows, read_whole, report_of

QUESTION = """\
From the moment that the target's logits lie in device memory to the moment that the tokens do: how long does each
verifier take, and how does that compare with the time of merely reading the bytes that it has to read?"""
METHOD = (
    """\
Each case is a synthetic step on logits shaped like a language model's, every round with new ones; each timed outcome
was checked before and after. Times: median of graph replays with the cache flushed in between, by the device's own
events; brackets hold 95% intervals by bootstrap over rounds and replays. Byte floor: the bytes that the rule has to
read over the bandwidth of a large copy measured in the same run (specbench/benchmark/floor.py); the ratio is the time
over it. Eager: one call by the wall clock, launches included. Without a graph: calls timed one by one, because the
verifier waits for the host. Engines' own verifiers get the cutoffs of a truncating sampler ready-made, which favours
them. Accepted a token: accepted / (accepted + rejected), which the work depends on. """,
    Link("cases.csv", "cases.csv"),
    " holds every column, unrounded; ",
    Link("speed.csv", "speed.csv"),
    " the ratios between verifiers.",
)
ON_A_CPU = (
    Strong("Timed on a CPU, by the wall clock around each call"),
    ": what PyTorch needs for these operations there. It says nothing about a GPU.",
)
HEADLINE = """\
The base case, by the number of requests in a batch: microseconds [95% interval], and how many times the byte floor."""
TIMES = """\
Time of one verification of the whole batch, with 95% intervals; the lines without points are the byte floors of rules.
Where a line is flat, the batch is too small to matter and launches are what is timed; where it rises like the floor,
bytes are. Hollow points were timed without a graph."""
SPEED = "Time of each verifier over that of the reference in the same case: how many times faster the reference is."
RATIOS = """\
How many times longer than reading the bytes; the dashed line is the speed of a plain copy. Labels are what a case
varies, and its number of requests."""
REFERENCES = {BLOCK.name: "block_fused", TOKEN.name: "fused"}  # what others are compared with, where it ran


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results, or without timings.
    """
    results, cases = read_rows(run_dir), read_cases(run_dir)
    timed = cases[cases["skipped"].isna()]
    ordered = in_order(timed)
    where, speed = setting(timed), speed_ratios(run_dir, timed)
    head = Table("headline", headline(timed), caption=f"{HEADLINE} {where}", left=("verifier",))
    raw = pd.concat([ordered, cases[cases["skipped"].notna()]])
    caption = f"Every case that was timed. {where}"
    every = Table("cases", case_table(ordered), raw, caption, METHOD, left=("verifier", "case"))
    sections = [section("Result", quickest(timed), *remarks(timed), head, checks(timed), *left_out(cases))]
    if len(speed):
        compared = Table("speed", speed_table(speed), caption=f"{SPEED} {where}", left=("case",))
        sections.append(section(f"Speed against {reference_names(speed)}", compared))
    sections += [
        *shaping.sections(ordered, where),
        section("All cases", every),
        section("Figures", *_pictures(timed)),
        where_it_ran(results, timed),
    ]
    rules = timed["rule"]
    data, quoted = {"speed": speed}, headlines(timed)
    return report_of(run_dir, "verifier_latency", "Verifier latency", QUESTION, sections, rules, data, quoted)


def read_cases(run_dir: Path) -> pd.DataFrame:
    """The cases of all jobs, skipped ones among them; a verifier timed by several jobs has their numbers in its name.

    Raises:
        ConfigError: a folder without results, or without timings.
    """
    cases = read_whole(run_dir, LATENCY, LATENCY_SCHEMA)
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


def quickest(timed: pd.DataFrame) -> str:
    """The quickest verifier in a sentence."""
    found = headlines(timed)
    requests = _requests(int(found["LatencyRequests"]))
    return (
        f"Quickest in a batch of {requests}: {found['LatencyVerifier']}, {found['Latency']} µs, "
        f"{found['LatencyFloors']} times what reading the bytes takes."
    )


def headline(timed: pd.DataFrame) -> pd.DataFrame:
    """The base case: a line a verifier, a column a batch size: microseconds, and how many times the floor."""
    chosen = _base(timed)
    sizes = sorted(map(int, chosen["batch_size"].unique()))
    lines = []
    for name, rows in chosen.groupby("verifier", sort=False):
        cells = {size: NONE for size in sizes}
        for _, row in rows.iterrows():
            cells[row["batch_size"]] = f"{interval(row, 'median_us', '.1f')}, {row['ratio']:.2f} floors"
        lines.append({"verifier": name, **{_requests(size): cell for size, cell in cells.items()}})
    return pd.DataFrame(lines)


def _base(timed: pd.DataFrame) -> pd.DataFrame:
    chosen = timed[timed["variant"] == "base"]
    chosen = timed if chosen.empty else chosen
    return chosen[chosen["variant"] == chosen["variant"].iloc[0]]


def _requests(size: int) -> str:
    return "1 request" if size == 1 else f"{size} requests"


def setting(timed: pd.DataFrame) -> str:
    """What a caption says of the run: where, on what logits, and what the intervals are."""
    base = timed[timed["variant"] == "base"]
    rows = timed if base.empty else base
    return (
        f"Device {values(timed, 'device')}; vocabulary {values(rows, 'vocabulary')}, gamma {values(rows, 'gamma')}, "
        f"{values(rows, 'dtype')}, temperature {values(rows, 'temperature')} unless a case says otherwise; medians of "
        f"{values(timed, 'rounds')} rounds with {CONFIDENCE:.0%} intervals."
    )


def in_order(timed: pd.DataFrame) -> pd.DataFrame:
    """The cases, those of one setting together."""
    order = {case: place for place, case in enumerate(dict.fromkeys(_keys(timed)))}
    places = timed.assign(place=[order[key] for key in _keys(timed)])
    return places.sort_values(["place", "job"], kind="stable").drop(columns="place")


def case_table(timed: pd.DataFrame) -> pd.DataFrame:
    """Every case as text."""
    return pd.DataFrame(
        [
            {
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
            }
            for _, row in timed.iterrows()
        ]
    )


def _keys(rows: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(rows["variant"], rows["batch_size"], strict=True))


def speed_ratios(run_dir: Path, timed: pd.DataFrame) -> pd.DataFrame:
    """Time over the reference's, with intervals, a line a case and verifier.

    The reference is the fused verifier of the rule where it ran, else the first of that rule.
    """
    samples = read_jobs(run_dir, LATENCY_SAMPLES)
    arrays: dict[tuple[int, int], np.ndarray] = {}
    for _, rows in samples.groupby(["job", "case"]):
        by_round = [each["microseconds"].to_numpy() for _, each in rows.groupby("round")]
        arrays[int(rows["job"].iloc[0]), int(rows["case"].iloc[0])] = np.stack(by_round)
    lines = []
    for card in CARDS.values():
        rows = timed[timed["rule"].map(floor_card) == card]  # others are compared with the token rule's
        names = list(dict.fromkeys(rows["verifier"]))
        if len(names) < 2:
            continue
        reference = REFERENCES[card.name] if REFERENCES[card.name] in names else names[0]
        of_rule = list(zip(_keys(rows), (row for _, row in rows.iterrows()), strict=True))
        base = {key: row for key, row in of_rule if row["verifier"] == reference}
        for key, row in of_rule:
            if row["verifier"] == reference or key not in base:
                continue
            ratio = ratio_of_medians(_samples(arrays, row), _samples(arrays, base[key]))
            lines.append(
                {
                    **{name: row[name] for name in ("variant", "batch_size", "verifier")},
                    "reference": reference,
                    "times": ratio.value,
                    "times_low": ratio.low,
                    "times_high": ratio.high,
                    "comparable": bool(row["comparable"] and base[key]["comparable"]),
                }
            )
    columns = ["variant", "batch_size", "verifier", "reference", "times", "times_low", "times_high", "comparable"]
    return pd.DataFrame(lines, columns=columns)


def _samples(arrays: Mapping[tuple[int, int], np.ndarray], row: pd.Series) -> np.ndarray:
    return arrays[row["job"], row["case"]]


def speed_table(speed: pd.DataFrame) -> pd.DataFrame:
    """speed_ratios as text: a line a case, a column a verifier."""
    names = list(dict.fromkeys(zip(speed["verifier"], speed["reference"], strict=True)))
    several = speed["reference"].nunique() > 1
    lines: dict[tuple[str, int], dict[str, str]] = {}
    for _, row in speed.iterrows():
        line = lines.setdefault((row["variant"], row["batch_size"]), {})
        line[row["verifier"]] = interval(row, "times", ".2f") + ("" if row["comparable"] else " (not comparable)")
    heads = {name: f"{name} / {reference}" if several else str(name) for name, reference in names}
    return pd.DataFrame(
        [
            {"case": variant, "requests": str(size), **{head: line.get(name, NONE) for name, head in heads.items()}}
            for (variant, size), line in lines.items()
        ]
    )


def reference_names(speed: pd.DataFrame) -> str:
    """What the others are compared with."""
    return " and ".join(dict.fromkeys(speed["reference"]))


def remarks(timed: pd.DataFrame) -> list[Text]:
    """What a reader must know before any number: the device, what is not comparable, what a time cannot be below."""
    text: list[Text] = []
    if (timed["device"] == "cpu").any():
        text.append(ON_A_CPU)
    strange = list(dict.fromkeys(timed.loc[~timed["comparable"].astype(bool), "verifier"]))
    if strange:
        text.append((Strong(f"Not comparable: {', '.join(strange)}, whose kernels ran through an interpreter."),))
    known = timed["empty_graph_us"].dropna()
    if len(known):
        text.append(f"Replaying an empty graph takes {known.median():.1f} µs; no time can be below that.")
    return text


def checks(timed: pd.DataFrame) -> str:
    """What the checks of the timed outcomes found."""
    twins = timed[timed["rule"].isin(CARDS)]
    text = ""
    if len(twins):
        text = (
            f"{twins['checked'].sum():.0f} verified requests were compared with their rule's plain twin token for "
            f"token: {twins['rounding'].sum():.0f} differ, which rounding at a threshold explains, and no other."
        )
    others = list(dict.fromkeys(timed.loc[~timed["rule"].isin(CARDS), "verifier"]))
    if others:
        text += (
            f" Of other rules: {', '.join(others)}; each was compared so with its rule's reference if "
            "it has one, and else the form of its output, the target's support and the number of accepted tokens were "
            "checked."
        )
    return text.strip()


def left_out(cases: pd.DataFrame) -> list[Block]:
    """Cases that were not timed, and why."""
    skipped = cases[cases["skipped"].notna()]
    if skipped.empty:
        return []
    lines = [
        f"{verifier}: {len(rows)} cases ({', '.join(f'{v}, {b}' for v, b in _keys(rows))}): {reason}"
        for (verifier, reason), rows in skipped.groupby(["verifier", "skipped"], sort=False)
    ]
    return [Paragraph("Not timed:"), Bullets(tuple(lines))]


def where_it_ran(results: pd.DataFrame, timed: pd.DataFrame) -> Section:
    """Hardware, versions and settings."""
    bandwidth = timed.groupby("job")["copy_bandwidth"].first() / 1e12
    lines = [
        f"hardware: {values(results, 'hardware')}; device {values(results, 'device')}, "
        f"{values(results, 'threads')} threads",
        f"copy bandwidth, read and written: {bandwidth.min():.3f} to {bandwidth.max():.3f} TB/s, measured by each job",
        f"versions: specbench {values(results, 'version')}, commit {values(results, 'commit')}; "
        f"Python {values(results, 'python')}, PyTorch {values(results, 'torch')}",
        f"base case: gamma {values(results, 'gamma')}, {values(results, 'dtype')}, temperature "
        f"{values(results, 'temperature')}, top_k {values(results, 'top_k')}, top_p {values(results, 'top_p')}, min_p "
        f"{values(results, 'min_p')}; vocabularies {values(timed, 'vocabulary')}",
        f"{values(timed, 'rounds')} rounds with new logits each, {timed['replays'].min():.0f} to "
        f"{timed['replays'].max():.0f} replays a case; cache flushed by a {values(timed, 'flush')}; seed "
        f"{values(results, 'seed')}",
        f"{len(results)} runs, {results['created'].min()} to {results['created'].max()}",
    ]
    mixed = (Strong("Rows come from different hardware: do not compare their times."),)
    return Section(WHERE, (Bullets((*lines, *([mixed] if results["hardware"].nunique() > 1 else []))),))


def _pictures(timed: pd.DataFrame) -> Iterator[Picture]:
    where = setting(timed)
    question = "How long does one verification take as the batch grows?"
    yield Picture("time_against_batch", plots.time_against_batch(timed), question, f"{TIMES} {where}")
    question = "How far is each verifier from the speed of memory?"
    yield Picture("ratio_to_floor", plots.ratio_to_floor(timed), question, f"{RATIOS} {where}")


if __name__ == "__main__":
    main("verifier_latency", build, lambda report: report.tables[0].shown)
