"""What the reports of decoding sweeps share: the table, the figures, and the sentences that hold for any sweep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.core.sampling_params import NUMBERS
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.request_latency import STATISTICS
from specbench.metrics.results import RESULT_SCHEMA
from specbench.reports import Bullets, Link, Picture, Report, Section, Strong, Table, Text, cells, winner
from specbench.reports.between import RULES, agreement, tokens_a_step
from specbench.reports.cells import NONE, interval, number, plain
from specbench.reports.plots import decode as plots
from specbench.reports.text import section
from specbench.reports.varying import as_text, asked, varying, with_sampling

from .categories import by_category, read_categories
from .command import main
from .drawn_tokens import drawn_tokens, exactness
from .folder import read_rows, report_of

WHERE = "Where it ran"

TABLE_NOTE = (
    """\
Brackets hold 95% intervals, each for its own number: by bootstrap over prompts; for speedups, which are medians of
paired rounds, by the scatter of batches and of rounds. Acceptance rate: accepted / drafted tokens. Acceptance length:
accepted + 1, a verification step. Overlap: mean of sum min(p, q), the chance that one drafted token is accepted. Check:
total variation distance of drawn tokens from the target's probabilities, beside the mean and 99% quantile of what
sampling noise alone gives; p is the share of noise at least as far. """,
    Link("table.csv", "table.csv"),
    " holds every column, unrounded; ",
    Link("table.tex", "table.tex"),
    " needs the LaTeX package booktabs.",
)
LATENCY_NOTE = """\
TTFT: time to first token, from the start of a request, prefill and first draft included. TPOT: time per output token
after the first; requests of one token are left out. Each request counts with its median over rounds; mean, p50 and p99
are over requests. With fewer than 100 requests, p99 is close to the largest value."""
TIME_SPLIT = """\
Time of one emitted token and what it went into: proposing (draft), the target's forward passes (target), the accept
rule (verify), stop tokens, limits and the cache (commit), and the loop around them (rest). A bar below the line across
it, plain decoding timed beside the same run, is a speedup; the tallest part is what to make faster."""
HISTOGRAMS = """\
How often a verification accepted 0, 1, 2, ... drafted tokens. Weight on the far right says that longer drafts would
still be accepted; weight on 0 that drafting was in vain. Verifiers of one rule have bars of equal height."""


def read_run(run_dir: Path, axis: str) -> pd.DataFrame:
    """The rows of a run by the axis, with a column ``series``: the verifier, and what else differs between rows.

    Raises:
        ConfigError: a folder without results.
    """
    results = with_sampling(read_rows(run_dir, axis, "verifier", "acceptance_histogram", "speedup"))
    results["series"] = results["verifier"]
    for column in varying(results, axis, "verifier"):
        results["series"] += f", {column} " + results[column].map(plain)
    return results.sort_values([axis, "job"], kind="stable", ignore_index=True)


def table(results: pd.DataFrame, axis: str) -> pd.DataFrame:
    """The rows of read_run as text, ready to be printed."""
    settings = [axis, "verifier", *varying(results, axis, "verifier")]
    if not results["lossless"].all():
        settings.append("lossless")
    return pd.DataFrame(
        [{**{name: plain(row[name]) for name in settings}, **_measured(row)} for _, row in results.iterrows()]
    )


def latency(results: pd.DataFrame, settings: Sequence[str], where: str) -> list[Section]:
    """Returns the section on time to first token and time per output token; none if no row has them."""
    if results["mean_ttft_ms"].isna().all():
        return []
    names = {f"{name} {each}": f"{each}_{name.lower()}_ms" for name in ("TTFT", "TPOT") for each in STATISTICS}
    lines = [
        {name: plain(row[name]) for name in settings} | {name: number(row[column]) for name, column in names.items()}
        for _, row in results.iterrows()
    ]
    caption = f"Latency of speculatively decoded requests, in milliseconds. {where}"
    shown = pd.DataFrame(lines)
    return [section("Latency", Table("latency", shown, caption=caption, note=LATENCY_NOTE, left=("verifier",)))]


def _measured(row: pd.Series) -> dict[str, str]:
    noise = f"{number(row['check_tv_noise'], '.3f')} / {number(row['check_tv_noise_q99'], '.3f')}"
    return {
        "acceptance rate": interval(row, "acceptance_rate"),
        "acceptance length": interval(row, "acceptance_length"),
        "overlap": interval(row, "overlap"),
        "tokens/s": number(row["tokens_per_second"], ".1f"),
        "plain tokens/s": number(row["plain_tokens_per_second"], ".1f"),
        "speedup": interval(row, "speedup"),
        "check TV": number(row["check_tv"], ".3f"),
        "noise mean / q99": NONE if pd.isna(row["check_tv"]) else noise,
        "p": number(row["check_p_value"], ".3f"),
    }


def setting(results: pd.DataFrame) -> str:
    """What a caption says of the run: setting, how many prompts, and what the intervals are."""
    named = {"pair": "pair", "temperature": "temperature", "gamma": "gamma", "batches of": "batch_size"}
    known = {words: text for words, column in named.items() if (text := cells.values(results, column)) != NONE}
    prompts = f"{cells.values(results, 'prompts')} prompts of {cells.values(results, 'workload')}"
    where = f"{cells.values(results, 'device')}, {cells.values(results, 'dtype')}"
    parts = [*(f"{words} {text}" for words, text in known.items()), prompts, where, f"{CONFIDENCE:.0%} intervals"]
    return f"Setting: {'; '.join(parts)}."


def where_it_ran(results: pd.DataFrame) -> Section:
    """Hardware, versions and settings; what differs between rows is listed with all its values."""
    values = functools.partial(cells.values, results)
    timed = results["rounds"].notna().all()
    lines = [
        f"hardware: {values('hardware')}; device {values('device')}, {values('dtype')}, {values('threads')} threads",
        f"versions: specbench {values('version')}, commit {values('commit')}; Python {values('python')}, "
        f"PyTorch {values('torch')}, transformers {values('transformers')}",
        f"pair {values('pair')}: target {values('target')}, draft {values('draft')}; drafter {values('drafter')}",
        f"sampler {values('sampler')}: temperature {values('temperature')}, top_k {values('top_k')}, "
        f"top_p {values('top_p')}, min_p {values('min_p')}{_further(results)}; seed {values('seed')}",
        f"workload {values('workload')}: {values('prompts')} prompts in batches of {values('batch_size')}, at most "
        f"{values('max_new_tokens')} new tokens each; gamma {values('gamma')}{_of_lines(results)}",
        *([f"timed in {values('rounds')} rounds of plain and speculative decoding"] if timed else []),
        f"{len(results)} runs, {results['created'].min()} to {results['created'].max()}",
    ]
    mixed = {
        "hardware": "Rows come from different hardware: compare speedups with care, speeds not at all.",
        "commit": "Rows come from different commits: what differs between them may be the code.",
    }
    warnings = [(Strong(words),) for column, words in mixed.items() if results[column].nunique() > 1]
    return Section(WHERE, (Bullets((*lines, *warnings)),))


def _of_lines(results: pd.DataFrame) -> str:
    """That some prompts were sampled otherwise than the row says; empty where none was."""
    if not results["own_sampling"].fillna(0).any():
        return ""
    return f"; {cells.values(results, 'own_sampling')} of the prompts have sampling parameters of their own"


def _further(results: pd.DataFrame) -> str:
    """The sampling parameters that any row asks for beside the four numbers, each with its values."""
    every = [asked(row) for _, row in results.iterrows()]
    names = sorted({name for each in every for name in each} - set(NUMBERS))
    told = [(name, dict.fromkeys(as_text(each.get(name)) or "off" for each in every)) for name in names]
    return "".join(f", {name} {', '.join(values)}" for name, values in told)


def fastest(results: pd.DataFrame, axis: str) -> Text:
    """The fastest setting, if the data show which it is; see specbench.reports.winner."""
    names = [f"{axis} {plain(row[axis])} with {row['series']}" for _, row in results.iterrows()]
    return winner.fastest(results, names)


def synthetic(results: pd.DataFrame) -> str:
    """Which rows accepted by coin, so that nobody takes them for results of a method; empty if none did."""
    rows = results[results["synthetic"].eq(True)]
    if rows.empty:
        return ""
    return (
        f"{len(rows)} of {len(results)} runs are synthetic: they accepted drafts at rates that were given. Their speed "
        "says what such an acceptance is worth. Their texts are nobody's."
    )


def repeats(results: pd.DataFrame) -> str:
    """Whether later rounds wrote the first round's texts; empty where they did."""
    differing = results["differing_texts"].fillna(0).astype(int)
    if not differing.any():
        return ""
    return (
        f"{differing.sum()} texts of later rounds, in {(differing > 0).sum()} of {len(results)} runs, are not those of "
        "the first round, though their seeds are the same. On a GPU or in 16 bits rounding can do that; on a CPU in "
        "float32 it is a bug. Acceptance is the first round's."
    )


