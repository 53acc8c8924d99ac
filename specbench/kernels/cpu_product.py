"""Products of few rows on a CPU in C++, which a compiler of this machine builds at first use (cpu_product.h).

PyTorch's own float32 product of few rows reads weights several times slower than memory delivers them
(experiments/cpu_speed/README.md). The plain twin is ``x @ weight.T``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import pad

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine.caches import OF_PYTORCH
from specbench.core.machine.files import reason

SOURCES = tuple(Path(__file__).with_name(name) for name in ("cpu_model.cpp", "cpu_rows.cpp"))
HEADERS = tuple(
    Path(__file__).with_name(f"cpu_{name}.h") for name in ("attention", "bytes", "product", "rows", "vectors")
)
# Not -ffast-math: a library that is linked with it flushes subnormal numbers to 0 in all of the process.
_FLAGS = (
    *("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-std=c++20", "-shared", "-fPIC"),
)
_COMPILERS = ("g++", "clang++", "c++")


def find_compiler() -> str:
    """Returns the path of a C++ compiler: the one in CXX if it is set, else the first of g++, clang++ and c++.

    Raises:
        ConfigError: there is none, or Python's headers are missing, which torch.compile needs.
    """
    wanted = os.environ.get("CXX")
    compiler = next(filter(None, map(shutil.which, [wanted] if wanted else _COMPILERS)), None)
    instead = "or use engine=eager."
    if compiler is None:
        problem = f"CXX={wanted} is no program" if wanted else f"no C++ compiler found ({', '.join(_COMPILERS)})"
        remedy = f"Install one (apt-get install g++), or name one in the environment variable CXX, {instead}"
        raise ConfigError("engine", "compiled", problem, remedy)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        problem = f"{header} is missing, which torch.compile needs"
        raise ConfigError("engine", "compiled", problem, f"Install Python's headers (python3-dev), {instead}")
    return compiler


def cache_folder() -> Path:
    """Returns the folder of compiled code: TORCHINDUCTOR_CACHE_DIR, or PyTorch's own default.

    Raises:
        ConfigError: the folder cannot be written, or is full.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    try:
        folder = Path(cache_dir())
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 20))
    except OSError as error:
        problem = f"code cannot be written there ({error.strerror})"
        value = os.environ.get(OF_PYTORCH, "")
        raise ConfigError(OF_PYTORCH, value, problem, "Name a folder with room in it, or use engine=eager.") from error
    return folder


