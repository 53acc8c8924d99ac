"""Products whose inputs are cut between ranks: each rank computes a part of every sum, and the parts are added up.

A target in shards adds up twice a layer. transformers does so by a call of ``torch.distributed`` behind each such
layer; here the layers are replaced, so that one place decides how. If the GPUs can read each other's memory, a small
sum is one kernel: every rank writes its part where all can read it, and reads all parts (PyTorch's
``one_shot_all_reduce``). It adds them in the order of the ranks on every rank, so that all get the same bits. Large
sums are NCCL's (Gloo's on CPUs), and all of them where that does not work.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.core.errors import ModelError
from specbench.core.machine import ranks
from specbench.core.machine.progress import say
from specbench.extras.compiled import products
from specbench.extras.parallel import sharding
from specbench.kernels import launch_product
from specbench.models.weights import local

LARGEST = 128 * 1024  # bytes of a sum that goes through shared memory; PyTorch's own limit for this kernel
_ALIGNED = 16  # bytes that the kernel reads at once
_DTYPES = (torch.bfloat16, torch.float32)  # that it adds
# Multicast of NVLink is not used here, and GPUs that are shared with others may not allow it to be set up.
_WITHOUT_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


class SummedLinear(nn.Module):
    """In place of a linear layer that is cut by its inputs: this rank's part of the input gives the whole output.

    Args:
        layer: the one that it replaces, whose parameters it keeps.
        shared: memory that all ranks can read, for sums that it has room for; None for none.
    """

    def __init__(self, layer: nn.Linear, shared: Tensor | None):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._held = local(layer.weight).detach()
        self._counters = products.counters(self._held)
        self._added = None if layer.bias is None else local(layer.bias).detach()
        self._shared, self._group = shared, _world().group_name

    def forward(self, input: Float[Tensor, "*n part"]) -> Float[Tensor, "*n out"]:
        """The same on every rank; the bias is added once."""
        numbers = input.numel() // input.shape[-1] * self.out_features
        if self._shared is not None and numbers <= self._shared.numel():
            counters = self._counters if products.is_ours(input, self._held, self._counters) else None
            summed = _through_memory(input, self._held, counters, self._shared, self._group)
        else:
            summed = products.linear(input, self._held, None, self._counters)
            dist.all_reduce(summed)
        return summed if self._added is None else summed + self._added


@torch.library.custom_op(
    "specbench::summed_product",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? counters, Tensor shared, str group) -> Tensor",
)
def _through_memory(x: Tensor, weight: Tensor, counters: Tensor | None, shared: Tensor, group: str) -> Tensor:
    """One step to torch.compile, which is not told of ``shared``: what is written there nobody reads afterwards."""
    rows = x.reshape(-1, x.shape[-1])
    part = shared[: len(rows) * len(weight)].view(len(rows), len(weight))
    if counters is None:
        torch.mm(rows, weight.T, out=part)
    else:
        launch_product.linear(rows, weight, None, counters, out=part)
    return _added_up(part, group).view(*x.shape[:-1], len(weight))


@_through_memory.register_fake
def _(x: Tensor, weight: Tensor, counters: Tensor | None, shared: Tensor, group: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], len(weight)))


def _added_up(part: Tensor, group: str) -> Tensor:
    """New memory with the sum over ranks of memory that they share.

    PyTorch's kernel that copies to the shared memory too is not used: its warps do not wait for each other between
    copying and saying that they have.
    """
    with torch.cuda.device(part.device):  # PyTorch launches it on the current one
        return torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group)


def install(model: PreTrainedModel, sums: str) -> int:
    """Replaces the layers that are cut by their inputs, in place, and says how many there are; again does nothing.

    Every rank has to come here. What sums go through is said on rank 0.

    Args:
        sums: ``auto`` for shared memory where that works, ``nccl`` for ``torch.distributed`` alone.
    """
    cuts = sharding.cuts(model)
    layers = [(name, each) for name, each in model.named_modules() if cuts.get(each) == sharding.ROWWISE]
    if not layers:
        return 0
    shared = shared_memory(model) if sums == "auto" else None
    for name, layer in layers:
        fits = layer.out_features * model.dtype.itemsize % _ALIGNED == 0 and layer.weight.dtype == model.dtype
        model.set_submodule(name, SummedLinear(layer, shared if fits else None))
    return len(layers)


def shared_memory(model: PreTrainedModel) -> Tensor | None:
    """Memory of LARGEST bytes for sums over ranks; None, on all of them, if it does not work on one, which is said."""
    try:
        ranks.together(lambda: _check(model.device, model.dtype))
        shared = ranks.together(lambda: _tried(model.device, model.dtype))
    except ranks.RankError as error:
        if ranks.is_rank0():
            say(f"parallel=tensor: sums over ranks go through {dist.get_backend()}, not through shared memory: {error}")
        return None
    if ranks.is_rank0():
        say(f"parallel=tensor: sums over ranks of up to {LARGEST:,} bytes go through memory that the GPUs share.")
    return shared


def _check(device: torch.device, dtype: torch.dtype) -> None:
    """Raises ModelError where there is no use in trying."""
    if device.type != "cuda":
        raise ModelError(f"device is {device.type}")
    if dtype not in _DTYPES:
        raise ModelError(f"PyTorch adds no {dtype} there")
    own, others = device.index, range(ranks.size())  # a rank has the number of its GPU
    if apart := [other for other in others if other != own and not torch.cuda.can_device_access_peer(own, other)]:
        raise ModelError(f"GPU {own} cannot read the memory of GPU {apart[0]}")


def _tried(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The memory, with which one sum has come out right. Raises whatever PyTorch does, or ModelError."""
    os.environ.update(_WITHOUT_MULTICAST)
    from torch.distributed import _symmetric_memory as symmetric

    shared = symmetric.empty(LARGEST // dtype.itemsize, dtype=dtype, device=device)
    symmetric.rendezvous(shared, _world())
    shared.copy_(torch.arange(len(shared), device=device) % 5 + ranks.rank() % 3)
    expected = shared.clone()
    dist.all_reduce(expected)
    if not torch.equal(_added_up(shared, _world().group_name), expected):  # whole numbers, which no order rounds
        raise ModelError("a sum came out wrong there")
    return shared


def _world() -> Any:
    """The group of all ranks."""
    return dist.group.WORLD
