"""The schema of conf/config.yaml: unknown keys and wrong types fail while Hydra composes, before anything is loaded.

Nothing here imports PyTorch, so that what is wrong with a command is said at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.core.checks import LARGEST_COUNT
from specbench.core.errors import ConfigError
from specbench.core.machine.files import is_name, problem_of
from specbench.core.sampling_params import LARGEST_LENGTH, LARGEST_SEED, SamplingParams, yaml_schema

LARGEST_GAMMA = 64
LARGEST_BATCH = 4096
MOST_THREADS = 1024
DTYPES = ("float32", "bfloat16", "float16")
PARALLEL = ("none", "tensor")
AUTO = "auto"
EMBEDDED = "embedded:"  # before the name of a workload's file of this package
WORKLOAD_FILES = "Give a UTF-8 file of JSON lines, a parquet file, or the folder of a data set."
VOCABULARIES = ("same", "different")  # as models/loading.py knows them
NAMED = {"named": True}  # of a field: its value is part of the group's name in rows, where it has no column


@dataclass
class PairConfig:
    name: str = MISSING
    target: str = MISSING
    draft: str | None = None
    draft_dtype: str | None = None
    chat: bool | None = field(default=None, metadata=NAMED)
    system: str | None = field(default=None, metadata=NAMED)
    thinking: bool | None = field(default=None, metadata=NAMED)
    thinking_tokens: list[str] | None = field(default=None, metadata=NAMED)
    download: bool = False
    vocabularies: str = "same"


if TYPE_CHECKING:
    SamplerConfig = SamplingParams
else:
    SamplerConfig = yaml_schema()
    SamplerConfig.__module__ = __name__  # so that a configuration can be pickled


@dataclass
class ColumnsConfig:
    """Names of columns: auto guesses one, null uses none."""

    prompt: str | None = AUTO
    turns: str | None = AUTO
    messages: str | None = AUTO
    id: str | None = AUTO
    category: str | None = AUTO


@dataclass
class WorkloadConfig:
    name: str = MISSING
    path: str = MISSING
    split: str | None = None
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    where: list[str] = field(default_factory=list)
    shuffle: int | None = None
    pool: Any = None  # a mapping; Hydra puts null in the place of one that a yaml gives only if it is typed so
    per_category: int = 0
    limit: int = 0
    parameters: bool = True


@dataclass
class TrackingConfig:
    mode: str = "offline"
    project: str = "specbench"
    entity: str | None = None
    texts: int = 8
    live: bool | None = None


@dataclass
class Config:
    """drafter, verifier, engine, protocol and source are open: each yaml names a class (_target_) and its arguments."""

    pair: PairConfig = field(default_factory=PairConfig)
    drafter: dict[str, Any] = MISSING
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    verifier: dict[str, Any] = MISSING
    engine: dict[str, Any] = MISSING
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    protocol: dict[str, Any] = MISSING
    source: Any = None  # a mapping; Any, so that null may take its place
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    gamma: int = 4
    batch_size: int = 1
    max_new_tokens: int = 64
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    parallel: str = "none"
    threads: int = 0
    share_machine: bool = False


def register() -> None:
    """Puts the schema where ``defaults: [schema]`` of config.yaml finds it."""
    ConfigStore.instance().store(name="schema", node=Config)


def check_keys(given: Mapping[str, Any], schema: Any, prefix: str = "") -> None:
    """Raises ConfigError for a key outside the schema, which Hydra lets pass where it is added with a plus."""
    known: dict[str, Any] = {each.name: each.default_factory for each in fields(schema)}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(
                prefix + key, value, "unknown key", f"See conf/{prefix.partition('.')[0] or 'config.yaml'}."
            )
        if is_dataclass(known[key]):
            check_keys(value, known[key], f"{prefix}{key}.")


def resolved(config: Any) -> dict[str, Any]:
    """The configuration with everything filled in.

    Raises:
        ConfigError: a value that is missing, or an interpolation that leads nowhere.
    """
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # ty: ignore
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(key, "???", "no value given", f"Add {key}=... to the command.") from error
    except OmegaConfBaseException as error:  # ${...} that leads nowhere
        raise ConfigError(
            str(error.full_key), "${...}", str(error).splitlines()[0], "Check the interpolation."
        ) from error


def check(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for all that can be known to be wrong without PyTorch.

    Args:
        given: what ``resolved`` returns.
    """
    check_keys(given, Config)
    for key, low, high, remedy in (
        ("gamma", 0, LARGEST_GAMMA, "Use 0 (plain decoding) to 64; gains end well below 20."),
        ("batch_size", 1, LARGEST_BATCH, f"Use 1 to {LARGEST_BATCH}."),
        ("max_new_tokens", 1, LARGEST_LENGTH, "Use 1 or more."),
        ("seed", 0, LARGEST_SEED, f"Use a whole number from 0 to {LARGEST_SEED}."),
        ("threads", 0, MOST_THREADS, "Use 0 to have it chosen."),
        ("workload.limit", 0, LARGEST_COUNT, "Use 0 for all prompts."),
        ("workload.per_category", 0, LARGEST_COUNT, "Use 0 for all prompts of each category."),
        ("tracking.texts", 0, LARGEST_COUNT, "Use 0 for no texts."),
    ):
        group, _, name = key.rpartition(".")
        value = (given[group] if group else given)[name]
        if not low <= value <= high:
            problem = f"below {low}" if value < low and high == LARGEST_COUNT else f"outside {low}..{high}"
            raise ConfigError(key, value, problem, remedy)
    _check_workload(given["workload"])
    sampler, longest = given["sampler"], given["max_new_tokens"]
    SamplingParams.from_mapping({**sampler, "processors": ()}).check_length(longest)
    for processor in sampler["processors"]:
        if not isinstance(processor, Mapping) or not isinstance(processor.get("_target_"), str):
            remedy = "Give a list of {_target_: module.Class, argument: value, ...}."
            raise ConfigError("sampler.processors", processor, "no _target_", remedy)
    _check_dtypes(given)
    for key, value, choices in (
        ("parallel", given["parallel"], PARALLEL),
        ("pair.vocabularies", given["pair"]["vocabularies"], VOCABULARIES),
    ):
        if value not in choices:
            raise ConfigError(key, value, "not known", f"Use {' or '.join(choices)}.")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", given["device"]):
        raise ConfigError("device", given["device"], "not a device", "Use auto, cpu, cuda or cuda:N.")
    for group in ("drafter", "verifier", "engine", "protocol", *(["source"] if given["source"] is not None else [])):
        node = given[group]
        if not (isinstance(node, Mapping) and isinstance(node.get("_target_"), str)):
            raise ConfigError(group, node, "no _target_", f"Choose one of conf/{group}/*.yaml.")


