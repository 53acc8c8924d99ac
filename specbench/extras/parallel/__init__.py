"""``parallel=tensor``: a target in shards, a process of torchrun a shard. Provides the hook ``parallel``.

sharding.py has what is known of transformers' tensor parallelism; compiled steps have sums of their own over processes
(extras/compiled/products.py). runs/parallel.py keeps the processes of a sweep in step.
"""

import importlib.util
from functools import partial

import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel

from specbench.core.errors import ConfigError, NotInstalledError
from specbench.core.machine import ranks
from specbench.extras.parallel import sharding
from specbench.models import hub
from specbench.models.cached_model import COMPARE_RANKS
from specbench.models.checkpoint import Checkpoint
from specbench.models.random_weights import RandomModel
from specbench.models.trial import check_runs

OLDEST = "5.17"  # transformers whose ``from_pretrained`` takes a DistributedConfig of tensor parallelism


def _check_installed() -> None:
    """Raises ConfigError if what shards a model is not here."""
    if Version(transformers.__version__) < Version(OLDEST):
        problem = f"transformers {transformers.__version__} cannot shard models in this way"
        raise ConfigError("parallel", "tensor", problem, f"Install transformers {OLDEST} or later.")
    if importlib.util.find_spec("accelerate") is None:
        remedy = "pip install 'specbench[parallel]'."
        raise NotInstalledError("parallel", "tensor", "transformers needs the package accelerate for it", remedy)


def applies(parallel: str) -> bool:
    """Returns whether a target is to be sharded; with one process it is not.

    Raises:
        ConfigError: a way that there is not, or without processes that could share the target, or what it needs.
    """
    if parallel != "tensor":
        raise ConfigError("parallel", parallel, "not known", "Use none or tensor.")
    if not ranks.launched():
        remedy = "Start one a GPU: torchrun --nproc-per-node=N."
        raise ConfigError("parallel", parallel, "there is one process alone", remedy)
    _check_installed()
    return ranks.size() > 1


def join(model: Checkpoint | RandomModel, device: torch.device) -> None:
    """Has this process compute with the others from here on.

    Raises:
        ModelError: the model cannot be cut into as many shards as there are processes.
    """
    sharding.check_divisible(model.config, model.source)
    sharding.join(device)


def load(model: Checkpoint | RandomModel, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Returns the shard of this process, in eval mode on its device. All processes have to be here.

    Raises:
        RankError: it cannot be loaded on one of them.
        ModelError: an architecture that a cached model cannot run.
    """
    if isinstance(model, RandomModel):
        read = partial(sharding.make_shard, model, dtype)
    else:
        read = partial(model.read, dtype, device, sharding.loading())
    with hub.offline():
        loaded = ranks.together(read)
        vars(loaded)[COMPARE_RANKS] = sharding.compare_ranks
        check_runs(loaded, model.vocab_size, model.source)
    return loaded
