"""How fast is a step with each engine, where does its time go, and what do transformers' own decoders reach?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.metrics import results
from specbench.reports import Code, Link, Picture, Report, Table, winner
from specbench.reports.between import RULES
from specbench.reports.cells import number, plain
from specbench.reports.plots import decode as decode_plots
from specbench.reports.plots import engines as plots
from specbench.reports.text import section
from specbench.reports.varying import varying, with_sampling

from .command import main
from .decoding import setting, synthetic, where_it_ran
from .folder import read_rows, report_of

BASELINES = "baselines.parquet"
ASSISTED = "transformers_assisted"
RANDOM = "random:"
QUESTION = (
    """\
A step of speculative decoding drafts gamma tokens, scores them in one pass of the target, and verifies them. How long
does it take with each engine, how far is that from what reading the weights alone takes, and where does the time go?
The same requests are decoded by transformers' """,
    Code("generate"),
    " beside it.",
)
NOTE = (
    """\
Tokens a second are those of all texts, prompts included; plain: without a draft, through the same engine. ms a step:
(seconds - seconds of feeding prompts) / steps of the longest text of each batch; an engine that runs ahead of the host
takes one step more, which counts. Floors: ms a step over (bytes of the target + gamma times bytes of the draft) /
bandwidth, where the bandwidth is that of the GPU's own large copy, measured in the run; none on a CPU. Prepared:
seconds that the engine took to compile and capture its steps, both ways, before the clock; for transformers the whole
first batch. Rows without an engine's name are medians over the runs that timed them. """,
    Link("table.csv", "table.csv"),
    " holds every column of the runs, unrounded, and ",
    Link("baselines.csv", "baselines.csv"),
    " every line of the others.",
)
SPEEDS = """\
Plain decoding stands at gamma 0. Grey are transformers' decoders: levels draft nothing, crosses draft gamma tokens."""
SPLIT = """\
Milliseconds an emitted token, and what they went into: proposing (draft), the target's forward passes (target), the
accept rule (verify), stop tokens, limits and the cache (commit), prompts' bookkeeping and the host (rest). Feeding
prompts is in draft and target. The line across a bar is plain decoding with the same engine."""


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results.
    """
    rows = read_rows(run_dir, "engine", "speedup").sort_values(
        ["batch_size", "engine", "gamma", "job"], kind="stable", ignore_index=True
    )
    others, where = baselines(run_dir, rows), setting(rows)
    findings = [*map(best_of, *zip(*batches(rows, others), strict=True)), winner.machine(rows)]
    caption = f"Speeds and steps by batch size, engine and gamma, and of transformers' decoders. {where}"
    shown = Table("table", table(rows, others), caption=caption, note=NOTE, left=("decoder",))
    sections = [
        section("Result", *findings, texts(others)),
        section("Table", shown),
        section("Figures", *_pictures(rows, others)),
        where_it_ran(rows),
    ]
    rules = [RULES[each] for each in rows["verifier"] if each in RULES]
    title, data = "Speed of decoding by engine", {"table": rows, "baselines": others}
    warning = " ".join(filter(None, [synthetic(rows), weights(rows)]))
    return report_of(run_dir, "decode_speed", title, QUESTION, sections, rules, data, warning=warning)


def baselines(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Every line of the jobs' baselines.parquet with the gamma of its job; empty where nothing else was timed."""
    found = results.read_jobs(run_dir, BASELINES)
    if found.empty:
        names = ["name", "batch", "texts", "tokens_per_second", "seconds_prepared", "equal_texts", "note", "gamma"]
        return pd.DataFrame(columns=names)
    return found.merge(rows[["job", "gamma"]], on="job")


def batches(rows: pd.DataFrame, others: pd.DataFrame) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Rows and baselines of each batch size."""
    return [(group, others[others["batch"] == size]) for size, group in rows.groupby("batch_size")]


def step_ms(row: pd.Series, way: str = "") -> float:
    """Milliseconds a step without the feeding of prompts; ``way`` is "" or "plain_". NaN in rows that lack it."""
    steps = row[f"batch_{way}steps"]
    if steps is None or pd.isna(row[f"{way}seconds_prompts"]):
        return float("nan")
    return 1000 * (row[f"{way}seconds"] - row[f"{way}seconds_prompts"]) / sum(steps)


def floor_ms(row: pd.Series) -> float:
    """Milliseconds that reading the weights of a speculative step takes; NaN on a CPU."""
    draft = 0 if pd.isna(row["weight_bytes_draft"]) else row["weight_bytes_draft"]
    read = row["weight_bytes_target"] + row["gamma"] * draft
    return 1000 * read / row["copy_bandwidth"] if pd.notna(row["copy_bandwidth"]) else float("nan")


def table(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """One line a run, and below those of each batch size one for each of transformers' decoders, as text."""
    rows = with_sampling(rows)
    settings = varying(rows, "batch_size", "engine", "gamma")
    lines = []
    for group, beside in batches(rows, others):
        lines += [_line(row, settings) for _, row in group.iterrows()]
        lines += [_other(name, gamma, each, settings) for name, gamma, each in by_setting(beside)]
    return pd.DataFrame(lines)


