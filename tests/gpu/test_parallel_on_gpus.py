"""Shards on several GPUs, sums over ranks inside a captured step: the eager engine's texts, and how long a step takes.

The tests start torchrun on this file, whose ranks leave found.json. What it measures is printed (``pytest -s``), beside
the time that reading the weights of one shard and of the draft alone would take; nothing is asserted about times.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from specbench.benchmark.weights import copy_bandwidth, weight_bytes
from specbench.core.machine import ranks
from specbench.decoding import Decoder, DecodingEngine, EagerEngine, Request
from specbench.decoding.engines.graph import GraphEngine
from specbench.extras.compiled.engine import CompiledEngine
from specbench.models import Pair, load_pair
from specbench.rules.fused import FusedVerifier
from specbench.sampling import SamplingParams
from tests.helpers import cases
from tests.helpers.command_lines import ROOT, clean_environment

SMALL = ("random:llama-1b", "random:llama-1b")
LARGE = ("random:qwen3-32b", "random:qwen3-0.6b")  # the target's weights alone are 66 GB
GAMMA, PROMPT, STEPS, WARMUP = 4, 128, 50, 10


def requests(pair: Pair, count: int, tokens: int) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(pair.vocab_size, (count, PROMPT), generator=generator).tolist()
    return [Request(str(i), tuple(prompt), i, SamplingParams(), tokens) for i, prompt in enumerate(prompts)]


def decoder(pair: Pair, engine: DecodingEngine) -> Decoder:
    return cases.decoder(pair, GAMMA, verifier=FusedVerifier(), stop_ids=(), engine=engine)


def loaded(names: tuple[str, str], dtype: str) -> Pair:
    return load_pair(*names, device=f"cuda:{ranks.rank()}", dtype=dtype, parallel="tensor")


def step_times(pair: Pair, engine: DecodingEngine) -> dict[str, float]:
    """Milliseconds of a step of one request, and its floor: the bytes of this rank's weights by copy bandwidth."""
    made = decoder(pair, engine)
    made.start(requests(pair, 1, (WARMUP + STEPS) * (GAMMA + 1)))
    drafter = made.components.drafter
    assert drafter is not None
    draft_bytes, target_bytes = weight_bytes(drafter.model), weight_bytes(made.components.target)
    bandwidth = copy_bandwidth(made.components.target.device)
    assert draft_bytes is not None
    assert target_bytes is not None
    assert bandwidth is not None
    for number in range(WARMUP + STEPS):
        if number == WARMUP:
            made.flush()
            torch.cuda.synchronize()
            began = time.perf_counter()
        made.step()
    made.flush()
    torch.cuda.synchronize()
    floor = (target_bytes + GAMMA * draft_bytes) / bandwidth
    return {"step_ms": 1e3 * (time.perf_counter() - began) / STEPS, "floor_ms": 1e3 * floor}


def texts(pair: Pair, engine: DecodingEngine) -> list[tuple[object, list[int]]]:
    done = decoder(pair, engine).run(requests(pair, 4, 40), 3)
    return [(c.token_ids, [s.num_accepted for s in c.steps]) for c in done]


def on_rank(folder: Path) -> None:
    torch.cuda.set_device(ranks.rank())
    small, results = loaded(SMALL, "float32"), {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    results["equal"] = texts(small, EagerEngine()) == texts(small, GraphEngine())
    del small
    large = loaded(LARGE, "bfloat16")
    engines = {"eager": EagerEngine(), "graph": GraphEngine(), "compiled": CompiledEngine()}
    for name, engine in engines.items():
        results[name] = step_times(large, engine)
        if ranks.is_rank0():
            (folder / "found.json").write_text(json.dumps(results, indent=1))


@pytest.mark.parametrize("count", [2, 4])
def test_captured_steps_of_shards_write_the_eager_texts(count, tmp_path):
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs, and {torch.cuda.device_count()} are here")
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}"]
    done = subprocess.run(
        [*launch, "-m", "tests.gpu.test_parallel_on_gpus", str(tmp_path)],
        cwd=ROOT, env=clean_environment(tmp_path), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "found.json").read_text())
    print(json.dumps(results, indent=1))
    assert results["equal"]


if __name__ == "__main__":
    on_rank(Path(sys.argv[1]))