def build_sweep(
    run_dir: Path,
    name: str,
    axis: str,
    question: str,
    findings: Callable[[pd.DataFrame], Text],
    illustrate: Callable[[Path, pd.DataFrame], Iterable[Picture]],
) -> Report:
    """The report of a sweep of decoding runs.

    Args:
        run_dir: a folder with results.parquet.
        name: of the experiment.
        axis: the column of the results that the sweep varies.
        question: what the sweep was run for.
        findings: sentences of this sweep alone.
        illustrate: figures of this sweep alone, of its folder and rows; those of every sweep come after them.

    Raises:
        ConfigError: a folder without results.
    """
    results = read_run(run_dir, axis)
    common = [axis, *varying(results, axis, "verifier")]
    answer = [
        *(fastest(results, axis), *tokens_a_step(run_dir, results, common), findings(results)),
        *(winner.machine(results), repeats(results), exactness(results), agreement(results, axis)),
    ]
    shown = Table(
        "table",
        table(results, axis),
        raw=results[RESULT_SCHEMA.names],
        caption=f"Acceptance and speed by {axis} and verifier. {setting(results)}",
        note=TABLE_NOTE,
        left=("verifier", "pair", "drafter", "workload"),
    )
    settings = [axis, "verifier", *common[1:]]
    pictures = [*illustrate(run_dir, results), *_common_pictures(run_dir, results, axis)]
    sections = [
        section("Result", *answer),
        section("Table", shown),
        *latency(results, settings, setting(results)),
        *by_category(read_categories(run_dir, results, settings), settings, setting(results)),
        section("Figures", *pictures),
        where_it_ran(results),
    ]
    rules = [RULES[each] for each in results["verifier"] if each in RULES]
    title = f"{axis.capitalize()} sweep"
    named, warning = headlines(results), synthetic(results)
    return report_of(run_dir, name, title, question, sections, rules, headlines=named, warning=warning)


