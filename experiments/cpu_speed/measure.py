"""Times steps of the embedded pair on a CPU, with engine=eager and engine=compiled.

One process, one thread. In every round each engine decodes the same requests plainly and with gamma 4, one after the
other, so that a change of the machine meets all. Times are medians over rounds; ratios are of the same round, with the
interval that holds 95% of the medians of resampled rounds. The table goes to standard output, and rounds to --out.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from specbench import load_pair
from specbench.decoding import Decoder, Request
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.step_result import PHASES
from specbench.drafters.model import ModelDrafter
from specbench.extras.compiled.engine import CompiledEngine
from specbench.models import CachedModel, Pair
from specbench.rules.token.masked import MaskedVerifier
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams

GAMMA = 4
ENGINES = {"eager": EagerEngine, "compiled": CompiledEngine}


def decoder(pair: Pair, engine: str, gamma: int) -> Decoder:
    target = CachedModel(pair.target, pair.vocab_size, "target")
    if gamma == 0:
        return Decoder(target, None, None, 0, frozenset(), ENGINES[engine]())
    drafter = ModelDrafter().bind(pair, target)
    return Decoder(target, drafter, MaskedVerifier(), gamma, frozenset(), ENGINES[engine]())


def timed(decoding: Decoder, requests: list[Request]) -> tuple[dict[str, float], list[list[int]]]:
    """Returns seconds of steps alone, without prompts, and texts."""
    numbers: Counter[str] = Counter()
    texts = []
    for request in requests:
        (completion,) = decoding.start([request])  # feeds the prompt
        decoding.clear_times()
        while decoding.active:
            decoding.step()
        numbers.update(decoding.stopwatch.seconds)
        numbers["steps"] += decoding.steps
        numbers["tokens"] += len(completion.token_ids)
        numbers["drafted"] += sum(step.num_draft_tokens for step in completion.steps)
        texts.append(list(completion.token_ids))
    return dict(numbers) | {"seconds": sum(numbers[phase] for phase in PHASES)}, texts


def read_seconds(pair: Pair) -> float:
    """Returns the seconds that reading as many bytes as the target's weights takes, by a sum."""
    weights = torch.ones(sum(parameter.numel() for parameter in pair.target.parameters()))
    started = time.perf_counter()
    weights.sum()
    return time.perf_counter() - started


def interval(values: pd.Series) -> str:
    generator, array = np.random.default_rng(0), values.to_numpy()
    medians = np.median(generator.choice(array, (2000, len(array))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(array):.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, default=Path("rounds.csv"), help="file of the rounds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair("embedded:target", "embedded:draft", device="cpu")
    prompts = load_prompts("embedded:embedded.jsonl", args.requests)
    requests = {
        temperature: [
            Request(p.name, tuple(pair.encode(p.text)), 100 + i, SamplingParams(temperature=temperature), args.tokens)
            for i, p in enumerate(prompts)
        ]
        for temperature in (1.0, 0.0)
    }
    decoders = {(engine, gamma): decoder(pair, engine, gamma) for engine in ENGINES for gamma in (0, GAMMA)}
    rows, equal = [], {}
    for number in range(args.rounds + 1):  # the first one prepares, and is not counted
        reading = read_seconds(pair)
        for temperature, some in requests.items():
            texts = {}
            for engine, gamma in sorted(decoders, reverse=number % 2 == 1):
                numbers, texts[engine, gamma] = timed(decoders[engine, gamma], some)
                of = {"round": number, "temperature": temperature, "engine": engine, "gamma": gamma, "reading": reading}
                rows += [of | numbers] if number else []
            same = [texts["eager", gamma] == texts["compiled", gamma] for gamma in (0, GAMMA)]
            equal[temperature] = equal.get(temperature, True) and all(same)
        frame = pd.DataFrame(rows)
        frame.to_csv(args.out, index=False, float_format="%.6g")
    report(frame, equal)
    for (engine, gamma), decoding in decoders.items():
        if decoding.engine.preparation:
            print(f"prepared: {engine}, gamma {gamma}: {decoding.engine.preparation:.1f} s")


def report(frame: pd.DataFrame, equal: dict[float, bool]) -> None:
    print("| T | | eager, ms | compiled, ms | eager / compiled |\n|---|---|---|---|---|")
    for temperature, some in frame.groupby("temperature", sort=False):
        by = {key: part.set_index("round") for key, part in some.groupby(["engine", "gamma"])}
        quantities: dict[str, dict[str, pd.Series]] = {}
        speedups = {}
        for engine in ENGINES:
            plain, drafting = by[engine, 0], by[engine, GAMMA]
            columns = {
                "plain step": plain.seconds / plain.steps,
                "drafted token": drafting.draft / drafting.drafted,
                "target pass over 5 tokens": drafting.target / drafting.steps,
                "verify and commit": (drafting.verify + drafting.commit) / drafting.steps,
                "speculative step": drafting.seconds / drafting.steps,
            }
            for name, column in columns.items():
                quantities.setdefault(name, {})[engine] = 1000 * column
            speedups[engine] = (plain.seconds / plain.tokens) / (drafting.seconds / drafting.tokens)
        for name, column in quantities.items():
            eager, compiled = column["eager"], column["compiled"]
            cells = [f"{eager.median():.2f}", f"{compiled.median():.2f}", interval(eager / compiled)]
            print(f"| {temperature:g} | {name} | {' | '.join(cells)} |")
        cells = [interval(speedup) for speedup in speedups.values()]
        print(f"| {temperature:g} | speedup over plain decoding | {' | '.join(cells)} | |")
    print(f"texts of both engines are equal: {equal}")
    print(f"reading the target's weights: {1000 * frame.reading.median():.2f} ms")


if __name__ == "__main__":
    main()
