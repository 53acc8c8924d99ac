"""Made-up rows of runs, their folders, and how to read a report's table back."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.metrics import results
from specbench.metrics.intervals import Estimate
from specbench.metrics.results import EMPIRICAL, RESULT_SCHEMA, RESULTS, CategoryRow, EmpiricalRow, RunRow, write_rows
from specbench.reports import markdown

UNCHECKED = dict.fromkeys(("check_tv", "check_tv_noise", "check_tv_noise_q99", "check_p_value"))
NO_OVERLAP = dict.fromkeys(("overlap", "overlap_low", "overlap_high"))
NO_RATE = dict.fromkeys(("acceptance_rate", "acceptance_rate_low", "acceptance_rate_high"))
EMPIRICAL_ROWS = [
    {"prefix": prefix, "token_id": i, "token": token, "prob": prob, "count": count, "draws": 64}
    for prefix in ("Once upon", "$x_1$ is \u4e2d\n")
    for i, (token, prob, count) in enumerate([(" a", 0.5, 33), ("\n", 0.3, 18), (" $y$", 0.2, 13), (" no", 0.0, 0)])
]


def make_row(**changes: Any) -> RunRow:
    """A plausible row; gamma decides the lengths of its lists."""
    gamma, job = changes.get("gamma", 4), changes.get("job", 0)
    values: dict[str, Any] = {
        "exp": "gamma_sweep", "job": job, "protocol": "decode",
        "created": f"2026-01-01T00:{job:02d}:00Z", "version": "0.1.0", "commit": "0123abc-dirty",
        "hardware": "8 cores of Some_CPU [x]", "threads": 2, "device": "cpu", "dtype": "float32", "python": "3.11.7",
        "torch": "2.13.0", "transformers": "5.23.0", "pair": "embedded", "target": "embedded:target",
        "draft": "embedded:draft", "drafter": "model", "sampler": "temperature", "temperature": 1.0, "top_k": 0,
        "top_p": 1.0, "min_p": 0.0, "verifier": "masked", "lossless": True, "workload": "embedded", "prompts": 16,
        "gamma": gamma, "batch_size": 1, "max_new_tokens": 64, "seed": 0,
        "tokens": 1000, "steps": 400, "drafted": max(400 * gamma, 0), "accepted": 600 if gamma else 0,
        "acceptance_histogram": [400 - 40 * gamma, *([40] * gamma)],
        "joint_rates": [0.8**i for i in range(1, gamma + 1)], "conditional_rates": [0.8] * gamma,
        "drafted_per_step": float(gamma), "drafted_per_step_low": gamma - 0.2, "drafted_per_step_high": gamma + 0.0,
        "acceptance_rate": 0.61, "acceptance_rate_low": 0.581, "acceptance_rate_high": 0.639,
        "acceptance_length": 2.5, "acceptance_length_low": 2.31, "acceptance_length_high": 2.72,
        "overlap": 0.8, "overlap_low": 0.77, "overlap_high": 0.83,
        "seconds": 4.0, "tokens_per_second": 250.0, "plain_tokens": 1000, "plain_seconds": 5.0,
        "plain_tokens_per_second": 200.0, "speedup": 1.25, "speedup_low": 1.2, "speedup_high": 1.3,
        "seconds_draft": 1.0, "seconds_target": 2.0, "seconds_verify": 0.6, "seconds_commit": 0.1, "seconds_rest": 0.3,
        "rounds": 3, "round_error": 0.002, "plain_round_error": 0.003, "differing_texts": 0,
        "batch_tokens": [62] * 16, "batch_seconds": [0.245, 0.255] * 8,
        "batch_plain_tokens": [62] * 16, "batch_plain_seconds": [0.3125] * 16,
        "cores": 8, "other_cores": 0.05, "waited": None,
        "check_prefixes": 4, "check_draws": 64, "check_tv": 0.051, "check_tv_noise": 0.05,
        "check_tv_noise_q99": 0.061, "check_p_value": 0.412,
    }  # fmt: skip
    return RunRow(**{**values, **changes})


def make_category(category: str, speedup: float | None, **changes: Any) -> CategoryRow:
    """A plausible row of categories.parquet; every interval is its value alone."""
    values = {"drafted_per_step": 2.5, "acceptance_rate": 0.5, "acceptance_length": 2.25, "speedup": speedup}
    values = {"category": category, "prompts": 3, "texts": 4, "tokens": 9, "steps": 4, "drafted": 10, "accepted": 5,
              "tokens_per_second": 1.0, "plain_tokens_per_second": 1.0, **values, **changes}  # fmt: skip
    pairs = ((name, f"{name}{end}") for name in values for end in ("_low", "_high"))
    ends = {bound: values[name] for name, bound in pairs if bound in CategoryRow.__annotations__}
    return CategoryRow(**values, **ends)


def estimates(*rates: list[float | None]) -> list[list[Estimate | None]]:
    """Rates by position, each with an interval of 0.1 around it."""
    return [[None if rate is None else Estimate(rate, rate - 0.05, rate + 0.05) for rate in row] for row in rates]


def frame(rows: list[RunRow]) -> pd.DataFrame:
    """Rows as W&B would plot them, without a parquet file in between: None stays None."""
    return pd.DataFrame([dataclasses.asdict(row) for row in rows])


def write_run(folder: Path, rows: list[RunRow], empirical: bool = True) -> Path:
    """A sweep's folder as a run leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        job = folder / str(row.job)
        job.mkdir()
        write_rows(job / RESULTS, [row], RESULT_SCHEMA)
        if empirical:
            write_rows(job / EMPIRICAL, EMPIRICAL_ROWS, EmpiricalRow)
    results.collect(folder)
    return folder


def gamma_rows(**changes: Any) -> list[RunRow]:
    """Gammas 1, 3 and 12 for two verifiers; masked is fastest at gamma 3, with intervals apart from all others."""
    speeds = {1: (1.1, 1.15), 3: (1.3, 1.6), 12: (0.8, 0.9)}
    rows = []
    for gamma in (12, 1, 3):
        for verifier, speedup in zip(("naive", "masked"), speeds[gamma], strict=True):
            bounds = {"speedup": speedup, "speedup_low": speedup - 0.011, "speedup_high": speedup + 0.013}
            fields = {"job": len(rows), "gamma": gamma, "verifier": verifier, "acceptance_length": 1 + gamma / 8}
            low_high = {"acceptance_length_low": 0.9 + gamma / 8, "acceptance_length_high": 1.1 + gamma / 8}
            histogram = [300 - 20 * gamma, *([20] * gamma)]
            rows.append(make_row(**{**fields, **low_high, **bounds, "acceptance_histogram": histogram, **changes}))
    return rows


def markdown_report(module: Any, run: Path) -> str:
    """What an analysis says of a run, as Markdown; its figures are made, and neither drawn nor written."""
    return markdown.render(module.build(run))


def table_of(page: Path | str) -> list[dict[str, str]]:
    """The lines of the first Markdown table of a file, or of a text, by their headings."""
    text = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    lines = itertools.takewhile(_in_table, itertools.dropwhile(lambda line: not _in_table(line), text.splitlines()))
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, line, strict=True)) for line in body]


def _in_table(line: str) -> bool:
    return line.startswith("|")