def headlines(results: pd.DataFrame) -> dict[str, str]:
    """What an abstract would quote: the run of the highest speedup."""
    best = results.loc[results["speedup"].idxmax()]
    return {
        "Speedup": interval(best, "speedup"),
        "SpeedupGamma": plain(best["gamma"]),
        "SpeedupTemperature": plain(best["temperature"]),
        "SpeedupVerifier": best["verifier"],
        "AcceptanceLength": interval(best, "acceptance_length"),
        "AcceptanceRate": interval(best, "acceptance_rate"),
        "Overlap": interval(best, "overlap"),
    }


def _common_pictures(run_dir: Path, results: pd.DataFrame, axis: str) -> Iterator[Picture]:
    where = setting(results)
    question = "What does the time of an emitted token go into?"
    yield Picture("time_split", plots.time_split(results, axis), question, f"{TIME_SPLIT} {where}")
    question = "How many drafted tokens does a step accept?"
    figure = plots.acceptance_histograms(results, axis)
    yield Picture("acceptance_histograms", figure, question, f"{HISTOGRAMS} {where}")
    yield from drawn_tokens(run_dir, results, axis)


def main_sweep(exp: str, build: Callable[[Path], Report]) -> None:
    """The command line of a sweep's report; see :func:`analysis.command.main`."""
    left_out = ["acceptance rate", "overlap", "plain tokens/s", "check TV", "noise mean / q99"]
    main(exp, build, lambda report: report.tables[0].shown.drop(columns=left_out))
