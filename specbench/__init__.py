"""specbench: a laboratory for speculative decoding. Start at types.py, then verifiers/naive.py and decoding.py."""

import os

from specbench import caches

__version__ = "0.1.0"

# Without a GPU the Triton kernels run through Triton's interpreter. Triton reads this when it is first imported, which
# other libraries may do before specbench.kernels is; so the choice is made here, without importing anything.
if not any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

caches.make_do_without_home()  # likewise before Triton and matplotlib are imported
