"""Token and block verification in one Triton launch, from raw logits to tokens (kernels/verify.py)."""

import os

from specbench.core import arguments
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels import launch


class FusedVerifier:
    """One launch a batch; capturable in a CUDA graph after a first call with the largest batch.

    Args:
        block: the block rule instead of the token rule.
        debug: whether values are checked too (ids, counts, positions, seeds, NaN rows), which waits for the device, and
            is left out while a CUDA graph is captured. Also switched on by SPECBENCH_DEBUG=1. Without it bad values
            have the results that :func:`specbench.kernels.launch.verify` defines.

    Attributes:
        interpreted: whether it runs through Triton's interpreter, for want of a GPU; its times then say nothing.
    """

    lossless = True
    takes_padded = True
    takes_masks = True
    interpreted = launch.INTERPRETED

    def __init__(self, block: bool = False, debug: bool = False):
        self.rule = "block" if block else "token"
        self.block = block
        self.debug = debug or os.environ.get("SPECBENCH_DEBUG", "0") == "1"
        self._workspace = launch.Workspace()

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        if self.debug:
            arguments.check(draft, target, streams, finite=True)
        return launch.verify(draft, target, streams, block=self.block, workspace=self._workspace)
