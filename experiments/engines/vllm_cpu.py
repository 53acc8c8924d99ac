"""vLLM alone, on a CPU without Triton: what speculative sampling divides logits by, and a server that has it mended.

python experiments/engines/vllm_cpu.py                                      # temperatures and top_k of two requests
python experiments/engines/vllm_cpu.py serve --model MODEL --port 8000 ...  # options of vllm serve
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch


def expand(output, values, ends, replace_from, replace_to, MAX_NUM_TOKENS=None):
    """Writes the value of each request once for each of its tokens, as vLLM's Triton kernel does."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    output.copy_(torch.where(values == replace_from, replace_to, values).repeat_interleave(counts))


def mend():
    """The entry point of a plugin, which vLLM calls in each of its processes."""
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = expand


def serve(options, mended):
    """Runs vLLM's server with a plugin, such as vllm_cpu:mend."""
    with tempfile.TemporaryDirectory() as folder:
        about = Path(folder) / "mended-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mended\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\nmended = {mended}\n")
        paths = os.pathsep.join([folder, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run([sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options],
                       env={**os.environ, "PYTHONPATH": paths}, check=False)  # fmt: skip


def show():
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    ends = torch.tensor([3, 6], dtype=torch.int32)  # two requests of three draft tokens
    for name, values in {"temperature": torch.tensor([0.7, 1.0]), "top_k": torch.tensor([50, 20]).int()}.items():
        mended = values.new_empty(6)
        expand(mended, values, ends, 0, 1)
        print(f"{name} of each token: {expand_batch_to_tokens(values, ends, 6).tolist()} for {mended.tolist()}")


if __name__ == "__main__":
    serve(sys.argv[2:], "vllm_cpu:mend") if sys.argv[1:2] == ["serve"] else show()
