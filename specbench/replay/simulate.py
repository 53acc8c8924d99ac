"""Draws of what decoding would have done, from a trace: the accept/reject noise put back, without a model.

For what is not a mean: how long a batch waits for its slowest request, how much decoding a prompt twice would differ.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from specbench.replay.trace import Trace

NOTHING = -1


def simulate(
    trace: Trace,
    accepted: Float64[np.ndarray, "T gamma1"],
    rng: np.random.Generator,
    texts: Int64[np.ndarray, " n"] | None = None,
) -> Int64[np.ndarray, "n steps"]:
    """Accepted drafted tokens of each step of each text, with -1 behind its last step.

    A step emits one token more, but for a last step that accepted the stop token.

    Args:
        accepted: P(tau >= i | text) of each token (survival.py).
        texts: numbers of the texts, each as often as it is to be decoded, with noise of its own every time; None: all.
    """
    numbers = np.arange(len(trace.prompts)) if texts is None else texts
    at, ends, columns = trace.starts[numbers], trace.starts[numbers + 1], []
    going = np.flatnonzero(at < ends)
    while len(going):
        here = accepted[at[going], 1:]
        taken = (here > rng.random(len(going))[:, None]).sum(axis=1)
        column = np.full(len(at), NOTHING)
        column[going] = taken
        columns.append(column)
        at[going] += taken + 1
        going = going[at[going] < ends[going]]
    return np.stack(columns, axis=1)


def simulated_steps(
    trace: Trace, accepted: Float64[np.ndarray, "T gamma1"], repeats: int
) -> Int64[np.ndarray, "repeats n"]:
    """Steps of each text in independent runs."""
    rng = np.random.default_rng(0)
    return np.stack([(simulate(trace, accepted, rng) != NOTHING).sum(axis=1) for _ in range(repeats)])
