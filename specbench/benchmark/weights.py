"""The byte floor of a step: every weight of a model is read once in each of its forward passes."""

import functools

import torch

from specbench.benchmark.timer import DeviceTimer
from specbench.models import CachedModel
from specbench.models.weights import local


def weight_bytes(model: CachedModel | None) -> int | None:
    """The bytes of a model's weights, tied ones once; None for no model. Of a sharded one those of this rank's shard.

    All parameters count, as is usual. A table of input embeddings that is not the output layer too is read in a few
    rows only, so that the true floor of such a model is lower by its share.
    """
    if model is None:
        return None
    weights = (local(weight) for weight in model.model.parameters())
    return sum(weight.numel() * weight.element_size() for weight in weights)


@functools.cache
def copy_bandwidth(device: torch.device) -> float | None:
    """Bytes a second of the device's own large copy, read and written ones both counted; None on a CPU.

    Measured once a process, on a GPU that has no other work meanwhile.
    """
    return DeviceTimer(device).copy_bandwidth() if device.type == "cuda" else None
