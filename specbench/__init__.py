"""specbench: a laboratory for speculative decoding.

From Python: ``verify`` a batch of your own logits, ``certify`` a function of your own (``from_accept`` makes a verifier
of one that handles a single request), ``load_pair``, ``decode``, ``record`` and ``replay``. Everything is imported when
it is first used, so that ``import specbench`` needs no PyTorch.
The code begins at core/types.py; read rules/token/naive.py and decoding/step.py after it.
"""

import importlib
import os
from typing import TYPE_CHECKING

from specbench.core import extensions
from specbench.core.machine import caches

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from specbench.api.accept import from_accept
    from specbench.api.batch import verify
    from specbench.api.certificates import CertificateInterrupt, certify
    from specbench.api.texts import decode, load_pair, record
    from specbench.core.rng import Stream, Streams
    from specbench.core.sampling_params import SamplingParams
    from specbench.core.types import Draft, LogitRows, Verification
    from specbench.replay.call import replay

__version__ = "0.2.0"

__all__ = [
    "CertificateInterrupt",
    "Draft",
    "LogitRows",
    "SamplingParams",
    "Stream",
    "Streams",
    "Verification",
    "__version__",
    "certify",
    "decode",
    "from_accept",
    "load_pair",
    "record",
    "replay",
    "verify",
]

_HOMES = {
    "CertificateInterrupt": "api.certificates",
    "Draft": "core.types",
    "LogitRows": "core.types",
    "SamplingParams": "core.sampling_params",
    "Stream": "core.rng",
    "Streams": "core.rng",
    "Verification": "core.types",
    "certify": "api.certificates",
    "decode": "api.texts",
    "from_accept": "api.accept",
    "load_pair": "api.texts",
    "record": "api.texts",
    "verify": "api.batch",
}

# Without a GPU the Triton kernels run through Triton's interpreter. Triton reads this when it is first imported, which
# other libraries may do before specbench.kernels is; so the choice is made here, without importing anything.
if not any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

extensions.provide("structured_outputs", "specbench.extras.structured")
extensions.provide("different_vocabularies", "specbench.extras.vocabularies")
extensions.provide("parallel", "specbench.extras.parallel")
caches.keep_outside_clean()  # likewise before Triton and matplotlib are imported


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used."""
    if name == "replay":  # the name of a room as well, which can be called (replay/__init__.py)
        return importlib.import_module("specbench.replay")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"specbench.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
