"""The row of a run: what ran, under which settings, and what was measured.

Each column of a setting says which values of the configuration it stands for. What tells rows apart, which columns a
protocol leaves empty, and how a row is filled from the configuration are derived from that (run_settings.py).
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.core.sampling_params import SamplingParams

NO_DRAFT = "none"  # column draft, of a pair without one


@dataclass(frozen=True)
class Setting:
    """What a column says of the configuration.

    Attributes:
        paths: of the values that the column stands for, such as "pair.target"; "pair" alone is a name for the values of
            that group that have no column of their own. Empty for what the machine decides.
        verbatim: whether the column holds the value itself; others hold what a job made of it.
        follows: the column from which its value follows, unless rows show that it does not.
        in_tables: whether tables show it where rows differ in it.
    """

    paths: tuple[str, ...]
    verbatim: bool
    follows: str | None
    in_tables: bool


def _setting(*paths: str, verbatim: bool = False, follows: str | None = None, in_tables: bool = True) -> Any:
    return dataclasses.field(default=None, metadata={"setting": Setting(paths, verbatim, follows, in_tables)})


def _verbatim(path: str, follows: str | None = None, in_tables: bool = True) -> Any:
    return _setting(path, verbatim=True, follows=follows, in_tables=in_tables)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run. ``_low`` and ``_high`` bound 95% intervals: by bootstrap over prompts, None of one prompt; speedups' by
    metrics/speed.py, None where all was timed in one batch.

    What is None was not measured: a protocol without models has no pair, and the columns from acceptance on are the
    protocol decode's. What other protocols measure is in tables of their own, beside this one.
    """

    exp: str
    job: int
    created: str  # UTC, ISO 8601
    version: str | None = None  # of specbench; None in rows older than this column
    commit: str  # "-dirty" behind it where the tree had changes; an installed package has its build's
    python: str
    torch: str
    transformers: str

    # Settings, in the order in which tables show those in which rows differ. None: the protocol makes no use of it
    # (own_conditions of protocols/protocol.py), or the row is older than the column.
    protocol: str = _verbatim("choices.protocol")
    pair: str | None = _setting("pair")
    target: str | None = _verbatim("pair.target", follows="pair")
    draft: str | None = _verbatim("pair.draft", follows="pair")  # "none": the pair has none
    drafter: str | None = _setting("drafter")
    draft_temperature: float | None = _setting("drafter.temperature")  # None: as the target's
    verifier: str | None = _setting("verifier")
    lossless: bool | None = _setting("verifier", in_tables=False)
    # Accepted at rates that were given: speed means something, texts do not.
    synthetic: bool | None = _setting("verifier", in_tables=False)
    engine: str | None = _setting("engine")  # how steps were taken: eager, static, graph, compiled
    # Tokens of prompts fed between two steps, at most; None: whole prompts.
    prompt_chunk: int | None = _setting("engine.prompt_chunk")
    source: str | None = _setting("source")  # the engine under test that texts were sampled from
    sampler: str | None = _verbatim("choices.sampler", in_tables=False)  # its parameters say what it does
    temperature: float | None = _verbatim("sampler.temperature")
    top_k: int | None = _verbatim("sampler.top_k")
    top_p: float | None = _verbatim("sampler.top_p")
    min_p: float | None = _verbatim("sampler.min_p")
    presence_penalty: float | None = _verbatim("sampler.presence_penalty")
    frequency_penalty: float | None = _verbatim("sampler.frequency_penalty")
    repetition_penalty: float | None = _verbatim("sampler.repetition_penalty")
    min_tokens: int | None = _verbatim("sampler.min_tokens")
    # These three as JSON; empty if none is given.
    token_rules: str | None = _setting("sampler.logit_bias", "sampler.allowed_token_ids", "sampler.bad_words")
    sampling: str | None = _verbatim("sampler", in_tables=False)  # all sampling parameters, as JSON
    workload: str | None = _setting("workload")
    prompts: int | None = _setting("workload.limit", follows="workload")  # each turn of a conversation is one
    # Of them, how many have sampling parameters of their own beside the columns above.
    own_sampling: int | None = _setting("workload.parameters")
    gamma: int | None = _verbatim("gamma")  # of prompts that have none of their own, and so is max_new_tokens
    batch_size: int | None = _verbatim("batch_size")
    # Requests timed as one, batch_size of them side by side; above that a continuous batch.
    group: int | None = _setting("protocol.group", follows="batch_size")
    max_new_tokens: int | None = _verbatim("max_new_tokens")
    seed: int | None = _verbatim("seed")
    parallel: str | None = _verbatim("parallel")  # none, or tensor: the target in shards
    # Processes that decoded together, a GPU each; the row is of rank 0.
    ranks: int | None = _setting("parallel", follows="parallel")
    device: str = _setting("device")
    dtype: str | None = _setting("dtype")  # a replay has its trace's
    draft_dtype: str | None = _setting("pair.draft_dtype", follows="dtype")  # of its weights; None: no draft
    threads: int = _setting()
    threads_reason: str | None = None  # why this number, with what was timed; None without a model and in older rows
    hardware: str = _setting()
    # All settings that determine the numbers, and the choices of conf, as JSON (runs/identity.py); None in rows older
    # than this column.
    config: str | None = None

    # Acceptance (metrics/acceptance.py)
    # Of ``prompts``, fewer if the rounds of jobs that take turns ended early; None in rows older than this column.
    prompts_decoded: int | None = None
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
    # The job whose file has the rounds, if several jobs shared them (protocols/together.py).
    rounds_of: int | None = None
    looks: int | None = None  # in shared rounds: comparisons with the others, up to the look that ended this setting
    round_error: float | None = None  # relative standard error of speedup by the scatter of rounds; None for one round
    plain_round_error: float | None = None  # the same of plain_tokens_per_second
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


SETTINGS: dict[str, Setting] = {
    field.name: field.metadata["setting"] for field in dataclasses.fields(RunRow) if field.metadata
}
COVERED = frozenset(path for setting in SETTINGS.values() for path in setting.paths)  # values that have a column
_CHOICES = "choices."  # of conf, by group, which the configuration has beside the values (runs/identity.py)


def _columns_of() -> dict[str, tuple[str, ...]]:
    keys: dict[str, dict[str, None]] = {}
    for name, setting in SETTINGS.items():
        for path in setting.paths:
            keys.setdefault(path.removeprefix(_CHOICES).partition(".")[0], {})[name] = None
    return {key: tuple(names) for key, names in keys.items() if key not in ("protocol", "device")}  # every run has them


COLUMNS_OF = _columns_of()  # the columns that say what a key of the configuration was


def emptied(keys: Iterable[str]) -> dict[str, None]:
    """The columns of keys that a protocol made no use of, each None."""
    return {column: None for key in keys for column in COLUMNS_OF[key]}


def copied_columns(config: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that hold values of a configuration as they are, and the columns that are JSON of some.

    Args:
        config: what the column ``config`` holds (runs/identity.py).
    """
    columns = {name: _value(config, *setting.paths) for name, setting in SETTINGS.items() if setting.verbatim}
    sampling = SamplingParams.from_mapping({**config["sampler"], "processors": ()})
    return {**columns, "draft": columns["draft"] or NO_DRAFT, "token_rules": sampling.token_rules}


def _value(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value[key]
    return json.dumps(value) if isinstance(value, Mapping) else value


def leaves(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested configuration, each with its path, such as ``protocol.check.draws``."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
