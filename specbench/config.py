"""The schema of conf/config.yaml: unknown keys and wrong types fail while Hydra composes, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from specbench.errors import ConfigError
from specbench.rng import MAX_SEED

LARGEST_GAMMA = 64
LARGEST_BATCH = 4096


@dataclass
class PairConfig:
    name: str = MISSING
    target: str = MISSING
    draft: str = MISSING
    chat: bool | None = None
    download: bool = False


@dataclass
class SamplerConfig:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass
class WorkloadConfig:
    name: str = MISSING
    path: str = MISSING
    limit: int = 0


@dataclass
class TrackingConfig:
    mode: str = "offline"
    project: str = "specbench"
    entity: str | None = None
    texts: int = 8


@dataclass
class Config:
    """drafter, verifier and protocol are open: each yaml names a class (_target_) and its constructor's arguments."""

    pair: PairConfig = field(default_factory=PairConfig)
    drafter: dict[str, Any] = MISSING
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    verifier: dict[str, Any] = MISSING
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    protocol: dict[str, Any] = MISSING
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    gamma: int = 4
    batch_size: int = 1
    max_new_tokens: int = 64
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0


def register() -> None:
    """Puts the schema where ``defaults: [schema]`` of config.yaml finds it."""
    ConfigStore.instance().store(name="schema", node=Config)


def check_keys(given: Mapping[str, Any], schema: Any = Config, prefix: str = "") -> None:
    """Raises ConfigError for a key outside the schema, which Hydra lets pass where it is added with a plus."""
    known: dict[str, Any] = {each.name: each.default_factory for each in fields(schema)}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(prefix + key, value, "unknown key", f"See conf/{prefix.strip('.') or 'config.yaml'}.")
        if is_dataclass(known[key]):
            check_keys(value, known[key], f"{key}.")


def check_numbers(config: Config) -> None:
    """Raises ConfigError for a top-level number outside its range."""
    for key, low, high, remedy in (
        ("gamma", 0, LARGEST_GAMMA, "Use 0 (plain decoding) to 64; gains end well below 20."),
        ("batch_size", 1, LARGEST_BATCH, f"Use 1 to {LARGEST_BATCH}."),
        ("max_new_tokens", 1, 1_000_000, "Use 1 or more."),
        ("seed", 0, MAX_SEED, f"Use a whole number from 0 to {MAX_SEED}."),
        ("threads", 0, 4096, "Use 0 to have it chosen."),
    ):
        value = getattr(config, key)
        if not low <= value <= high:
            raise ConfigError(key, value, f"outside {low}..{high}", remedy)
    if config.workload.limit < 0:
        raise ConfigError("workload.limit", config.workload.limit, "below 0", "Use 0 for all prompts.")
    if config.tracking.texts < 0:
        raise ConfigError("tracking.texts", config.tracking.texts, "below 0", "Use 0 for no texts.")
