"""How fast is a step with each engine, where does its time go, and what do transformers' own decoders reach?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, number, plain
from specbench.reports.plots import comparisons as plots
from specbench.reports.plots import decode as decode_plots
from specbench.reports.templates import words

from .command import main
from .decoding import latency
from .folder import read_rows, read_table
from .page import page

BASELINES = "baselines.parquet"
ASSISTED = "transformers_assisted"
SETTINGS = ("batch_size", "engine", "gamma")
COLUMNS = ["name", "batch", "texts", "tokens_per_second", "seconds_prepared", "equal_texts", "note", "gamma"]


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir, "engine", "speedup").sort_values([*SETTINGS, "job"], kind="stable", ignore_index=True)
    lines = read_table(run_dir, BASELINES, rows, ["gamma"], remedy=None)
    lines = lines.reindex(columns=COLUMNS) if lines.empty else lines
    others = by_setting(lines)
    series = rows.assign(series=rows["engine"] + ", batch size " + rows["batch_size"].astype(str))
    shown = {
        "table": Table("table", table(rows, others), left=("decoder",)),
        **latency(rows, [*SETTINGS, *distinguishing_columns(rows, *SETTINGS)]),
        "speed_against_gamma": plots.speed_against_gamma(rows, others),
        "time_split": decode_plots.time_split(series),
    }
    random_weights = rows["target"].str.startswith("random:").any()
    return page(
        run_dir,
        rows,
        "decode_speed",
        shown,
        warning=words("decode_speed.random_weights") if random_weights else "",
        data={"table": rows, "baselines": lines},
        others=lines,
        sizes=[best_of(group, others) for _, group in rows.groupby("batch_size")],
    )


def by_setting(lines: pd.DataFrame) -> pd.DataFrame:
    """A row a decoder of transformers and batch size: its median speed, and the largest time that it was prepared in.

    Assisted generation has a row a gamma, which the others know nothing of: theirs is 0.
    """
    gammas = lines["gamma"].where(lines["name"] == ASSISTED, 0)
    settings = lines.assign(gamma=gammas).groupby(["batch", "name", "gamma"], sort=False, as_index=False)
    return settings.agg({"tokens_per_second": "median", "seconds_prepared": "max"})


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
    rows = with_settings(rows)
    settings = distinguishing_columns(rows, *SETTINGS)
    lines = []
    for size, group in rows.groupby("batch_size"):
        lines += [_line(row, settings) for _, row in group.iterrows()]
        lines += [_other(row) for _, row in others[others["batch"] == size].iterrows()]
    return pd.DataFrame(lines).fillna(NONE)


def _line(row: pd.Series, settings: list[str]) -> dict[str, str]:
    ms = step_ms(row)
    return {
        "batch": plain(row["batch_size"]),
        "decoder": plain(row["engine"]),
        "gamma": plain(row["gamma"]),
        **cells.settings(row, settings),
        "tokens/s": number(row["tokens_per_second"], ".1f"),
        "plain tokens/s": number(row["plain_tokens_per_second"], ".1f"),
        "ms a step": number(ms),
        "floors": number(ms / floor_ms(row), ".1f"),
        "plain ms a step": number(step_ms(row, "plain_")),
        "prepared s": number(row["seconds_prepared"], ".1f"),
    }


def _other(row: pd.Series) -> dict[str, str]:
    """What a decoder of transformers has of these columns."""
    speed, prepared = number(row["tokens_per_second"], ".1f"), number(row["seconds_prepared"], ".1f")
    drafting = {"gamma": plain(row["gamma"]), "tokens/s": speed}
    own = drafting if row["name"] == ASSISTED else {"plain tokens/s": speed}
    return {"batch": plain(row["batch"]), "decoder": row["name"], **own, "prepared s": prepared}


def best_of(rows: pd.DataFrame, others: pd.DataFrame) -> tuple[pd.Series, pd.Series, pd.Series | None]:
    """The rows of the highest speeds of one batch size, speculative and plain, and of the others at it."""
    fast, slow = (rows.loc[rows[name].idxmax()] for name in ("tokens_per_second", "plain_tokens_per_second"))
    rivals = others[(others["batch"] == fast["batch_size"]) & others["tokens_per_second"].notna()]
    return fast, slow, None if rivals.empty else rivals.loc[rivals["tokens_per_second"].idxmax()]


if __name__ == "__main__":
    main("decode_speed", build)
