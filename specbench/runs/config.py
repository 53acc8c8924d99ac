"""What jobs are composed of: the schema of conf/config.yaml, and the yamls, each read once a command.

By the schema unknown keys and wrong types fail while Hydra composes, before anything is loaded. What Hydra composed
becomes a ``Config``: a job's settings with everything filled in, of which OmegaConf is no part any more.

Nothing here imports PyTorch, so that what is wrong with a command is said at once.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.core.checks import LARGEST_COUNT
from specbench.core.errors import ConfigError
from specbench.core.machine.disk import write_text
from specbench.core.machine.files import is_name
from specbench.core.sampling_params import LARGEST_LENGTH, LARGEST_SEED, SamplingParams, yaml_schema
from specbench.runs.state import SETTINGS

LARGEST_GAMMA = 64
LARGEST_BATCH = 4096
DTYPES = ("float32", "bfloat16", "float16")
AUTO = "auto"
EMBEDDED = "embedded:"  # before the name of a workload's file of this package
WORKLOAD_FILES = "Give a UTF-8 file of JSON lines, a parquet file, or the folder of a data set."
# Groups whose yamls name a class (_target_), which may be a user's own, and its arguments.
OPEN_GROUPS = ("drafter", "verifier", "engine", "protocol", "source")
GROUPS = {
    "protocol": "what a run measures",
    "verifier": "the code that accepts and rejects drafted tokens",
    "drafter": "what proposes tokens",
    "pair": "the target and the draft model",
    "workload": "the prompts",
    "sampler": "how both models sample",
    "engine": "how a step is run",
    "source": "the engine under test, which texts are sampled from",
    "tracking": "where runs are logged",
}
NAMED = {"named": True}  # of a field: its value is part of the group's name in rows, where it has no column


def _number(default: int, low: int, high: int, remedy: str) -> Any:
    """A field that takes whole numbers from ``low`` to ``high`` (checks.check_job); ``remedy`` says what to write."""
    return field(default=default, metadata={"range": (low, high), "remedy": remedy})


def _choice(default: str | None, choices: Sequence[str | None], problem: str, remedy: str) -> Any:
    """A field that takes one of some values (checks.check_job); the others are said to be ``problem``."""
    return field(default=default, metadata={"choices": choices, "problem": problem, "remedy": remedy})


def _dtype(default: str | None) -> Any:
    """A field that takes the name of a number format, or None if that is the default."""
    own = () if default is not None else (None,)
    return _choice(default, ("auto", *DTYPES, *own), "not a dtype", f"Use auto, {', '.join(DTYPES)}.")


@dataclass
class PairConfig:
    name: str = MISSING
    target: str = MISSING
    draft: str | None = None
    draft_dtype: str | None = _dtype(None)
    chat: bool | None = field(default=None, metadata=NAMED)
    system: str | None = field(default=None, metadata=NAMED)
    thinking: bool | None = field(default=None, metadata=NAMED)
    thinking_tokens: list[str] | None = field(default=None, metadata=NAMED)
    download: bool = False
    vocabularies: str = _choice("same", ("same", "different"), "not known", "Use same or different.")


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
    per_category: int = _number(0, 0, LARGEST_COUNT, "Use 0 for all prompts of each category.")
    limit: int = _number(0, 0, LARGEST_COUNT, "Use 0 for all prompts.")
    parameters: bool = True


@dataclass
class TrackingConfig:
    mode: str = "offline"
    project: str = "specbench"
    entity: str | None = None
    texts: int = _number(8, 0, LARGEST_COUNT, "Use 0 for no texts.")
    live: bool | None = None


@dataclass
class Config:
    """The keys of conf/config.yaml; those of OPEN_GROUPS are the arguments of the class that ``_target_`` names."""

    pair: PairConfig = field(default_factory=PairConfig)
    drafter: dict[str, Any] = MISSING
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    verifier: dict[str, Any] = MISSING
    engine: dict[str, Any] = MISSING
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    protocol: dict[str, Any] = MISSING
    source: Any = None  # a mapping; Any, so that null may take its place
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    gamma: int = _number(4, 0, LARGEST_GAMMA, "Use 0 (plain decoding) to 64; gains end well below 20.")
    batch_size: int = _number(1, 1, LARGEST_BATCH, f"Use 1 to {LARGEST_BATCH}.")
    max_new_tokens: int = _number(64, 1, LARGEST_LENGTH, "Use 1 or more.")
    seed: int = _number(0, 0, LARGEST_SEED, f"Use a whole number from 0 to {LARGEST_SEED}.")
    device: str = "auto"
    dtype: str = _dtype("auto")
    parallel: str = _choice("none", ("none", "tensor"), "not known", "Use none or tensor.")
    threads: int = _number(0, 0, 1024, "Use 0 to have it chosen.")
    share_machine: bool = False


def register() -> None:
    """Puts the schema where ``defaults: [schema]`` of config.yaml finds it."""
    ConfigStore.instance().store(name="schema", node=Config)


class Yamls(ConfigRepository):
    """Hydra's repository with a memory: reading and copying yamls is half of every composition."""

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.results: dict[str, bytes] = {}

    def __deepcopy__(self, _: object) -> Yamls:
        return copy.copy(self)  # Hydra gives each composition a copy, and replaces the copy's list of sources

    def load_config(self, config_path: str) -> Any:
        if config_path not in self.results:
            result = super().load_config(config_path)
            if result is None:  # hydra.searchpath may add its source
                return None
            try:
                self.results[config_path] = pickle.dumps(result)
            except (pickle.PicklingError, AttributeError, TypeError):  # a class that no module names, as of a schema
                return result
        return pickle.loads(self.results[config_path])  # noqa: S301  # of this process


def as_config(composed: Any) -> Config:
    """What Hydra composed, with everything filled in.

    Raises:
        ConfigError: a value that is missing, or an interpolation that leads nowhere.
    """
    try:
        return OmegaConf.to_object(composed)  # ty: ignore[invalid-explicit-return]
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(key, "???", "no value given", f"Add {key}=... to the command.") from error
    except OmegaConfBaseException as error:  # ${...} that leads nowhere
        raise ConfigError(
            str(error.full_key), "${...}", str(error).splitlines()[0], "Check the interpolation."
        ) from error


def _escaped(value: Any) -> Any:
    """A value with everything filled in, as OmegaConf reads it: ``${`` in a text is no interpolation."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, dict):
        return {key: _escaped(member) for key, member in value.items()}
    return list(map(_escaped, value)) if isinstance(value, list) else value


def write_settings(folder: Path, config: Config) -> None:
    """Writes a job's configuration to its folder. Raises WriteError."""
    write_text(folder / SETTINGS, OmegaConf.to_yaml(OmegaConf.create(_escaped(asdict(config)))))


def read_settings(folder: Path) -> dict[str, Any]:
    """What :func:`write_settings` wrote; empty if there is nothing that can be read."""
    try:
        settings = OmegaConf.to_container(OmegaConf.load(folder / SETTINGS), resolve=True)
    except Exception:  # no file, or a damaged one, of which PyYAML and OmegaConf say many things
        return {}
    return {str(key): value for key, value in settings.items()} if isinstance(settings, dict) else {}


def is_category(name: object) -> bool:
    """Whether a value of a row or of the command line can name a category."""
    return not isinstance(name, bool | list | Mapping) and name is not None and is_name(str(name))