@functools.cache
def load() -> ctypes.CDLL:
    """Builds the library unless the cache folder has it, and registers its operations with PyTorch.

    Returns:
        The library, whose functions with plain arguments are called without PyTorch.

    Raises:
        ConfigError: see :func:`find_compiler` and :func:`cache_folder`.
        ModelError: the compiler fails, or what it built cannot be loaded.
    """
    compiler, torch_folder = find_compiler(), Path(torch.__file__).parent
    command = [compiler, *_FLAGS, f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}", "-ltorch_cpu"]
    # Code for one processor does not run on another, nor with an older C library, and a cache folder may be shared.
    texts = [source.read_text() for source in (*SOURCES, *HEADERS)]
    facts = [*texts, *command, torch.__version__, platform.machine(), *platform.libc_ver(), _processor()]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    library = cache_folder() / f"specbench_{key}.so"
    if not library.is_file():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            build = [command[0], *map(str, SOURCES), *command[1:], "-o", str(made)]  # libraries follow what needs them
            run = subprocess.run(build, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise ModelError(
                    f"engine=compiled: {compiler} cannot build {SOURCES[0].name}: {first_error(run.stderr)}. "
                    "Install another compiler and name it in CXX, or use engine=eager."
                )
            os.replace(made, library)  # another process may be building it too
    try:
        torch.ops.load_library(str(library))
    except OSError as error:  # cut off, or built in a container with another C++ library
        remedy = "Remove this file, which is then built anew, or use engine=eager."
        raise ModelError(f"engine=compiled: {library} cannot be loaded ({reason(error)}). {remedy}") from error

    @torch.library.register_fake("specbench_cpu::product")
    def _shape(x: Tensor, weight: Tensor, outputs: int) -> Tensor:
        return x.new_empty(x.shape[0], outputs)

    loaded = ctypes.CDLL(str(library))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.specbench_columns.restype = loaded.specbench_group.restype = number
    loaded.specbench_extend.argtypes = [pointer] * 3 + [number] * 2 + [pointer, number, pointer]
    loaded.specbench_feed.argtypes = [pointer] * 2 + [number] * 3
    loaded.specbench_draft.argtypes = [
        *(pointer, pointer, number, pointer, pointer, pointer, number, number),
        *(pointer, pointer, number, ctypes.c_double, ctypes.c_double, pointer, pointer, pointer),
    ]
    for function in (loaded.specbench_extend, loaded.specbench_feed, loaded.specbench_draft):
        function.restype = ctypes.c_bool
    return loaded


def first_error(text: str) -> str:
    """Returns the first line of a compiler's output that names an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = ("No space left", "Read-only", "rror:", "rror ")
    return next((line for mark in telling for line in lines if mark in line), lines[0] if lines else "it says nothing")


def _processor() -> str:
    """Returns the instructions that this processor has, as far as Linux tells; else its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


LEAST_SCALE = torch.finfo(torch.float32).tiny  # a row of zeros has one too


def narrowest(weight: Float[Tensor, "outputs inputs"]) -> torch.dtype:
    """Returns the smallest dtype in which :func:`pack` keeps a float32 matrix exactly: int8, bfloat16 or float32."""
    if not (weight.detach().view(torch.int32) & 0xFFFF == 0).all():
        return torch.float32
    multiples = weight.detach() / byte_scales(weight)
    whole = (multiples == multiples.round()) & (multiples.abs() <= 127)
    return torch.int8 if whole.all() else torch.bfloat16


def byte_scales(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs 1"]:
    """Returns for each row the smallest power of two of which its numbers are 127 multiples at most."""
    largest = weight.detach().abs().amax(dim=1, keepdim=True)
    return torch.exp2(torch.ceil(torch.log2(largest / 127))).clamp(min=LEAST_SCALE)


def pack(
    weight: Float[Tensor, "outputs inputs"], dtype: torch.dtype | None = None
) -> Shaped[Tensor, "blocks depth columns"]:
    """Returns a copy of a weight matrix in the order in which the product reads it, filled up with zeros.

    Args:
        weight: float32.
        dtype: of the copy; by default the narrowest that changes no number, since a product then reads least.

    Returns:
        In int8 a block's inputs are filled up to whole groups, whose weights lie together, for each column. The scales
        of its columns, as float32, lie behind and take the place of four more inputs.
    """
    dtype, columns = dtype or narrowest(weight), load().specbench_columns()
    weight = pad(weight.detach(), (0, 0, 0, -len(weight) % columns))
    if dtype == torch.int8:
        return _pack_bytes(weight, columns, load().specbench_group())
    packed = weight.unflatten(0, (-1, columns)).transpose(1, 2)
    if dtype == torch.float32:
        return packed.contiguous()
    return packed.unflatten(2, (2, -1)).transpose(2, 3).flatten(2).to(dtype)


def _pack_bytes(
    weight: Float[Tensor, "outputs inputs"], columns: int, group: int
) -> Shaped[Tensor, "blocks depth columns"]:
    scales = byte_scales(weight)
    multiples = pad(weight / scales, (0, -weight.shape[1] % group)).to(torch.int32)
    multiples += 128 if group > 1 else 0  # as cpu_bytes.h takes them
    packed = multiples.unflatten(0, (-1, columns)).unflatten(2, (-1, group)).transpose(1, 2)
    packed = packed.to(torch.int8).reshape(len(packed), -1, columns)
    return torch.cat([packed, scales.view(-1, columns).view(torch.int8).view(-1, 4, columns)], dim=1)


def product(
    x: Float[Tensor, "*n inputs"], packed: Shaped[Tensor, "blocks depth columns"], outputs: int
) -> Float[Tensor, "*n outputs"]:
    """Returns ``x @ weight.T`` for the weight matrix that was packed; float32. :func:`load` first."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return torch.ops.specbench_cpu.product(rows, packed, outputs).reshape(*x.shape[:-1], outputs)
