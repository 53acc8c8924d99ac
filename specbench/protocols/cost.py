"""The protocol ``cost``: seconds of drafting, scoring, verifying and the rest, by batch, gamma and context.

Steps of the decoding loop itself are timed, so that sampling, bookkeeping and whatever a kernel launch costs are in it;
a step takes the same time whether its tokens are accepted or not. The run's engine takes them. A cost model is fitted
(replay/cost/model.py).
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from specbench.benchmark.timer import kernels_run
from specbench.benchmark.weights import copy_bandwidth, weight_bytes
from specbench.core.checks import MOST_ROUNDS, MOST_STEPS, check_count
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import track
from specbench.core.machine.provenance import request_seed
from specbench.decoding import Request
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import Conditions, Ignored, Outcome, ParquetTable, RunContext
from specbench.protocols.settings import NO_TEXTS, check_chains, check_counts, check_fixed_lengths, check_gammas
from specbench.replay.cost.model import COST, PHASES, CostRow, fit
from specbench.reports.plots import replay as plots

WARMUP = 2  # steps of each setting before the clock counts


class CostProtocol:
    """See the module.

    Args:
        batches: requests side by side.
        gammas: tokens drafted a step; 0, plain decoding, is always measured.
        contexts: prompt tokens of a request.
        steps: timed a setting and round; their median counts.
        rounds: how often everything is measured, in an order of its own each time.
    """

    needs_models = True
    times = True
    ignored_parameters: ClassVar[Ignored] = NO_TEXTS
    own_conditions: ClassVar[Conditions] = {
        "gamma": "Use protocol.gammas.",
        "batch_size": "Use protocol.batches.",
        "max_new_tokens": "Use protocol.steps: the timed steps of a text.",
    }

    def __init__(self, batches: Sequence[int], gammas: Sequence[int], contexts: Sequence[int], steps: int, rounds: int):
        self.batches = check_counts("protocol.batches", batches)
        self.gammas = sorted({0, *check_gammas("protocol.gammas", gammas)})
        self.contexts = check_counts("protocol.contexts", contexts, least=2)
        self.steps = check_count("protocol.steps", steps, 1, MOST_STEPS)
        self.rounds = check_count("protocol.rounds", rounds, 1, MOST_ROUNDS)

    def precheck(self, context: RunContext) -> None:
        """Raises ConfigError for a drafter of trees, or of lengths of its own."""
        check_chains(context)
        check_fixed_lengths(context)

    def run(self, context: ModelContext) -> Outcome:
        """Raises ConfigError for contexts that leave no room for the steps in the pair's context."""
        rows = self.measure(context)
        frame = pd.DataFrame(rows)
        model = fit(frame)
        one = frame[(frame["batch"] == self.batches[0]) & (frame["gamma"] == 0)]["step"].median()
        knee = "not reached" if model.target.knee is None else f"{model.target.knee:.0f} tokens a call"
        return Outcome(
            f"a plain step takes {1e3 * one:.2f} ms at batch {self.batches[0]}; the target's knee: {knee}",
            {
                "weight_bytes_target": weight_bytes(context.target),
                "weight_bytes_draft": weight_bytes(context.drafter.model),
                "copy_bandwidth": copy_bandwidth(context.device),
            },
            tables={COST: ParquetTable(rows, CostRow)},
            figures={"step_times": plots.step_times(frame, model)},
            documents={"cost.json": json.dumps(model.describe(), indent=1)},
        )

    def measure(self, context: ModelContext) -> list[CostRow]:
        """Times every setting in every round. Raises ConfigError as run does."""
        room = max(self.contexts) + (self.steps + WARMUP + 1) * (max(self.gammas) + 1)
        if room > context.pair.context:
            raise ConfigError(
                "protocol.contexts",
                self.contexts,
                f"with {self.steps} steps a request may grow to {room} tokens, and the pair's context is "
                f"{context.pair.context}",
                "Lower protocol.contexts, protocol.steps or the largest of protocol.gammas.",
            )
        rng = np.random.default_rng(context.seed)
        settings = list(product(self.batches, self.gammas, self.contexts))
        rounds = [(i, settings[j]) for i in range(self.rounds) for j in rng.permutation(len(settings))]
        self._time(context, -1, *settings[-1])  # lazily built things are built
        return [self._time(context, number, *setting) for number, setting in track(rounds, "timing steps")]

    def _time(self, context: ModelContext, number: int, batch: int, gamma: int, length: int) -> CostRow:
        """One setting in a round; its kernels are counted in the last one."""
        decoder = context.decoder(gamma)
        limit = (self.steps + WARMUP + 1) * (gamma + 1)
        decoder.start(_requests(context, batch, length, limit))
        start, cached = decoder.stopwatch.seconds, [_cached(context, batch)]
        timed, began = [], time.perf_counter()
        # Nothing here waits for the device but the engine itself, as in decoding. An engine that runs ahead of the host
        # tells of the step before: its times are from one step's report to the next one's.
        for _ in range(self.steps + WARMUP):
            before = decoder.stopwatch.seconds
            decoder.step()
            ended = time.perf_counter()
            total, began = ended - began, ended
            after = decoder.stopwatch.seconds
            phases = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in PHASES[:-1]}
            timed.append({**phases, "rest": max(total - sum(phases.values()), 0.0), "step": total})
        decoder.flush()
        cached.append(_cached(context, batch))
        medians: Any = pd.DataFrame(timed[WARMUP:]).median().to_dict()
        return CostRow(
            round=number,
            batch=batch,
            gamma=gamma,
            # Texts grow evenly; the mean before each timed step.
            context=float(np.interp(WARMUP + (self.steps - 1) / 2, [0, WARMUP + self.steps], cached)),
            steps=self.steps,
            **medians,
            start_tokens=batch * (length - 1),
            start_draft=start.get("draft", 0.0),
            start_target=start.get("target", 0.0),
            kernels=kernels_run(context.device, decoder.step) if number == self.rounds - 1 else None,
        )


def _cached(context: ModelContext, batch: int) -> float:
    """Tokens cached a request, on average; waits for the device. Rows behind the requests are free."""
    return float(context.target.lengths[:batch].double().mean())


def _requests(context: ModelContext, batch: int, length: int, limit: int) -> list[Request]:
    """Requests of exactly ``length`` prompt tokens, cut from the workload laid end to end, no two alike. Nothing but
    the limit ends them."""
    sampling = dataclasses.replace(context.sampling, stop=(), stop_token_ids=())
    stream = [token for request in context.requests for token in request.prompt]
    repeated = stream * (1 + (batch + length) // len(stream))
    return [
        Request(
            f"cost/{i}",
            tuple(repeated[i : i + length]),
            request_seed(context.seed, f"cost/{i}"),
            sampling,
            limit,
            stop_ids=frozenset(),
        )
        for i in range(batch)
    ]