def _check_workload(given: Mapping[str, Any]) -> None:
    if not 0 <= (given["shuffle"] or 0) <= LARGEST_SEED:
        remedy = f"Use null, or a whole number from 0 to {LARGEST_SEED}."
        raise ConfigError("workload.shuffle", given["shuffle"], "not a seed", remedy)
    pool = given["pool"]
    if pool is not None and not (isinstance(pool, Mapping) and all(map(is_category, [*pool, *pool.values()]))):
        remedy = "Use null, or categories by what they become: workload.pool={writing: mt-bench,coding: mt-bench}."
        raise ConfigError("workload.pool", pool, "no mapping of names to names", remedy)
    path = given["path"]
    problem = None if path.startswith(EMBEDDED) else problem_of(os.path.expanduser(path))
    if problem == "no such file":  # else a job would read it after it has imported PyTorch
        raise ConfigError("workload.path", path, f"cannot be read ({problem})", WORKLOAD_FILES)


def is_category(name: object) -> bool:
    """Whether a value of a row or of the command line can name a category."""
    return not isinstance(name, bool | list | Mapping) and name is not None and is_name(str(name))


def _check_dtypes(given: Mapping[str, Any]) -> None:
    of_draft = given["pair"]["draft_dtype"]
    for key, value in (("dtype", given["dtype"]), ("pair.draft_dtype", of_draft or "auto")):
        if value not in ("auto", *DTYPES):
            raise ConfigError(key, value, "not a dtype", f"Use auto, {', '.join(DTYPES)}.")
    if given["pair"]["draft"] is None and of_draft is not None:
        raise ConfigError("pair.draft_dtype", of_draft, "there is no pair.draft", "Leave it out, or give pair.draft.")
