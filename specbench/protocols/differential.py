"""The protocol ``differential``: two verifiers on the same streams. Where do they part first, and is it rounding?"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch

from specbench.errors import ConfigError
from specbench.exactness import tables
from specbench.exactness.differential import Comparison, compare
from specbench.exactness.fixtures import as_configured, greedy_fixture, small_fixtures
from specbench.progress import track
from specbench.protocols.base import Conditions, Outcome, RunContext, Table
from specbench.protocols.settings import OF_FIXTURES
from specbench.verifiers import Verifier

KEPT = 1000  # divergences of a fixture that are written down


class DifferentialProtocol:
    """See the module.

    Args:
        other: the verifier to compare with (``verifier@protocol.other=block`` on the command line).
        requests: put before both, on each small fixture.
        vocabulary: tokens of one fixture more, which has the run's own sampler, gamma and dtype.
        vocabulary_requests: put before both on it.
    """

    needs_models = False
    own_conditions: ClassVar[Conditions] = {"batch_size": OF_FIXTURES}

    def __init__(self, other: Any, requests: int, vocabulary: int, vocabulary_requests: int):
        if not isinstance(other, Verifier):
            remedy = "Write verifier@protocol.other=NAME, one of conf/verifier."
            raise ConfigError("protocol.other", type(other).__name__, "not a verifier", remedy)
        for name, value, least in (
            ("requests", requests, 1),
            ("vocabulary", vocabulary, 2),
            ("vocabulary_requests", vocabulary_requests, 1),
        ):
            if value < least:
                raise ConfigError(f"protocol.{name}", value, f"below {least}", f"Use {least} or more.")
        self.other, self.requests = other, requests
        self.vocabulary, self.vocabulary_requests = vocabulary, vocabulary_requests

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        dtype = str(context.dtype).removeprefix("torch.")
        own = as_configured(context.sampling, context.gamma, 1, dtype, self.vocabulary).fixture()
        cases = [(fixture, self.requests) for fixture in (*small_fixtures(), greedy_fixture())]
        cases.append((own, self.vocabulary_requests))
        found = [
            compare(context.verifier, self.other, fixture, requests, context.seed, context.device)
            for fixture, requests in track(cases, "comparing")
        ]
        divergences = [each for comparison in found for each in comparison.divergences[:KEPT]]
        return Outcome(
            _headline(found),
            {},
            {
                tables.COMPARISONS: Table([_counts(each) for each in found], tables.COMPARISONS_SCHEMA),
                tables.DIVERGENCES: Table(divergences, tables.DIVERGENCES_SCHEMA),
            },
            documents={"first_divergence.json": json.dumps(vars(divergences[0]) if divergences else None, indent=1)},
        )


def _counts(comparison: Comparison) -> dict[str, Any]:
    causes = {name: comparison.count(name) for name in ("rounding", "structural")}
    return {
        "fixture": comparison.fixture,
        "requests": comparison.requests,
        **causes,
        "another_rule": comparison.count("another rule"),
    }


def _headline(found: list[Comparison]) -> str:
    requests = sum(each.requests for each in found)
    divergences = [each for comparison in found for each in comparison.divergences]
    if not divergences:
        return f"the same tokens in {requests:,} requests"
    first = divergences[0]
    return (
        f"{len(divergences):,} of {requests:,} requests differ, {sum(d.cause == 'rounding' for d in divergences):,} by "
        f"rounding; the first, {first.fixture} seed {first.seed}: {first.kind} at offset {first.offset}, uniform "
        f"{first.uniform!r}, threshold {first.threshold!r} ({first.cause})"
    )