def by_setting(others: pd.DataFrame) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """The lines of each decoder; of assisted generation by gamma, which the others know nothing of (0)."""
    gammas = others["gamma"].where(others["name"] == ASSISTED, 0)
    for _, lines in others.assign(by=gammas).groupby(["name", "by"], sort=False):
        yield lines["name"].iloc[0], lines["by"].iloc[0], lines


def _line(row: pd.Series, settings: list[str]) -> dict[str, str]:
    ms = step_ms(row)
    return {
        "batch": plain(row["batch_size"]),
        "decoder": plain(row["engine"]),
        "gamma": plain(row["gamma"]),
        **{name: plain(row[name]) for name in settings},
        "tokens/s": number(row["tokens_per_second"], ".1f"),
        "plain tokens/s": number(row["plain_tokens_per_second"], ".1f"),
        "ms a step": number(ms),
        "floors": number(ms / floor_ms(row), ".1f"),
        "plain ms a step": number(step_ms(row, "plain_")),
        "prepared s": number(row["seconds_prepared"], ".1f"),
    }


def _other(name: str, gamma: float, lines: pd.DataFrame, settings: list[str]) -> dict[str, str]:
    drafts, speed = name == ASSISTED, number(lines["tokens_per_second"].median(), ".1f")
    return {
        "batch": plain(lines["batch"].iloc[0]),
        "decoder": name,
        "gamma": plain(gamma) if drafts else "-",
        **dict.fromkeys(settings, "-"),
        "tokens/s": speed if drafts else "-",
        "plain tokens/s": "-" if drafts else speed,
        **dict.fromkeys(("ms a step", "floors", "plain ms a step"), "-"),
        "prepared s": number(lines["seconds_prepared"].max(), ".1f"),
    }


def best_of(rows: pd.DataFrame, others: pd.DataFrame) -> str:
    """The highest speeds at one batch size: speculative, plain, and of the others."""
    fast, slow = (rows.loc[rows[name].idxmax()] for name in ("tokens_per_second", "plain_tokens_per_second"))
    text = (
        f"Batch size {fast['batch_size']}: at most {fast['tokens_per_second']:.1f} tokens/s speculatively "
        f"({fast['engine']}, gamma {fast['gamma']}), {slow['plain_tokens_per_second']:.1f} plainly ({slow['engine']})"
    )
    speeds = [(each["tokens_per_second"].median(), name, gamma) for name, gamma, each in by_setting(others)]
    known = [each for each in speeds if pd.notna(each[0])]
    if known:
        speed, name, gamma = max(known)
        at = f", gamma {plain(gamma)}" if name == ASSISTED else ""
        text += f"; of transformers' decoders {speed:.1f} ({name}{at})"
    return f"{text}."


def texts(others: pd.DataFrame) -> str:
    """Whether greedy texts of the others are those of plain decoding, and what kept others from being timed."""
    compared, words = others[others["equal_texts"].notna()], []
    if len(compared):
        equal, count = int(compared["equal_texts"].sum()), int(compared["texts"].sum())
        words.append(
            f"At temperature 0, {equal} of {count} texts of transformers' decoders are those of plain decoding."
        )
    if "times_plain_low" in others:  # rows of earlier versions lack it
        words += [
            f"{row.name} is faster than plain decoding at batch size {row.batch}, {row.times_plain:.2f} "
            f"[{row.times_plain_low:.2f}, {row.times_plain_high:.2f}] times: over it a speedup is that much lower."
            for row in others[others["times_plain_low"] > 1].itertuples(index=False)
        ]
    notes = others[others["note"] != ""].drop_duplicates(["name", "note"])
    words += [f"{row['name']}: {row['note']}." for _, row in notes.iterrows()]
    return " ".join(words)


def weights(rows: pd.DataFrame) -> str:
    """A warning where weights are random; empty elsewhere."""
    if not rows["target"].str.startswith(RANDOM).any():
        return ""
    return (
        "Weights are random. How many drafted tokens are accepted, and with it every speculative speed in tokens/s, "
        "means nothing; times of steps and speeds of plain decoding are those of real weights."
    )


def _pictures(rows: pd.DataFrame, others: pd.DataFrame) -> Iterator[Picture]:
    levels = [
        (name, each["batch"].iloc[0], gamma, each["tokens_per_second"].median())
        for _, beside in batches(rows, others)
        for name, gamma, each in by_setting(beside)
    ]
    shown = pd.DataFrame(levels, columns=["name", "batch", "gamma", "tokens_per_second"])
    where = setting(rows)
    question = "Which engine is the fastest, at which gamma?"
    figure = plots.speed_against_gamma(rows, shown)
    yield Picture("speed_against_gamma", figure, question, f"{SPEEDS} {where}")
    series = rows.assign(series=rows["engine"] + ", batch size " + rows["batch_size"].astype(str))
    question = "What does the time of an emitted token go into?"
    yield Picture("time_split", decode_plots.time_split(series), question, f"{SPLIT} {where}")


if __name__ == "__main__":
    main("decode_speed", build)
