"""How fast is a step with each engine, where does its time go, and what do transformers' own decoders reach?"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from specbench.metrics.columns import Column, columns_of, typed
from specbench.metrics.results import BASELINES, BaselineRow
from specbench.metrics.run_row import RunRow
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, Run, number, plain
from specbench.reports.plots import comparisons as plots
from specbench.reports.plots import decode as decode_plots
from specbench.reports.plots.comparisons import DecoderRow
from specbench.reports.templates import words

from .command import main
from .decoding import latency
from .folder import read_rows, read_table
from .page import page

ASSISTED = "transformers_assisted"
Baseline, Decoder = columns_of(BaselineRow), columns_of(DecoderRow)
SETTINGS: tuple[Column, ...] = (Run.batch_size, Run.engine, Run.gamma)
# The columns of baselines.csv if no decoder was timed.
COLUMNS: list[Column] = [Baseline.name, Baseline.batch, Baseline.texts, Baseline.tokens_per_second]
COLUMNS += [Baseline.seconds_prepared, Baseline.equal_texts, Baseline.note, Run.gamma]


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir, Run.engine, Run.speedup)
    rows = rows.sort_values([*SETTINGS, Run.job], kind="stable", ignore_index=True)
    lines = read_table(run_dir, BASELINES, rows, [Run.gamma], remedy=None)
    lines = lines.reindex(columns=COLUMNS) if lines.empty else lines
    others = by_setting(lines)
    series = rows.assign(series=rows[Run.engine] + ", batch size " + rows[Run.batch_size].astype(str))
    shown = {
        "table": Table("table", table(rows, others), left=("decoder",)),
        **latency(rows, [*SETTINGS, *distinguishing_columns(rows, *SETTINGS)]),
        "speed_against_gamma": plots.speed_against_gamma(rows, others),
        "time_split": decode_plots.time_split(series),
    }
    baselines, random_weights = typed(lines, BaselineRow), rows[Run.target].str.startswith("random:").any()
    return page(
        run_dir,
        rows,
        "decode_speed",
        shown,
        warning=words("decode_speed.random_weights") if random_weights else "",
        data={"table": rows, "baselines": lines},
        baselines=baselines,
        notes=dict.fromkeys((row.name, row.note) for row in baselines if row.note),
        sizes=[best_of(group, typed(others, DecoderRow)) for _, group in rows.groupby(Run.batch_size)],
    )


def by_setting(lines: pd.DataFrame) -> pd.DataFrame:
    """DecoderRow of each of transformers' decoders, batch size and, for assisted generation alone, gamma."""
    gammas = lines[Run.gamma].where(lines[Baseline.name] == ASSISTED, 0)
    settings = lines.assign(gamma=gammas).groupby([Decoder.batch, Decoder.name, Decoder.gamma], sort=False)
    return settings.agg({Decoder.tokens_per_second: "median", Decoder.seconds_prepared: "max"}).reset_index()


def step_ms(seconds: float | None, prompts: float | None, steps: list[int] | None) -> float:
    """Milliseconds a step without the feeding of prompts; NaN in rows that lack it."""
    if seconds is None or prompts is None or steps is None:
        return math.nan
    return 1000 * (seconds - prompts) / sum(steps)


def floor_ms(run: RunRow) -> float:
    """Milliseconds that reading the weights of a speculative step takes; NaN on a CPU."""
    if run.copy_bandwidth is None or run.weight_bytes_target is None:
        return math.nan
    return 1000 * (run.weight_bytes_target + (run.gamma or 0) * (run.weight_bytes_draft or 0)) / run.copy_bandwidth


def table(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """One line a run, and below those of each batch size one for each of transformers' decoders, as text."""
    rows = with_settings(rows)
    settings = distinguishing_columns(rows, *SETTINGS)
    lines = []
    for size, group in rows.groupby(Run.batch_size):
        own = [cells.settings(row, settings) for _, row in group.iterrows()]
        lines += map(_line, typed(group, RunRow), own)
        lines += map(_other, typed(others[others[Decoder.batch] == size], DecoderRow))
    return pd.DataFrame(lines).fillna(NONE)


def _line(run: RunRow, settings: dict[str, str]) -> dict[str, str]:
    ms = step_ms(run.seconds, run.seconds_prompts, run.batch_steps)
    return {
        "batch": plain(run.batch_size),
        "decoder": plain(run.engine),
        "gamma": plain(run.gamma),
        **settings,
        "tokens/s": number(run.tokens_per_second, ".1f"),
        "plain tokens/s": number(run.plain_tokens_per_second, ".1f"),
        "ms a step": number(ms),
        "floors": number(ms / floor_ms(run), ".1f"),
        "plain ms a step": number(step_ms(run.plain_seconds, run.plain_seconds_prompts, run.batch_plain_steps)),
        "prepared s": number(run.seconds_prepared, ".1f"),
    }


def _other(row: DecoderRow) -> dict[str, str]:
    """What a decoder of transformers has of these columns."""
    speed = number(row.tokens_per_second, ".1f")
    own = {"gamma": plain(row.gamma), "tokens/s": speed} if row.name == ASSISTED else {"plain tokens/s": speed}
    return {"batch": plain(row.batch), "decoder": row.name, **own, "prepared s": number(row.seconds_prepared, ".1f")}


def best_of(rows: pd.DataFrame, others: list[DecoderRow]) -> tuple[RunRow, RunRow, DecoderRow | None]:
    """The rows of the highest speeds of one batch size, speculative and plain, and of the others at it."""
    (fast,), (slow,) = (
        typed(rows.nlargest(1, name), RunRow) for name in (Run.tokens_per_second, Run.plain_tokens_per_second)
    )
    rivals = [(row.tokens_per_second, row) for row in others if row.batch == fast.batch_size and row.tokens_per_second]
    return fast, slow, max(rivals, key=lambda rival: rival[0])[1] if rivals else None


if __name__ == "__main__":
    main("decode_speed", build)
