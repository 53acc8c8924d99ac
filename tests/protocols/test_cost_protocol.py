"""The protocol cost takes its steps with the run's engine, also if that tells of a step when the next has begun."""

from __future__ import annotations

import pytest

from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.models import Pair
from specbench.protocols.cost import CostProtocol
from tests.decoding.test_decoding import make_requests
from tests.helpers.contexts import model_context

STEPS, PROMPT = 1, 20


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine(), StaticEngine([4])], ids=["eager", "static", "wider"])
def test_phases_and_contexts_are_those_of_the_timed_steps(engine, pair: Pair):
    """One timed step: were it the first, an engine that lags behind would have told of nothing yet."""
    context = model_context(pair, gamma=4, batch_size=1, requests=make_requests(pair, 2), engine=engine)
    outcome = CostProtocol([1, 3], [2], [PROMPT], STEPS, 1).run(context)
    rows = list(outcome.tables["cost.parquet"].rows)
    assert sorted((row.batch, row.gamma) for row in rows) == [(1, 0), (1, 2), (3, 0), (3, 2)]
    for row in rows:
        assert min(row.target, row.verify, row.step) > 0
        assert (row.draft > row.target / 20) == (row.gamma > 0)  # a draft that proposes nothing takes microseconds
        # Two steps of 1 to gamma + 1 tokens come before; what is not a request's counts nothing.
        assert PROMPT + 1 <= row.context <= PROMPT - 1 + 2 * (row.gamma + 1)
        assert row.context == PROMPT + 1 or row.gamma > 0
    assert outcome.measured["weight_bytes_target"] == 4 * pair.target.num_parameters()
    assert outcome.measured["copy_bandwidth"] is None
