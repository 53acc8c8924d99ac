"""The typed rows that a run leaves behind, written atomically as parquet.

``results.parquet`` has one row a run; ``steps.parquet`` one line a verification and request; ``empirical.parquet`` one
line a prefix and token of the empirical-against-target check; ``texts.parquet`` one line a decoded text; other
protocols leave tables of their own. Each job writes its own, and the sweep's folder holds the collected
``results.parquet`` of all its jobs: a copy for other programs. Whatever is said here of a sweep with jobs' folders is
read from these.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from specbench.core.errors import ConfigError
from specbench.core.machine.disk import beside, read_json
from specbench.core.sampling_params import PENALTIES

RESULTS, STEPS, EMPIRICAL, TEXTS = "results.parquet", "steps.parquet", "empirical.parquet", "texts.parquet"
CATEGORIES = "categories.parquet"  # protocols/categories.py


@dataclass(frozen=True)
class StepRow:
    """One verification of one request; num_emitted < num_accepted + 1 only where an end of the text cut the block."""

    prompt: str
    step: int
    num_draft_tokens: int
    num_accepted: int
    num_emitted: int
    draft_depth: int  # tokens on the longest path of a tree; num_draft_tokens of a chain
    category: str | None = None  # the workload's; empty if it has none, None in tables older than this column
    conversation: str | None = None  # the prompt of its first turn, by which intervals are resampled
    turn: int | None = None  # from 1


@dataclass(frozen=True)
class EmpiricalRow:
    """A token at a prefix of the empirical-against-target check: the target's probability, and how often it came."""

    prefix: str
    token_id: int
    token: str
    prob: float
    count: int
    draws: int


