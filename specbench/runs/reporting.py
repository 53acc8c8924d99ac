"""The analysis of a run: its experiment's by name, and of a sweep of one's own by what it measured and varied."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyarrow as pa

from specbench.metrics import results
from specbench.runs.plan import read_plan

# Protocols whose analysis has another name.
OF_PROTOCOL = {
    "latency": "verifier_latency",
    "agreement": "verifier_agreement",
    "replay_check": "replay_sweep",
    "predict": "predicted_speedup",
    "judge": "engines",
}
DECODING = {"gamma": "gamma_sweep", "temperature": "temperature_sweep", "drafter": "drafters", "engine": "decode_speed"}
WITHOUT = "smoke"  # asks whether everything works here, in seconds


def find_analysis(run: Path) -> tuple[str, ModuleType | None]:
    """The experiment that a run's folder is of, and the analysis that reports on it; None if nothing does.

    Raises:
        ConfigError: damaged rows.
    """
    rows, plan = results.read_rows(run), read_plan(run)
    exp = run.resolve().parent.name if rows is None or not len(rows) else str(rows["exp"][0])
    exp = exp if plan is None else plan.exp
    return exp, analysis_of(exp, rows)


def analysis_module(exp: str) -> ModuleType | None:
    """The module of specbench.analysis that reports on an experiment, with ``build(run_dir) -> Report``.

    Args:
        exp: the experiment's name, as a sweep's rows have it.

    Returns:
        None where there is none: an experiment of a user's own, or one that has no report.
    """
    name = f"specbench.analysis.{exp}"
    if not exp.isidentifier() or importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    return module if hasattr(module, "build") else None


def analysis_of(exp: str, rows: pa.Table | None) -> ModuleType | None:
    """The experiment's own analysis, or the one that fits the rows of a sweep of one's own.

    Returns:
        None where neither is there: nothing reports on rows of several protocols, or of protocol=cost.
    """
    module = analysis_module(exp)
    if module is not None or exp == WITHOUT or rows is None:
        return module
    return analysis_module(fitting(rows.to_pandas()))


def fitting(rows: pd.DataFrame) -> str:
    """The experiment that measures what rows have measured, and varies what they vary; empty if none does.

    Of runs of decoding it is the one of the first setting of DECODING that has several values, else of gamma.
    """
    protocols = set(rows["protocol"])
    if protocols == {"decode"}:
        return next((exp for column, exp in DECODING.items() if rows[column].nunique() > 1), DECODING["gamma"])
    if len(protocols) != 1:
        return ""
    (protocol,) = protocols
    exp = OF_PROTOCOL.get(protocol, protocol)
    return exp if analysis_module(exp) is not None else ""
