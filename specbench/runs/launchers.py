"""Where a sweep's jobs run: Hydra's launchers and their plugins as they are, and Ray's, which is here.

``hydra/launcher=ray`` runs jobs as Ray tasks, on this machine or on a running cluster. Hydra's own plugin for Ray needs
a cloud library and an old pickle, and writes a token into the user's home; one remote function is enough. Workers read
and write the sweep's folder, so that a cluster needs a shared one.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job as run_in_folder
from hydra.core.utils import setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from hydra.utils import instantiate
from omegaconf import DictConfig, open_dict, read_write

from specbench.core.machine.progress import say
from specbench.core.machine.signals import held_back
from specbench.runs.checks import launcher_of


def run_job(configuration: DictConfig) -> None:
    """The task that launchers run, here or in another process. Imports PyTorch."""
    with held_back():
        from specbench.runs.execute import run_job

    run_job(configuration)  # ty: ignore[invalid-argument-type]


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