@dataclass(frozen=True)
class TextRow:
    """One decoded text."""

    prompt: str
    text: str  # of the prompt
    completion: str
    tokens: int
    finished: str  # "stop" or "length"
    stop_reason: str | None = None  # the stop string, or in digits the id of stop_token_ids, that ended it
    category: str | None = None  # these three as in StepRow
    conversation: str | None = None
    turn: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run. ``_low`` and ``_high`` bound 95% intervals: by bootstrap over prompts, None of one prompt; speedups' by
    metrics/speed.py, None where all was timed in one batch.

    What is None was not measured: a protocol without models has no pair, and the columns from acceptance on are the
    protocol decode's. What other protocols measure is in tables of their own, beside this one.
    """

    # What ran. Columns of what the protocol makes no use of are None (COLUMNS_OF, OwnConditions of protocols/base.py)
    exp: str
    job: int
    protocol: str
    created: str  # UTC, ISO 8601
    version: str | None = None  # of specbench; None in rows older than this column
    commit: str  # "-dirty" behind it where the tree had changes; an installed package has that of its build
    hardware: str
    threads: int
    device: str
    dtype: str | None  # a replay has that of its trace
    python: str
    torch: str
    transformers: str
    pair: str | None
    target: str | None
    draft: str | None  # "none": the pair has none
    draft_dtype: str | None = None  # of its weights; None: there is none, or the row is older than this column
    drafter: str | None
    draft_temperature: float | None = None  # of the drafts alone; None: they are sampled as the target is
    sampler: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None  # this and the four below: None in rows older than them, where all are off
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    token_rules: str | None = None  # logit_bias, allowed_token_ids and bad_words as JSON; empty if none is given
    sampling: str | None = None  # all sampling parameters asked for, as JSON
    verifier: str | None
    lossless: bool | None
    synthetic: bool | None = None  # accepted at rates that were given: speed means something, texts do not
    engine: str | None = None  # how steps were taken: eager, static, graph, compiled
    prompt_chunk: int | None = None  # tokens of prompts fed between two steps, at most; None: whole prompts
    parallel: str | None = None  # none, or tensor: the target in shards; None in rows older than this column
    ranks: int | None = None  # processes that decoded together, a GPU each; the row is of rank 0
    workload: str | None
    prompts: int | None  # each turn of a conversation is one
    own_sampling: int | None = None  # of them, how many have sampling parameters of their own beside the columns above
    gamma: int | None  # of prompts that have none of their own, and so is max_new_tokens
    batch_size: int | None
    max_new_tokens: int | None
    seed: int | None

    # Acceptance (metrics/acceptance.py)
    tokens: int | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    acceptance_histogram: list[int] | None = None
    joint_rates: list[float | None] | None = None
    conditional_rates: list[float | None] | None = None
    drafted_per_step: float | None = None  # below gamma where drafts are shorter; None in rows older than this column
    drafted_per_step_low: float | None = None
    drafted_per_step_high: float | None = None
    acceptance_rate: float | None = None
    acceptance_rate_low: float | None = None
    acceptance_rate_high: float | None = None
    acceptance_length: float | None = None
    acceptance_length_low: float | None = None
    acceptance_length_high: float | None = None
    overlap: float | None = None  # mean of sum min(p, q) over emitted positions; None where drafts have no q
    overlap_low: float | None = None
    overlap_high: float | None = None

    # Of a pair with different vocabularies (pair.vocabularies=different); None for others
    shared_tokens: int | None = None  # of the target's tokens, how many the draft has
    shared_mass: float | None = None  # the target's probability of these, mean over emitted positions
    shared_mass_low: float | None = None
    shared_mass_high: float | None = None

    # Speed, prompts included, on this hardware (metrics/speed.py). Seconds are those of decoding all texts once, of
    # each batch the median over rounds; the phases share them as they share the time of all rounds.
    seconds: float | None = None
    tokens_per_second: float | None = None
    plain_tokens: int | None = None
    plain_seconds: float | None = None
    plain_tokens_per_second: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    seconds_draft: float | None = None
    seconds_target: float | None = None
    seconds_verify: float | None = None
    seconds_commit: float | None = None  # stop tokens, limits, what is cached of a block
    seconds_rest: float | None = None
    rounds: int | None = None  # how often all batches were decoded both ways
    round_error: float | None = None  # relative standard error of speedup by the scatter of rounds; None for one round
    plain_round_error: float | None = None  # the same of plain_tokens_per_second
    group: int | None = None  # requests timed as one, batch_size of them side by side; above that a continuous batch
    batch_tokens: list[int] | None = None  # what the speed columns add up, group by group
    batch_seconds: list[float] | None = None
    batch_plain_tokens: list[int] | None = None
    batch_plain_seconds: list[float] | None = None
    differing_texts: int | None = None  # texts of later rounds that are not the first round's
    seconds_prepared: float | None = None  # before all that: compiling and capturing the engine's steps, both ways
    step_sizes: list[int] | None = None  # requests a step that the engine has made ready; empty: any
    seconds_prompts: float | None = None  # of seconds, in which prompts were fed to both models
    plain_seconds_prompts: float | None = None
    batch_steps: list[int] | None = None  # of each group, speculatively and plainly
    batch_plain_steps: list[int] | None = None
    requests_per_step: float | None = None  # that a step advanced, on average; batch_size if the batch was always full
    plain_requests_per_step: float | None = None
    # Latency of the speculative requests (LATENCY_METRICS of metrics/definitions.py), in milliseconds; None in rows
    # older than these columns. TPOT is None if every request generated one token.
    mean_ttft_ms: float | None = None
    p50_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    p50_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    weight_bytes_target: int | None = None  # what a forward pass reads of a model or its shard (benchmark/weights.py)
    weight_bytes_draft: int | None = None  # None: the drafter has no model
    copy_bandwidth: float | None = None  # bytes a second of the GPU's own large copy; None on a CPU

    # What other processes did meanwhile (metrics/disturbance.py); None where that cannot be known, as on a GPU
    cores: int | None = None  # that this process may use
    other_cores: float | None = None  # how many of them other processes kept busy, on average
    waited: float | None = None  # the share of the time that the computing thread waited for a core; of one thread only

    # Empirical against target, first tokens at several prefixes (metrics/empirical.py); None where check.draws is 0
    check_prefixes: int | None = None
    check_draws: int | None = None
    check_tv: float | None = None
    check_tv_noise: float | None = None
    check_tv_noise_q99: float | None = None
    check_p_value: float | None = None


NO_DRAFT = "none"  # column draft, of a pair without one
SHAPED = (*PENALTIES, "min_tokens", "token_rules")

# The columns of RunRow that say what a key of the configuration was.
COLUMNS_OF = {
    "pair": ("pair", "target", "draft", "draft_dtype"),
    "drafter": ("drafter", "draft_temperature"),
    "sampler": ("sampler", "temperature", "top_k", "top_p", "min_p", *SHAPED, "sampling"),
    "verifier": ("verifier", "lossless", "synthetic"),
    "engine": ("engine", "prompt_chunk"),
    "parallel": ("parallel", "ranks"),
    "workload": ("workload", "prompts", "own_sampling"),
    **{key: (key,) for key in ("gamma", "batch_size", "max_new_tokens", "seed", "dtype")},
}


def emptied(keys: Iterable[str]) -> dict[str, None]:
    """The columns of keys that a protocol made no use of, each None."""
    return {column: None for key in keys for column in COLUMNS_OF[key]}


_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _arrow_type(annotation: object) -> pa.DataType:
    if typing.get_origin(annotation) is list:
        return pa.list_(_arrow_type(typing.get_args(annotation)[0]))
    if typing.get_origin(annotation) is types.UnionType:
        return _arrow_type(next(a for a in typing.get_args(annotation) if a is not type(None)))
    return _ARROW[annotation]  # ty: ignore[invalid-argument-type]


def schema_of(row: type) -> pa.Schema:
    """The columns of a dataclass whose fields are str, int, float, bool, lists of these, or None beside one of them."""
    return pa.schema([(name, _arrow_type(hint)) for name, hint in typing.get_type_hints(row).items()])


RESULT_SCHEMA = schema_of(RunRow)
STEP_SCHEMA = schema_of(StepRow)
EMPIRICAL_SCHEMA = schema_of(EmpiricalRow)
TEXT_SCHEMA = schema_of(TextRow)


def write_atomically(path: Path, table: pa.Table) -> None:
    """Writes a parquet file that is either whole or not there; a file already written is kept until the new one is."""
    with beside(path) as temporary:
        pq.write_table(table, temporary)


def write_rows(path: Path, rows: Iterable[object] | pa.Table, schema: pa.Schema) -> None:
    """Writes dataclass instances or dicts under a schema, or a table as it is.

    Raises:
        KeyError: a row without one of the columns.
        pa.ArrowTypeError, pa.ArrowInvalid: a value that does not fit its column.
    """
    if isinstance(rows, pa.Table):
        write_atomically(path, rows)
        return
    plain = [dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row for row in rows]
    columns = [_column([row[field.name] for row in plain], field) for field in schema]
    write_atomically(path, pa.Table.from_arrays(columns, schema=schema))


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    # pyarrow would cut a float down to fit an integer column.
    if pa.types.is_integer(field.type) and any(isinstance(value, float) for value in values):
        raise pa.ArrowTypeError(f"column {field.name}: a float in a column of whole numbers")
    return pa.array(values, type=field.type)


def done_jobs(sweep: Path, name: str = RESULTS) -> list[Path]:
    """The folders of the jobs that are done and left a table of that name, in their order."""
    folders = [each.parent for each in sweep.glob(f"*/{name}") if each.parent.name.isdigit()]
    folders.sort(key=lambda each: int(each.name))
    states = ((folder, read_json(folder / "job.json")) for folder in folders)
    # A job that was killed after its rows were written may lack what else it found, such as a verdict: it runs again.
    return [folder for folder, state in states if state is None or state.get("status") == "done"]


def read_rows(sweep: Path) -> pa.Table | None:
    """The rows of a sweep: of its jobs, or the collected ones if it has no jobs' folders; None if there are none."""
    folders = done_jobs(sweep)
    paths = [folder / RESULTS for folder in folders] if folders else [sweep / RESULTS]
    tables = [pq.read_table(path, schema=RESULT_SCHEMA) for path in paths if path.is_file()]
    return pa.concat_tables(tables).sort_by("job") if tables else None


def collect(sweep: Path) -> int:
    """Gathers the results of all finished jobs of a sweep into its results.parquet; returns how many there are.

    Raises:
        WriteError: the sweep's folder cannot be written.
    """
    rows = read_rows(sweep)
    if rows is not None and done_jobs(sweep):
        write_atomically(sweep / RESULTS, rows)
    return 0 if rows is None else len(rows)


def read_results(sweep: Path) -> pd.DataFrame:
    """The rows of a sweep.

    Raises:
        ConfigError: a folder without results.
    """
    rows = read_rows(sweep)
    if rows is None:
        raise ConfigError(
            "RUN_DIR", sweep, "no results.parquet in it", "Give a folder of outputs/<exp>/<time>, after a run."
        )
    return rows.to_pandas()


def read_jobs(sweep: Path, name: str) -> pd.DataFrame:
    """A table that each job wrote (STEPS, EMPIRICAL, TEXTS), concatenated, with a column ``job``."""
    folders = done_jobs(sweep, name)
    frames = [pq.read_table(folder / name).to_pandas().assign(job=int(folder.name)) for folder in folders]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
