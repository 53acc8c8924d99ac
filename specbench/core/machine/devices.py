"""Devices, number formats and threads by their names in the configuration; nothing here knows of models."""

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from specbench.core.errors import ConfigError
from specbench.core.machine import ranks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PYTORCH_THREADS = torch.get_num_threads()  # before anybody has set another number


def choose_device(device: str | torch.device) -> torch.device:
    """The device, also by its name; ``auto`` is the GPU where there is one, and a GPU without a number is the first.

    Raises:
        ConfigError: a device that torch does not know or that is not here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError("device", device, "not a device", "Use auto, cpu, cuda or cuda:N.") from error
    if chosen.type not in ("cpu", "cuda") or (chosen.type == "cpu" and chosen.index):
        raise ConfigError("device", device, "not supported", "Use auto, cpu, cuda or cuda:N.")
    if chosen.type == "cpu":
        return chosen
    number = chosen.index or 0
    if number >= torch.cuda.device_count():
        raise ConfigError("device", device, f"{torch.cuda.device_count()} GPUs here", "Use device=auto or device=cpu.")
    return torch.device("cuda", number)  # torch.cuda.set_device takes none without a number


def choose_dtype(dtype: str | torch.dtype, device: torch.device, key: str = "dtype") -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU, where reduced precision is slower and less exact.

    Args:
        dtype: its name, or itself.

    Raises:
        ConfigError: anything else.
    """
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = str(dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ConfigError(key, dtype, "not a dtype", f"Use auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def device_of_rank(device: str) -> str:
    """The device by its name; with several ranks ``auto`` and ``cuda`` become the GPU of this one.

    Raises:
        ConfigError: fewer GPUs than ranks, or ``cpu`` where several ranks see GPUs.
    """
    gpus = torch.cuda.device_count() if ranks.size() > 1 else 0
    if gpus == 0 or device.startswith("cuda:"):
        return device
    if device == "cpu":
        remedy = "Hide them: CUDA_VISIBLE_DEVICES= torchrun ..."
        raise ConfigError("device", device, f"shards are put on GPUs, and here are {gpus}", remedy)
    if ranks.size() > gpus:
        problem, remedy = f"{ranks.size()} processes, and {gpus} GPUs here", f"Use --nproc-per-node={gpus} or fewer."
        raise ConfigError("parallel", "tensor", problem, remedy)
    return f"cuda:{ranks.rank()}"


def to_tensor(numbers: Any, device: torch.device | str, dtype: torch.dtype = torch.int64) -> Tensor:
    """Returns numbers of the host, in lists, as a tensor. A few do not wait for a device that is busy."""
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


def texts_repeat(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether other texts for the same seeds are an error: on a GPU or in 16 bits rounding makes them."""
    return device.type == "cpu" and dtype == torch.float32


def synchronize(device: torch.device) -> None:
    """Waits for the work on a device, so that the clock can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gpus_in_use() -> list[int]:
    """The GPUs whose generators exist, for ``torch.random.fork_rng``.

    Without them it takes all GPUs of the machine into use, and warns if they are several.
    """
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Small tensors take one thread of the CPU: if it is busy, threads that wait for one another are most of a call."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
