"""``hydra/launcher=ray``: jobs as Ray tasks, on the workers of this machine or of a cluster that is there already.

Hydra's own plugin for Ray asks for a cloud library and an old pickle, and writes a token into the user's home; what is
needed here is one remote function. Workers read and write the sweep's folder, so that a cluster needs a shared one.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from specbench.core.machine.progress import say


class RayLauncher(Launcher):
    """See the module.

    Args:
        address: of a running cluster, such as auto; None starts one on this machine that ends with the sweep.
        workers: how many CPUs that one has, which bounds the jobs beside each other; None is all.
        num_cpus, num_gpus: what each job takes; num_gpus None is one if this machine has GPUs. Ray shows each job its
            GPUs alone.
    """

    def __init__(self, address: str | None, workers: int | None, num_cpus: float, num_gpus: float | None):
        self.address, self.workers, self.num_cpus, self.num_gpus = address, workers, num_cpus, num_gpus
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.task_function: Callable[[Any], Any] | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: Callable[[Any], Any], config: DictConfig) -> None:
        """Takes what Hydra gives every launcher."""
        self.hydra_context, self.config, self.task_function = hydra_context, config, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; what becomes of each is in its folder."""
        import ray

        setup_globals()
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as session:
            self._connect(session)
            try:
                self._run_all(job_overrides, initial_job_idx)
            finally:
                ray.shutdown()
        return []

    def _connect(self, session: str) -> None:
        """Joins the cluster, or starts one whose files are in ``session`` and whose token nobody else has."""
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent
        if self.address is not None:
            ray.init(address=self.address, logging_level=logging.WARNING)
            return
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray leaves one in the user's home
        ray.init(num_cpus=self.workers, include_dashboard=False, logging_level=logging.WARNING, _temp_dir=session)

    def _run_all(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> None:
        import ray
        from ray.exceptions import RayError

        assert self.hydra_context is not None
        assert self.config is not None
        gpus = self.num_gpus if self.num_gpus is not None else float(os.path.exists("/dev/nvidiactl"))
        remote: Any = ray.remote(num_cpus=self.num_cpus, num_gpus=gpus, max_retries=0)(_run)
        state, here = Singleton.get_state(), os.getcwd()
        started = []
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(composed):
                composed.hydra.job.id = composed.hydra.job.num = number
            started.append(remote.remote(self.hydra_context, self.task_function, composed, state, here))
        for each in started:
            try:
                ray.get(each)
            except RayError as error:  # its worker died, which the job's folder shows; the others go on
                say(f"a Ray worker was lost: {str(error).splitlines()[0]}", style="red")


def _run(
    hydra_context: HydraContext, task_function: Callable[[Any], Any], composed: DictConfig, state: Any, folder: str
) -> None:
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    HydraConfig.instance().set_config(composed)
    run_job(
        hydra_context=hydra_context,
        task_function=task_function,
        config=composed,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
