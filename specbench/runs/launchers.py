"""Where a sweep's jobs run: Hydra's launchers and their plugins as they are, and Ray's, which is here.

All that is known of launchers, and all that Hydra knows of a job, is said here.

``hydra/launcher=ray`` runs jobs as Ray tasks, on this machine or on a running cluster. Hydra's own plugin for Ray needs
a cloud library and an old pickle, and writes a token into the user's home; one remote function is enough. Workers read
and write the sweep's folder, so that a cluster needs a shared one.
"""

import importlib.util
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job as run_in_folder
from hydra.core.utils import setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from specbench.core.errors import ConfigError, NotInstalledError
from specbench.core.machine import ranks
from specbench.core.machine.progress import say
from specbench.core.machine.signals import held_back
from specbench.runs.job import JobInfo
from specbench.runs.plan import command_line, read_plan

LAUNCHER = "hydra/launcher"
# Launchers that need a package: the extra of this project that installs it, and its module.
PACKAGES = {
    "joblib": ("joblib", "hydra_plugins.hydra_joblib_launcher"),
    "submitit_local": ("slurm", "hydra_plugins.hydra_submitit_launcher"),
    "submitit_slurm": ("slurm", "hydra_plugins.hydra_submitit_launcher"),
    "ray": ("ray", "ray"),
}


def launcher_of(hydra: Any) -> str:
    """The launcher's name, such as basic, by Hydra's part of a configuration."""
    return str(hydra.runtime.choices[LAUNCHER])


def choices_of(hydra: Any) -> dict[str, str]:
    """The choices of conf by group, by Hydra's part of a configuration, but Hydra's own and those inside a group."""
    return {
        group: str(choice) for group, choice in hydra.runtime.choices.items() if choice is not None and "/" not in group
    }


def shares_machine(hydra: Any) -> bool:
    """Whether the launcher runs several jobs on one machine at the same time, as far as is known."""
    settings, name = hydra.launcher, launcher_of(hydra)
    if name == "joblib":
        return settings.get("n_jobs") != 1
    if name == "ray":
        return settings.get("address") is None and settings.get("workers") != 1
    return name == "submitit_local"


def check_launcher(launcher: str) -> None:
    """Raises ConfigError for a launcher that starts processes of its own, if torchrun started several already."""
    if ranks.size() > 1 and launcher != "basic":
        problem = "with parallel=tensor a job has all GPUs already, and jobs run one after the other"
        raise ConfigError(LAUNCHER, launcher, problem, "Leave it out.")


def check_installed(launcher: str) -> None:
    """Raises NotInstalledError for a launcher whose package is not installed."""
    extra, module = PACKAGES.get(launcher, ("", "hydra"))
    try:
        installed = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module would be in
        installed = False
    if not installed:
        remedy = f"pip install 'specbench[{extra}]', or leave it out."
        raise NotInstalledError(LAUNCHER, launcher, "its package is not installed", remedy)


def run_job(composed: DictConfig) -> None:
    """The task that launchers run, here or in another process. Imports PyTorch."""
    with held_back():
        from specbench.runs.execute import run_job

    run_job(composed, job_of(HydraConfig.get()))


def job_of(hydra: Any) -> JobInfo:
    """The job that runs in this process, by Hydra's part of its configuration."""
    overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    choices, folder = choices_of(hydra), Path(hydra.runtime.output_dir)
    plan = read_plan(folder.parent)
    config_dir = plan.config_dir if plan else None
    return JobInfo(
        number=int(folder.name),
        label=next((job.label for job in plan.jobs if str(job.number) == folder.name), "") if plan else "",
        folder=folder,
        exp=choices.get("exp", "adhoc"),
        choices=choices,
        command=command_line(overrides, config_dir, os.getcwd(), os.environ.get("PYTHONPATH", "")),
        overrides=tuple(overrides),
        plan=plan,
        beside=shares_machine(hydra),
        in_turn=launcher_of(hydra) == "basic" and ranks.size() == 1,
    )


def make_launcher(context: HydraContext, config: DictConfig) -> Launcher:
    """The launcher that a sweep's configuration names, ready to launch."""
    name = launcher_of(config.hydra)
    if name == "ray":
        launcher = instantiate(config.hydra.launcher)
        launcher.setup(hydra_context=context, task_function=run_job, config=config)
        return launcher
    if name == "joblib":
        with held_back():
            from specbench.runs.gpus import jobs_at_once  # which imports PyTorch

        with read_write(config), open_dict(config):
            config.hydra.launcher.n_jobs = jobs_at_once(config.hydra.launcher.n_jobs, config.device)
    return Plugins.instance().instantiate_launcher(hydra_context=context, task_function=run_job, config=config)


class RayLauncher(Launcher):
    """Jobs as Ray tasks.

    Args:
        address: of a running cluster, such as auto; None starts one on this machine that ends with the sweep.
        workers: CPUs of the cluster that is started, which bounds the jobs that run at once; None is all.
        num_cpus, num_gpus: what each job takes; num_gpus None is one if this machine has GPUs. Ray shows each job its
            GPUs alone.
    """

    def __init__(self, address: str | None, workers: int | None, num_cpus: float, num_gpus: float | None):
        self.address, self.workers = address, workers
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus if num_gpus is not None else float(os.path.exists("/dev/nvidiactl"))

    def setup(self, *, hydra_context: HydraContext, task_function: Callable[[Any], Any], config: DictConfig) -> None:
        """Takes what Hydra gives every launcher."""
        self.task = (hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Runs the jobs; what becomes of each is in its folder."""
        import ray

        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as session:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent
            if self.address is not None:
                ray.init(address=self.address, logging_level=logging.WARNING)
            else:
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray leaves one in the user's home
                settings: Any = {"num_cpus": self.workers, "include_dashboard": False, "_temp_dir": session}
                ray.init(logging_level=logging.WARNING, **settings)
            try:
                self._run_all(job_overrides, initial_job_idx)
            finally:
                ray.shutdown()
        return []

    def _run_all(self, job_overrides: Sequence[Sequence[str]], first: int) -> None:
        import ray
        from ray.exceptions import RayError

        remote: Any = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=0)(_run_on_worker)
        state, here = Singleton.get_state(), os.getcwd()
        started = [
            remote.remote(*self.task, list(overrides), number, state, here)
            for number, overrides in enumerate(job_overrides, first)
        ]
        for job in started:
            try:
                ray.get(job)
            except RayError as error:  # its worker died, which the job's folder shows; the others go on
                say(f"a Ray worker was lost: {str(error).splitlines()[0]}", style="red")


def _run_on_worker(
    context: HydraContext,
    task: Callable[[Any], Any],
    config: DictConfig,
    overrides: list[str],
    number: int,
    state: Any,
    folder: str,
) -> None:
    """Composes and runs one job as Hydra's own launchers do."""
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    composed = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    run_in_folder(
        hydra_context=context,
        task_function=task,
        config=composed,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
