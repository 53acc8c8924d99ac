"""Where a configuration's keys, choices and values are checked: before Hydra composes it, and after. Needs no PyTorch.

What a protocol would ignore, the protocol says itself once it is built (``specbench.protocols.settings``).
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.utils import get_class
from omegaconf import DictConfig

from specbench.core.checks import LARGEST_COUNT, nearest
from specbench.core.errors import ConfigError
from specbench.core.machine import ranks
from specbench.core.machine.files import problem_of
from specbench.core.sampling_params import LARGEST_SEED, SamplingParams
from specbench.runs.config import EMBEDDED, GROUPS, OPEN_GROUPS, WORKLOAD_FILES, Config, WorkloadConfig, is_category
from specbench.runs.launchers import LAUNCHER, check_installed, check_launcher, launcher_of, shares_machine

# Hydra's keys that would take jobs out of the folders of their plan.
REFUSED = {
    "hydra.run.dir": ("a job's folder is hydra.sweep.dir/<its number>", "Set hydra.sweep.dir instead."),
    "hydra.sweep.subdir": ("a job's folder is hydra.sweep.dir/<its number>", "Leave it out."),
    "hydra/sweeper": ("sweeps are planned on disk before they start, which other sweepers do not do", "Leave it out."),
    "hydra.output_subdir": ("a job's configuration is config.yaml in its folder", "Leave it out."),
}


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """``Did you mean block? ``, or nothing if no name is near."""
    near = nearest(word, tuple(names))
    return f"Did you mean {near}? " if near else ""


def check_config_dir(folder: str | None) -> str | None:
    """Returns the folder of ``--config-dir``. Raises ConfigError if there is none."""
    if folder is not None and not os.path.isdir(folder):
        raise ConfigError("--config-dir", folder, "no such folder", "Give the folder of your own configurations.")
    return folder


def check_override(override: Override) -> None:
    """Checks one ``key=value`` of the command line, before Hydra composes.

    Raises:
        ConfigError: a key that no configuration has, a group without a choice, a key that a sweep may not set.
        NotInstalledError: a launcher whose package is not installed.
    """
    key, value = override.get_key_element().lstrip("+~"), str(override.input_line).partition("=")[2]
    if key in REFUSED:
        raise ConfigError(key, value, *REFUSED[key])
    if key == "exp" and override.is_sweep_override():
        problem = "several experiments at once would lose their own sweeps"
        raise ConfigError("+exp", value, problem, "Run one after the other.")
    if key in GROUPS and (override.is_delete() or value in ("null", "")):
        problem, remedy = "a run needs one", "See --help for the choices."
        if key == "source":
            problem, remedy = "not the name of a choice", "Leave it out for none."
        raise ConfigError(key, value or "nothing", problem, remedy)
    if key in (*GROUPS, LAUNCHER) and not all(isinstance(choice, str) for choice in _choices(override)):
        first = re.split(r"[\[\]{},: ]+", value.strip("[{"))[0] or "..."
        remedy = f"Name one, such as {key}={first}, or several with commas between them and no brackets."
        raise ConfigError(key, value, "not the name of a choice", remedy)
    if key in _field_names(Config) and override.is_delete():
        raise ConfigError(key, "???", "no value given", f"Leave out ~{key}.")
    if key == LAUNCHER:
        check_installed(value)
    if key != "exp" and not override.is_hydra_override():
        check_key(key, value)


def _choices(override: Override) -> list[Any]:
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return value.list
    return [] if override.is_sweep_override() else [value]


def check_key(key: str, value: object) -> None:
    """Raises ConfigError for a key that the schema does not have, with the nearest that it has.

    Args:
        key: with dots; behind ``@`` stands where Hydra puts a group. What follows the name of an open group, such as
            ``drafter``, is not checked here.
    """
    schema: Any = Config
    names = key.partition("@")[0].split(".")
    for depth, name in enumerate(names):
        schemas = {field.name: field.default_factory for field in fields(schema)}
        if name not in schemas:
            group = ".".join(names[:depth])
            inside = f"{did_you_mean(f'{group}.{name}', [f'{group}.{key}' for key in schemas])}{group} has "
            remedy = f"{inside}{', '.join(schemas)}." if depth else _near(names, schemas)
            raise ConfigError(key, value, "no such key", remedy)
        schema = schemas[name]
        if not is_dataclass(schema):
            return


def _near(names: list[str], schemas: Mapping[str, Any]) -> str:
    inside = [f"{group}.{names[0]}" for group, schema in schemas.items() if names[0] in _field_names(schema)]
    guess = f"Did you mean {' or '.join(inside)}? " if inside else did_you_mean(names[0], [*schemas, "exp", "resume"])
    guess = guess.replace(" exp?", " +exp?").replace("? ", "".join(f".{name}" for name in names[1:]) + "? ")
    return f"{guess}See --help for what there is."


def _field_names(schema: Any) -> list[str]:
    return [field.name for field in fields(schema)] if is_dataclass(schema) else []


def check_sweep(hydra: DictConfig) -> None:
    """Checks what Hydra's part of a configuration says of all jobs of a sweep.

    Raises:
        ConfigError: settings under which no job runs, or jobs do not find their files.
    """
    size = hydra.sweeper.max_batch_size
    if size is not None and size < 1:
        remedy = "Give the number of jobs that the launcher gets at once, or null for all."
        raise ConfigError("hydra.sweeper.max_batch_size", size, "must be 1 or more", remedy)
    if hydra.job.chdir:
        problem = "a job would run in its own folder, where relative paths lead elsewhere"
        raise ConfigError("hydra.job.chdir", hydra.job.chdir, problem, "Leave it out.")
    check_launcher(launcher_of(hydra))


def check_job(config: Config) -> None:
    """Checks the values of one job's configuration; the job itself does not check them again.

    Hydra has refused unknown keys of yamls, and ``check_override`` those of the command line.

    Raises:
        ConfigError: the first that is wrong.
    """
    _check_values("", config)
    _check_workload(config.workload)
    sampler, pair = config.sampler, config.pair
    SamplingParams.from_mapping({**vars(sampler), "processors": ()}).check_length(config.max_new_tokens)
    for processor in sampler.processors:
        if not isinstance(processor, Mapping) or not isinstance(processor.get("_target_"), str):
            remedy = "Give a list of {_target_: module.Class, argument: value, ...}."
            raise ConfigError("sampler.processors", processor, "no _target_", remedy)
    if pair.draft is None and pair.draft_dtype is not None:
        remedy = "Leave it out, or give pair.draft."
        raise ConfigError("pair.draft_dtype", pair.draft_dtype, "there is no pair.draft", remedy)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise ConfigError("device", config.device, "not a device", "Use auto, cpu, cuda or cuda:N.")
    for group in OPEN_GROUPS:
        node = getattr(config, group)
        if group == "source" and node is None:
            continue
        if not (isinstance(node, Mapping) and isinstance(node.get("_target_"), str)):
            remedy = f"Choose one of conf/{group}/*.yaml, or give {group}._target_=module.Class."
            raise ConfigError(group, node, "no _target_", remedy)
    check_parallel(config.parallel, config.device)


def _check_values(group: str, settings: Any) -> None:
    """Raises ConfigError for a value outside of what its field takes (config.py)."""
    for member in fields(settings):
        key, value, limits = f"{group}{member.name}", getattr(settings, member.name), member.metadata
        if is_dataclass(value):
            _check_values(f"{key}.", value)
        low, high = limits.get("range", (value, value))
        if "range" in limits and not low <= value <= high:
            problem = f"below {low}" if value < low and high == LARGEST_COUNT else f"outside {low}..{high}"
            raise ConfigError(key, value, problem, limits["remedy"])
        if "choices" in limits and value not in limits["choices"]:
            raise ConfigError(key, value, limits["problem"], limits["remedy"])


def check_times(config: Config, hydra: DictConfig) -> None:
    """Raises ConfigError if jobs that take times would run at once on one machine without ``share_machine``.

    Args:
        config: of a job, as ``check_job`` has found it sound.
    """
    protocol = config.protocol["_target_"]
    if not config.share_machine and shares_machine(hydra) and getattr(get_class(protocol), "times", False):
        raise ConfigError(
            LAUNCHER,
            launcher_of(hydra),
            f"jobs that run beside each other on one machine slow each other down, and {protocol} takes times",
            "Leave it out; or use Slurm or Ray with a machine a job; or add share_machine=true, and trust no speed.",
        )


def _check_workload(workload: WorkloadConfig) -> None:
    if not 0 <= (workload.shuffle or 0) <= LARGEST_SEED:
        remedy = f"Use null, or a whole number from 0 to {LARGEST_SEED}."
        raise ConfigError("workload.shuffle", workload.shuffle, "not a seed", remedy)
    pool = workload.pool
    if pool is not None and not (isinstance(pool, Mapping) and all(map(is_category, [*pool, *pool.values()]))):
        remedy = "Use null, or categories by what they become: workload.pool={writing: mt-bench,coding: mt-bench}."
        raise ConfigError("workload.pool", pool, "no mapping of names to names", remedy)
    path = workload.path
    problem = None if path.startswith(EMBEDDED) else problem_of(os.path.expanduser(path))
    if problem == "no such file":  # else a job would read it after it has imported PyTorch
        raise ConfigError("workload.path", path, f"cannot be read ({problem})", WORKLOAD_FILES)


def check_parallel(parallel: str, device: str) -> None:
    """Raises ConfigError if the number of processes does not fit ``parallel``."""
    count = ranks.size()
    if parallel == "none":
        if count > 1:
            problem = f"torchrun started {count} processes, each of which would run all of it"
            raise ConfigError("parallel", parallel, problem, "Add parallel=tensor, or start one process without it.")
        return
    if not ranks.launched():
        remedy = "Start one process a GPU: torchrun --nproc-per-node=2 -m specbench parallel=tensor ..."
        raise ConfigError("parallel", parallel, "there is one process alone", remedy)
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        problem = f"{count} processes on several machines; shards are on the GPUs of one"
        raise ConfigError("parallel", parallel, problem, "Use torchrun --nproc-per-node=N on one machine.")
    if device.startswith("cuda:"):
        problem = "with parallel=tensor every process has a GPU of its own"
        raise ConfigError("device", device, problem, "Use device=auto.")
