"""A job's row and the files beside it: what its settings are called in rows, and the tables that it leaves."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from specbench.core.checks import nearest
from specbench.core.errors import ConfigError
from specbench.core.machine import ranks
from specbench.core.machine.devices import choose_dtype
from specbench.core.machine.disk import write_json, write_text
from specbench.core.machine.files import clipped, shown, wrap_library_errors
from specbench.core.machine.journal import TOGETHER
from specbench.metrics import results
from specbench.metrics.results import RESULT_SCHEMA, RESULTS
from specbench.metrics.run_row import RunRow, copied_columns, emptied
from specbench.protocols import Outcome, ParquetTable, RunContext
from specbench.reports.plots.style import style
from specbench.rules.recorded import RECORDED, recorded_rules
from specbench.runs.config import Config, PairConfig, WorkloadConfig
from specbench.runs.identity import settings_of
from specbench.runs.job import JobInfo
from specbench.runs.overrides import FAMILIES, key_of
from specbench.runs.plan import PlannedJob
from specbench.runs.state import ENVIRONMENT, OWN_FILES
from specbench.sources.contract import SAMPLED

HF = "hf"  # of conf/pair: any two models of a user's own
FILE = "file"  # of conf/workload: any file of a user's own
FILE_NAME = re.compile(r"[^./\\\0][^/\\\0]*")  # in the job's folder, and not hidden
RESERVED = (*OWN_FILES, RESULTS, RECORDED, TOGETHER, SAMPLED)  # in a job's folder, names that no protocol may take
LONGEST_SYSTEM = 40  # characters of a system prompt that a name shows


def settings_columns(config: Config, job: JobInfo, context: RunContext, ignored: Collection[str]) -> dict[str, Any]:
    """The row's columns of settings; those of ignored keys are empty."""
    settings = settings_of(dataclasses.asdict(config), job.choices)
    used = {key: value for key, value in settings.items() if key not in ignored}
    of_draft = choose_dtype(config.pair.draft_dtype or config.dtype, context.device)
    return {
        **copied_columns(settings),
        "config": json.dumps(used, default=str),
        "pair": pair_name(config.pair),
        "draft_dtype": None if config.pair.draft is None else str(of_draft).removeprefix("torch."),
        "drafter": component_name("drafter", config.drafter, job),
        "workload": workload_name(config.workload),
        "source": config.source and component_name("source", config.source, job),
        "ranks": ranks.size(),
        **context.columns,
        **emptied(ignored),
    }


def checked_outcome(outcome: object, protocol: str) -> Outcome:
    """What a protocol returned, with its tables made.

    Args:
        protocol: its name.

    Raises:
        ConfigError: no Outcome, an output without a name of a file or with that of a file of the job, or a value that
            fits no column. Nothing is written before.
    """

    def wrong(problem: str, remedy: str) -> ConfigError:
        return ConfigError("protocol", protocol, problem, remedy)

    if not isinstance(outcome, Outcome):
        problem = f"run returned {shown(outcome)}, which is no Outcome"
        raise wrong(problem, "Return specbench.protocols.Outcome(headline, measured, tables).")
    figures = [f"{name}.png" if isinstance(name, str) else name for name in outcome.figures]
    names = [*outcome.tables, *outcome.documents, *figures]
    for name in names:
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            raise wrong(
                f"{shown(name)} is no name of a file", "Use letters, digits and a suffix, such as ends.parquet."
            )
        if name.casefold() in RESERVED or names.count(name) > 1:
            writer = "the job itself writes" if name.casefold() in RESERVED else "two outputs are named"
            raise wrong(f"{writer} {name}", "Use another name.")
    for name, text in outcome.documents.items():
        if not isinstance(text, str):
            raise wrong(f"document {name} is {shown(text)}, which is no text", "Give a str, such as json.dumps of it.")
    for name in outcome.measured:
        if name not in RESULT_SCHEMA.names:
            near = nearest(name, tuple(RESULT_SCHEMA.names))
            remedy = f"Use {near}, or a table." if near else "Use a field of RunRow (metrics/run_row.py), or a table."
            raise wrong(f"measured[{name!r}] is no column of {RESULTS}", remedy)
    columns = pa.schema([RESULT_SCHEMA.field(name) for name in outcome.measured])
    _arrow_table(ParquetTable([outcome.measured], columns), "measured", protocol)
    tables = {name: _arrow_table(table, f"table {name}", protocol) for name, table in outcome.tables.items()}
    return dataclasses.replace(outcome, tables=tables)


