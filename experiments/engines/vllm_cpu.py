"""vLLM alone, on a CPU without Triton: what speculative sampling divides logits by, and a server that has it mended.

python experiments/engines/vllm_cpu.py                                      # temperatures and top_k of two requests
python experiments/engines/vllm_cpu.py serve --model MODEL --port 8000 ...  # options of vllm serve
"""

import os
import runpy
import sys

os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_WORKER_MULTIPROC_METHOD="fork")

import torch
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils


def expand(output, values, ends, replace_from, replace_to, MAX_NUM_TOKENS=None):
    """Writes the value of each request once for each of its tokens, as the Triton kernel does."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    output.copy_(torch.where(values == replace_from, replace_to, values).repeat_interleave(counts))


if sys.argv[1:2] == ["serve"]:
    cpu_triton_utils._expand_kernel_impl = expand
    sys.argv = ["api_server", *sys.argv[2:]]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
else:
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    ends = torch.tensor([3, 6], dtype=torch.int32)  # two requests of three draft tokens
    for name, values in {"temperature": torch.tensor([0.7, 1.0]), "top_k": torch.tensor([50, 20]).int()}.items():
        print(f"{name} of requests: {values.tolist()}; of tokens: {expand_batch_to_tokens(values, ends, 6).tolist()}")
        mended = values.new_empty(6)
        expand(mended, values, ends, 0, 1)
        print(f"{name} of tokens should be: {mended.tolist()}")
