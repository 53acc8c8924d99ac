"""Where jobs run: one after the other here (``basic``), or on many workers (``joblib``, ``submitit_*``, ``ray``)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from specbench.core.errors import ConfigError, NotInstalledError
from specbench.core.machine import ranks

# Launchers that Hydra has as packages of their own: the name of each, its extra of this project, its module.
EXTRAS = {
    "joblib": ("joblib", "hydra_plugins.hydra_joblib_launcher"),
    "submitit_local": ("slurm", "hydra_plugins.hydra_submitit_launcher"),
    "submitit_slurm": ("slurm", "hydra_plugins.hydra_submitit_launcher"),
    "ray": ("ray", "ray"),
}


def launcher_of(hydra: Any) -> str:
    """The launcher's name, such as basic, by Hydra's part of a configuration."""
    return str(hydra.runtime.choices["hydra/launcher"])


def check_named(arguments: list[str]) -> None:
    """Raises NotInstalledError for a launcher whose package is not here, before Hydra says that it does not exist."""
    for argument in arguments:
        key, _, name = argument.partition("=")
        if key != "hydra/launcher" or name not in EXTRAS:
            continue
        extra, module = EXTRAS[name]
        if not _installed(module):
            remedy = f"pip install 'specbench[{extra}]', or leave it out."
            raise NotInstalledError("hydra/launcher", name, "its package is not installed", remedy)


def beside_each_other(hydra: Any) -> bool:
    """Whether the launcher runs several jobs on one machine at the same time, as far as is known."""
    settings = hydra.launcher
    name = launcher_of(hydra)
    if name == "joblib":
        return settings.get("n_jobs") != 1
    if name == "ray":
        return settings.get("address") is None and settings.get("workers") != 1
    return name == "submitit_local"


def check_times(composed: DictConfig) -> None:
    """Raises ConfigError if jobs that time something would run beside each other, and nobody asked for that."""
    if OmegaConf.select(composed, "share_machine") or not beside_each_other(composed.hydra):
        return
    protocol = OmegaConf.select(composed, "protocol._target_")
    if getattr(get_class(protocol), "times", False):
        raise ConfigError(
            "hydra/launcher",
            launcher_of(composed.hydra),
            f"jobs that run beside each other on one machine slow each other down, and {protocol} takes times",
            "Leave it out; or use Slurm or Ray with a machine a job; or add share_machine=true, and trust no speed.",
        )


def check_launcher(launcher: str) -> None:
    """Raises ConfigError for one that starts processes of its own, if torchrun started several already."""
    if ranks.size() > 1 and launcher != "basic":
        problem = "with parallel=tensor a job has all GPUs already, and jobs run one after the other"
        raise ConfigError("hydra/launcher", launcher, problem, "Leave it out.")


def check_settings(hydra: Any) -> None:
    """Raises ConfigError for settings of Hydra's under which no job runs, or jobs do not find their files."""
    size = hydra.sweeper.max_batch_size
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        remedy = "Give the number of jobs that the launcher gets at once, or null for all."
        raise ConfigError("hydra.sweeper.max_batch_size", size, "must be 1 or more", remedy)
    if hydra.job.chdir:
        problem = "a job would run in its own folder, where relative paths lead elsewhere"
        raise ConfigError("hydra.job.chdir", hydra.job.chdir, problem, "Leave it out.")


def check_parallel(parallel: str, device: str) -> None:
    """Raises ConfigError if the processes that there are do not fit ``parallel``."""
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
        raise ConfigError(
            "device", device, "with parallel=tensor every process has a GPU of its own", "Use device=auto."
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