def _arrow_table(table: object, name: str, protocol: str) -> ParquetTable:
    """A table of a protocol as Arrow's. Raises ConfigError, which names the table and the column."""
    if not isinstance(table, ParquetTable):
        problem = f"{name} is {shown(table)}, which is no ParquetTable"
        raise ConfigError("protocol", protocol, problem, "Use specbench.protocols.ParquetTable(rows, schema).")
    rows = table.rows if isinstance(table.rows, pa.Table) else list(table.rows)  # outside, since a generator may fail
    with wrap_library_errors(
        "protocol", protocol, f"{name} does not fit its columns", "Change the rows or the schema."
    ):
        return ParquetTable(results.table_of(rows, table.schema), table.schema)


def write_tables(folder: Path, row: RunRow, outcome: Outcome) -> None:
    """The job's parquet files and documents; the row last, so that a folder with a row is whole. Raises WriteError."""
    for name, table in outcome.tables.items():
        results.write_rows(folder / name, table.rows, table.schema)
    for name, text in outcome.documents.items():
        write_text(folder / name, text)
    if rules := recorded_rules():
        write_text(folder / RECORDED, rules)
    details = {
        key: getattr(row, key)
        for key in ("created", "version", "commit", "hardware", "threads", "device", "python", "torch", "transformers")
    }
    write_json(folder / ENVIRONMENT, details)
    results.write_rows(folder / RESULTS, [row], RESULT_SCHEMA)


def draw_figures(folder: Path, outcome: Outcome) -> None:
    """The job's figures as PNG, in its folder."""
    with style():
        for name, figure in outcome.figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)


def component_name(group: str, node: Mapping[str, Any], job: JobInfo | PlannedJob) -> str:
    """The name of a job's component: its choice in conf, or what the command line made of it.

    ``verifier._target_=mine.Mine`` is named mine.Mine, whatever yaml it started from; ``verifier.bits=8`` stands in
    brackets behind the choice. One of a family is named by the setting that says which: ``flawed/NAME``.

    Args:
        group: of conf, such as "verifier".
    """
    keys = (key_of(override).partition(".") for override in job.overrides)
    changed = {key for of_group, dot, key in keys if dot and of_group == group}
    name = choice = job.choices.get(group) or str(node["_target_"])  # a source may have no yaml
    member = FAMILIES.get((group, choice))
    if "_target_" in changed:
        name = str(node.get("_target_", choice))
    elif member is not None:
        name = f"{choice}/{node[member]}"
        changed.discard(member)
    return _with(name, {key: node.get(key) for key in sorted(changed - {"_target_"})})


def pair_name(pair: PairConfig) -> str:
    """The name of a pair in rows: its yaml's, and how its prompts are made, ``qwen3[system=Be brief.,thinking=true]``.

    A pair of ``pair=hf`` is called by its target, ``SmolLM2-1.7B-Instruct``, since its yaml's name says nothing. The
    models and number formats have columns. A long text is cut, and a digest tells it from others that begin alike.
    """
    named = {
        field.name: getattr(pair, field.name) for field in dataclasses.fields(PairConfig) if "named" in field.metadata
    }
    if pair.system is not None:
        short = clipped(" ".join(pair.system.split()), LONGEST_SYSTEM)
        digest = hashlib.sha256(pair.system.encode(errors="replace")).hexdigest()[:8]
        named["system"] = short if short == pair.system else f"{short} {digest}"
    name = model_name(pair.target) if pair.name == HF else pair.name
    return _with(name, {key: value for key, value in named.items() if value is not None})


def model_name(target: str) -> str:
    """The last part of a folder or hub id; of a folder in the hub's cache the model's, not its commit's."""
    path = Path(target)
    cached = [part.rpartition("--")[2] for part in path.parts if part.startswith("models--")]
    return cached[-1] if cached else path.name or path.resolve().name


def workload_name(workload: WorkloadConfig) -> str:
    """The name of a workload in rows: its yaml's; of ``workload=file`` the path too, which alone says what was read.

    ``file:prompts.jsonl``; a set of the field has a name of its own, wherever its file lies. Behind it stand the rows
    that were chosen, ``gsm8k[split=test,shuffle=1]``; their number has a column.
    """
    name = f"{workload.name}:{workload.path}" if workload.name == FILE else workload.name
    chosen = {"split": workload.split, "where": " ".join(workload.where) or None, "shuffle": workload.shuffle}
    chosen["per_category"] = workload.per_category or None
    return _with(name, {key: value for key, value in chosen.items() if value is not None})


def _with(name: str, settings: Mapping[str, Any]) -> str:
    """A name, and in brackets the settings, as a command line gives them: ``true`` and ``null``, not Python's words."""
    words = [f"{key}={json.dumps(v) if v is None or isinstance(v, bool) else v}" for key, v in settings.items()]
    return f"{name}[{','.join(words)}]" if words else name
