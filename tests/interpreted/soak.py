"""Decodes thousands of random requests and compares each text with the eager one.

    python -m tests.interpreted.soak --seconds 480

On a GPU steps are captured ones, elsewhere static ones (``--device cpu``). Requests are of random lengths, samplers,
gammas, penalties and ends; they come and go in batches of random widths, through the same engines all the time. Models
compute in float64, since products of other widths round otherwise, which in float32 moves one token of some thousands
to a neighbour; logits are float32, as kernels take them. The first text that differs ends the soak with its request.
Each way begins with the widest batch of the longest texts, so that what it keeps is as large as it gets. The last line
says how many requests were compared, and by how much memory grew from the middle to the end; nothing is asserted about
memory, since allocators keep what they once had, and a graph is kept for each of the last ways to shape distributions.
"""

import argparse
import dataclasses
import gc
import json
import random
import resource
import sys
import time

import torch

from specbench.decoding import Decoder, EagerEngine, Request
from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.models import Pair, load_pair
from specbench.runs.workloads import load_prompts
from specbench.sampling import resolve
from tests.decoding.test_engines import logs
from tests.gpu.test_drafters_on_gpu import ASKED, WAYS, decoder
from tests.helpers.cases import MIXED, in_float64

ON_GPU = ("token", "block", "masked", "unsure", "layer_skip", "tree", "prompt_lookup", "plain")
ON_CPU = ("masked", "tree", "plain")  # without kernels
WIDEST, LONGEST = 16, 120  # requests side by side; tokens of a prompt
LENGTHS = (1, 2, 5, 17, 40)  # of texts


def random_requests(
    pair: Pair, prompts: list[list[int]], chance: random.Random, gamma: int, largest: bool = False
) -> list[Request]:
    """Returns one to three full batches of requests; with ``largest`` one full batch of the longest texts."""
    made = []
    for number in range(WIDEST if largest else chance.randint(1, 3 * WIDEST)):
        prompt = chance.choice(prompts)
        begin = 0 if largest else chance.randrange(len(prompt))
        most = max(LENGTHS) if largest else chance.choice(LENGTHS)
        changes = dict(chance.choice(ASKED))
        if "min_tokens" in changes:
            changes["min_tokens"] = min(changes["min_tokens"], most)
        sampling = dataclasses.replace(chance.choice(MIXED), **changes)
        made.append(
            Request(
                str(number),
                tuple(prompt[begin : begin + (LONGEST if largest else chance.randint(1, LONGEST))]),
                chance.randrange(2**31),
                resolve(sampling, pair.encode, pair.stop_ids, pair.vocab_size),
                most,
                gamma=chance.choice((None, None, *range(gamma + 1))),
                stop_ids=chance.choice((None, None, frozenset({*pair.stop_ids, 30, 31, 32}))),
            )
        )
    return made


def with_float32_logits(made: Decoder) -> Decoder:
    """A decoder whose models return them, whatever they compute in."""
    drafter = made.components.drafter
    for model in (made.components.target, drafter and drafter.model):
        if model is not None:
            model._dtype = torch.float32
    return made


def memory() -> dict[str, int]:
    """Bytes of tensors, that PyTorch holds of the GPU, that are taken there, and the most that this process had of the
    host's."""
    gc.collect()
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not torch.cuda.is_available():
        return {"host": host}
    free, whole = torch.cuda.mem_get_info()
    gpu = {"tensors": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(), "taken": whole - free}
    return {**gpu, "host": host}


def soak(pair: Pair, seconds: float, seed: int, ways: list[str]) -> dict[str, object]:
    """Decodes for that long.

    Raises:
        AssertionError: a text, or what a step accepted, that is not the eager one.
    """
    chance = random.Random(seed)
    prompts = [pair.encode(prompt.text) for prompt in load_prompts("embedded:embedded.jsonl", 24)]
    fixed = StaticEngine if pair.target.device.type == "cpu" else GraphEngine
    eager = {way: with_float32_logits(decoder(pair, way, EagerEngine())) for way in ways}
    captured = {way: with_float32_logits(decoder(pair, way, fixed())) for way in ways}
    began, middle, requests, tokens, rounds = time.monotonic(), None, 0, 0, 0
    while time.monotonic() - began < seconds:
        way = ways[rounds % len(ways)]
        first = rounds < len(ways)
        batch = random_requests(pair, prompts, chance, WAYS[way][2], first)
        shuffled = list(range(len(batch)))
        chance.shuffle(shuffled)
        try:
            widths = [WIDEST] * 2 if first else [chance.randint(1, WIDEST) for _ in range(2)]
            expected = logs(eager[way].run(batch, widths[0]))
            outputs = logs(captured[way].run([batch[place] for place in shuffled], widths[1]))
        except Exception as error:
            error.add_note(f"in round {rounds}, {way}, seed {seed}, after {requests} requests")
            raise
        for place, output in zip(shuffled, outputs, strict=True):
            assert output == expected[place], (
                f"round {rounds}, {way}: {batch[place]}\n{output}\nis not\n{expected[place]}"
            )
        rounds, requests = rounds + 1, requests + len(batch)
        tokens += sum(len(output[0]) for output in outputs)
        if middle is None and time.monotonic() - began > seconds / 2:
            middle = memory()
    grown = {name: value - (middle or {}).get(name, value) for name, value in memory().items()}
    spent = time.monotonic() - began
    return {"requests": requests, "tokens": tokens, "rounds": rounds, "seconds": round(spent), "grown": grown}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ways", nargs="+", choices=ON_GPU)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    loaded = in_float64(load_pair("embedded:target", "embedded:draft", device=options.device, dtype="float32"))
    report = soak(loaded, options.seconds, options.seed, options.ways or list(ON_CPU if on_cpu else ON_GPU))
    json.dump({"device": options.device, "seed": options.seed, **report}, sys.stdout)
    print()
