"""What the reports of decoding sweeps share: the rows, the table, latencies, categories and drawn tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.metrics.columns import Column, columns_of, typed_row
from specbench.metrics.ranking import ranking
from specbench.metrics.request_latency import STATISTICS
from specbench.metrics.results import CATEGORIES, EMPIRICAL, OF_WORKLOAD, RESULT_SCHEMA, CategoryRow, read_jobs
from specbench.metrics.run_row import RunRow
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells, winner
from specbench.reports.between import agreement, prompts_of, tokens_a_step
from specbench.reports.cells import NamedRun, Run, interval, number, plain
from specbench.reports.plots import decode as plots
from specbench.reports.plots.exactness import empirical_against_target

from .folder import read_rows
from .page import Shown, page

MEASURED = (
    *("acceptance rate", "acceptance length", "overlap", "tokens/s", "plain tokens/s", "speedup"),
    *("check TV", "noise mean / q99", "p"),
)
NO_CATEGORY = "(none)"
MOST_COLUMNS = 8  # categories side by side
Category = columns_of(CategoryRow)
_OF_ALL = {"all": Run.speedup, "acceptance length": Run.acceptance_length}  # headings behind those of categories


def read_run(
    run_dir: Path, axis: Column, part: Column = Run.verifier, needed: Column = Run.acceptance_histogram
) -> pd.DataFrame:
    """NamedRun of each row, by the axis: named by a row's part, and what else differs between rows.

    Args:
        axis: the column that the sweep varies.
        part: the column that a name begins with.
        needed: a column without which there is nothing to report, beside these and the speedup.

    Raises:
        ConfigError: a folder without results.
    """
    results = with_settings(read_rows(run_dir, axis, part, needed, Run.speedup))
    results[Run.series] = results[part]
    for column in distinguishing_columns(results, axis, part):
        results[Run.series] += f", {column} " + results[column].map(plain)
    return results.sort_values([axis, Run.job], kind="stable", ignore_index=True)


def table(results: pd.DataFrame, axis: Column) -> pd.DataFrame:
    """The rows of read_run as text, ready to be printed."""
    settings = [axis, Run.verifier, *distinguishing_columns(results, axis, Run.verifier)]
    if not results[Run.lossless].all():
        settings.append(Run.lossless)
    return cells.table(results, [*settings, *cells.varying_prompts(results), *MEASURED])


def latency(results: pd.DataFrame, settings: Sequence[Column]) -> dict[str, Shown]:
    """The table of times to first token and per output token; None if no row has them."""
    if results[Run.mean_ttft_ms].isna().all():
        return {"latency": None}
    times = {
        f"{name} {statistic}": results[f"{statistic}_{name.lower()}_ms"].map(number)
        for name in ("TTFT", "TPOT")
        for statistic in STATISTICS
    }
    shown = cells.table(results.assign(**times), [*settings, *times])
    return {"latency": Table("latency", shown, left=("verifier", "drafter", "draft"))}


def read_categories(run_dir: Path, results: pd.DataFrame, settings: Sequence[Column]) -> pd.DataFrame:
    """The rows of categories.parquet, category by category and then in the order of ``results``.

    Args:
        settings: columns of ``results`` that each line gets as well.

    Returns:
        Those settings, by their names of OF_WORKLOAD, job, and the columns of CategoryRow; empty if the workload has no
        categories.
    """
    categories = read_jobs(run_dir, CATEGORIES)
    if categories.empty:
        return categories
    later = (Category.drafted_per_step, Category.drafted_per_step_low, Category.drafted_per_step_high)
    categories = categories.reindex(columns=list(dict.fromkeys([*categories, *later])))  # tables of earlier versions
    categories = categories.replace({Category.category: {"": NO_CATEGORY}})
    of_runs = results[list(dict.fromkeys([Run.job, *settings]))].rename(columns=OF_WORKLOAD)
    rows = of_runs.merge(categories, on=Run.job)
    return rows.sort_values(
        Category.category, key=lambda names: pd.factorize(names)[0], kind="stable", ignore_index=True
    )


def by_category(rows: pd.DataFrame, results: pd.DataFrame, settings: Sequence[Column]) -> dict[str, Shown]:
    """The tables of categories, each None where there is nothing for it.

    ``speedups`` has one line a run and a column a category, as Spec-Bench has it; there is none for one category, or if
    batches held several. ``categories`` has a line a run and category.

    Args:
        rows: of :func:`read_categories`.
        settings: the columns in which the runs differ.
    """
    if rows.empty:
        return {"speedups": None, "categories": None}
    names = list(rows[Category.category].unique())
    measured = ("tokens drafted", "acceptance rate", "acceptance length", "speedup")
    of_runs = [OF_WORKLOAD.get(name, name) for name in settings]
    long = cells.table(rows, ["category", *of_runs, "prompts", "texts", *measured])
    taken = {*settings, *_OF_ALL}
    headings = {name: f"category {name}" if name in taken else name for name in names}

    def line(run: pd.Series) -> dict[str, str]:
        by_name = rows[rows[Run.job] == run[Run.job]].set_index(Category.category).reindex(names)
        speedups = {headings[str(name)]: interval(row, Category.speedup) for name, row in by_name.iterrows()}
        of_all = {heading: interval(run, column) for heading, column in _OF_ALL.items()}
        return {**cells.settings(run, settings), **speedups, **of_all}

    wide = 1 < len(names) <= MOST_COLUMNS and rows[Category.speedup].notna().any()
    return {
        "speedups": Table("speedups", cells.shown(results, line), left=tuple(settings)) if wide else None,
        "categories": Table("categories", long, rows, left=("category", *of_runs)),
    }


def telling(results: pd.DataFrame) -> tuple[NamedRun, str] | None:
    """The run whose drawn tokens would show a bias best, and why it is that one; None if none sampled its tokens."""
    sampled = results[(results[Run.temperature] > 0) & results[Run.check_tv].notna()]
    if sampled.empty:
        return None
    beyond = sampled[sampled[Run.check_tv] > sampled[Run.check_tv_noise_q99]]
    rows = sampled if beyond.empty else beyond
    order = rows.sort_values([Run.temperature, Run.check_p_value], ascending=[False, True], kind="stable")
    run = typed_row(order.iloc[0], NamedRun)
    if len(sampled) == 1:
        return run, "the one run that sampled"
    among = "all" if beyond.empty else "the runs beyond the 99% quantile of sampling noise"
    return run, f"of {among}, at the highest temperature, the run of the lowest p-value"


def build_sweep(
    run_dir: Path, name: str, axis: Column, results: pd.DataFrame, figures: dict[str, Shown], findings: str = ""
) -> Report:
    """The report of a sweep of decoding runs, by the macro ``sweep`` of pages/shared.md.

    Args:
        axis, results: of :func:`read_run`.
        figures: figures of this sweep alone, before those of every sweep.
        findings: sentences of this sweep alone.
    """
    common = [axis, *distinguishing_columns(results, axis, Run.verifier)]
    settings = [axis, Run.verifier, *common[1:]]
    categories, drawn = read_categories(run_dir, results, settings), read_jobs(run_dir, EMPIRICAL)
    chosen = None if drawn.empty else telling(results[results[Run.job].isin(drawn[Run.job])])
    left = ("verifier", "pair", "drafter", "workload")
    shown = {
        "table": Table("table", table(results, axis), raw=results[RESULT_SCHEMA.names], left=left),
        **latency(results, settings),
        **by_category(categories, results, settings),
        **figures,
        "time_split": plots.time_split(results, axis),
        "acceptance_histograms": plots.acceptance_histograms(results, axis),
    }
    names = zip(results[axis], results[Run.series], strict=True)
    if chosen is not None:
        shown["empirical_against_target"] = empirical_against_target(drawn[drawn[Run.job] == chosen[0].job])
    answer = {
        "fastest": winner.fastest(results, [f"{axis} {plain(value)} with {series}" for value, series in names]),
        "verdicts": tokens_a_step(run_dir, results, common),
        "findings": findings,
        "agreement": agreement(results, axis),
        "few": cells.few_units("prompts", prompts_of(run_dir, results)),
    }
    return page(
        run_dir,
        results,
        name,
        shown,
        headlines=headlines(results),
        axis=axis,
        answer=answer,
        categories=categories,
        drawn_run=chosen,
    )


def headlines(results: pd.DataFrame) -> dict[str, str]:
    """What an abstract would quote: the run of the highest speedup."""
    best = typed_row(results.iloc[ranking(results).best], RunRow)
    return {
        "Speedup": interval(best, Run.speedup),
        "SpeedupGamma": plain(best.gamma),
        "SpeedupTemperature": plain(best.temperature),
        "SpeedupVerifier": str(best.verifier),
        "AcceptanceLength": interval(best, Run.acceptance_length),
        "AcceptanceRate": interval(best, Run.acceptance_rate),
        "Overlap": interval(best, Run.overlap),
    }
