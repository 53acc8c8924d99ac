"""Which known bug does code have? The one whose flawed verifier emits the same wrong tokens from the same uniforms."""

from __future__ import annotations

import functools
import inspect
import re
from collections import defaultdict

import torch

from specbench.errors import ArgumentError
from specbench.exactness.enumeration.injection import Point, inject
from specbench.exactness.enumeration.laws import LAWS
from specbench.exactness.enumeration.reference import expected_of
from specbench.exactness.watch import VerifierFault
from specbench.verifiers import Verifier
from specbench.verifiers.flawed import accept, bonus, residual, rng, state, wrong_q
from specbench.verifiers.flawed.base import BlockSteps, TokenSteps

SAME = 0.9  # share of the requests on which a flawed verifier must emit the very same tokens
_FEWEST = 3  # requests; of fewer nothing is concluded


@functools.cache
def zoo() -> dict[str, Verifier]:
    """The flawed verifiers that can be made without arguments, by their names in conf/verifier."""
    found: dict[str, Verifier] = {}
    for module in (accept, residual, bonus, wrong_q, rng, state):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, TokenSteps | BlockSteps) and kind.__module__ == module.__name__:
                found[f"flawed/{re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}"] = kind()
    return found


def likely_cause(verifier: Verifier, points: list[Point]) -> str:
    """The bug of the zoo that explains what code does wrong at some points; empty if none does.

    Args:
        points: requests that the code gets wrong.
    """
    batches = defaultdict(list)
    for point in points:
        batches[point.fixture.name, point.count, point.fixture.params].append(point)
    scores: dict[str, int] = dict.fromkeys(zoo(), 0)
    wrong = 0
    for same in batches.values():
        fixture, count = same[0].fixture, same[0].count
        given = torch.stack([point.given for point in same], dim=1)
        got = inject(verifier, fixture, given, count).visible
        if verifier.rule in LAWS:  # what does not come out wrong again says nothing
            again = (got != expected_of(verifier.rule, fixture, count, given)).any(dim=1)
            given, got = given[:, again], got[again]
        wrong += len(got)
        for name, flawed in zoo().items():
            try:
                its = inject(flawed, fixture, given, count).visible
            except (ArgumentError, VerifierFault):
                continue
            scores[name] += int((its == got).all(dim=1).sum())
    best = max(scores, key=lambda name: scores[name])
    if wrong < _FEWEST or scores[best] < SAME * wrong:
        return ""
    (first, *_) = (inspect.getdoc(type(zoo()[best])) or "").split("\n\n")
    return f"{' '.join(first.split())} (It emits what {best} does in {scores[best]} of {wrong} such requests.)"
