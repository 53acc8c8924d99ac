"""The protocol cost takes its steps with the run's engine, also if that tells of a step when the next has begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.models import Pair
from specbench.protocols.cost import CostProtocol
from tests.decoding.test_decoding import make_requests
from tests.helpers.contexts import model_context

STEPS, PROMPT = 1, 20
DRAFT, TARGET, VERIFY = 1.0, 10.0, 100.0  # seconds of a call by the test's clock, which nothing else moves


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str, float], None]:
    """Returns a function that sets how many seconds a method of an object takes; no other time passes."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: int(now[0] * 1e9))

    def take(owner: object, name: str, seconds: float) -> None:
        call = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            now[0] += seconds
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, timed)

    return take


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine(), StaticEngine([4])], ids=["eager", "static", "wider"])
def test_phases_and_contexts_are_those_of_the_timed_steps(engine, pair: Pair, taking):
    """One timed step: were it the first, an engine that lags behind would have told of nothing yet."""
    context = model_context(pair, gamma=4, batch_size=1, requests=make_requests(pair, 2), engine=engine)
    taking(context.drafter, "propose", DRAFT)
    taking(context.target, "extend", TARGET)
    taking(context.verifier, "verify", VERIFY)
    outcome = CostProtocol([1, 3], [2], [PROMPT], STEPS, 1).run(context)
    rows = list(outcome.tables["cost.parquet"].rows)
    assert sorted((row.batch, row.gamma) for row in rows) == [(1, 0), (1, 2), (3, 0), (3, 2)]
    for row in rows:
        drafting = row.gamma > 0  # without drafts nothing is proposed or verified
        assert (row.draft, row.target, row.verify) == (DRAFT * drafting, TARGET, VERIFY * drafting)
        assert row.step == row.draft + row.target + row.verify + row.rest
        # Two steps of 1 to gamma + 1 tokens come before; what is not a request's counts nothing.
        assert PROMPT + 1 <= row.context <= PROMPT - 1 + 2 * (row.gamma + 1)
        assert row.context == PROMPT + 1 or row.gamma > 0
    assert outcome.measured["weight_bytes_target"] == 4 * pair.target.num_parameters()
    assert outcome.measured["copy_bandwidth"] is None
