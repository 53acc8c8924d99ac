"""The model card's cost ratio: forward times of a pair on this machine. ``python -m specbench.training.cost``."""

from __future__ import annotations

import statistics
import time

import torch

from specbench.models import Engine, load_pair
from specbench.provenance import commit, processor

CONTEXT, REPEATS = 150, 60


def forward_milliseconds(engine: Engine, tokens: int, batch: int) -> tuple[float, float, float]:
    """Median and quartiles of extending ``batch`` cached sequences of CONTEXT tokens by ``tokens``."""
    engine.start([list(range(1, CONTEXT + 1))] * batch, CONTEXT + tokens + 1)
    lengths, fed, times = list(engine.lengths), torch.full((batch, tokens), 7), []
    for _ in range(REPEATS + 5):
        started = time.perf_counter()
        engine.extend(fed, [tokens] * batch)
        times.append(1e3 * (time.perf_counter() - started))
        engine.truncate(lengths)
    low, middle, high = statistics.quantiles(times[5:], n=4)
    return middle, low, high


def main() -> None:
    pair = load_pair("embedded:target", "embedded:draft", device="cpu")
    target, draft = Engine(pair.target, pair.vocab_size, "target"), Engine(pair.draft, pair.vocab_size, "draft")
    print(f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, commit {commit()}")
    print("milliseconds a forward pass, median [quartiles]; c = draft / target at one token")
    for batch in (1, 4, 8):
        one, *_ = forward_milliseconds(draft, 1, batch)
        base, *_ = forward_milliseconds(target, 1, batch)
        print(f"batch {batch}: draft, 1 token {one:.2f}; c = {one / base:.3f}")
        for tokens in (1, 2, 3, 4, 5, 7, 9):
            middle, low, high = forward_milliseconds(target, tokens, batch)
            spread = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
            print(f"batch {batch}: target, {tokens} tokens {spread}, {middle / base:.2f} of one")


if __name__ == "__main__":
    main()
