"""Which known bug does code have? The one whose flawed verifier emits the same wrong tokens from the same uniforms."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from specbench.core.errors import ArgumentError
from specbench.exactness.enumeration.injection import Point, inject
from specbench.exactness.enumeration.reference import expected_of
from specbench.exactness.guard import VerifierFault
from specbench.exactness.zoo.bugs import bugs, card
from specbench.rules.rule import rule_of
from specbench.rules.verifier import Verifier

SAME = 0.98  # share of the requests on which a flawed verifier must emit the very same tokens; rounding has the rest
_FEWEST = 10  # requests; of fewer nothing is concluded
_SOURCE = re.compile(r" ?\([^()]*(?:issues?|PRs?|arXiv|[\w-]+/[\w.-]+) [^()]*\)")  # in a card: where the bug is from


@functools.cache
def _zoo() -> dict[str, Verifier]:
    """The flawed verifiers with their default settings, by their names in results."""
    return {f"flawed/{bug}": kind() for bug, kind in bugs().items()}


def likely_cause(verifier: Verifier, wrong: list[Point], right: Sequence[Point] = ()) -> str:
    """The bug of the zoo that explains what code does wrong at some points; empty if none does.

    Args:
        wrong: requests that the code gets wrong.
        right: requests next to them that it gets right, which a larger bug of the same kind would not.
    """
    as_wrong, of_wrong = _agreement(verifier, wrong, _zoo(), right=False)
    as_right, of_right = _agreement(verifier, right, as_wrong, right=True)
    best = max(
        as_right, default="", key=lambda name: min(as_wrong[name] - SAME * of_wrong, as_right[name] - SAME * of_right)
    )
    if not best or of_wrong < _FEWEST or as_wrong[best] < SAME * of_wrong or as_right[best] < SAME * of_right:
        return ""
    seen = f"It emits what {best} does in {as_wrong[best]} of {of_wrong} such requests."
    return f"{_SOURCE.sub('', card(best.removeprefix('flawed/')))} ({seen})"


def _agreement(
    verifier: Verifier, points: Sequence[Point], names: Iterable[str], right: bool
) -> tuple[dict[str, int], int]:
    """In how many requests each of the names emits what the code does, and how many there are.

    What does not come out right or wrong again, as it should, says nothing and is left out. A name is dropped as soon
    as it differs in more requests than it may, since each costs a call.
    """
    batches = defaultdict(list)
    for point in points:
        batches[point.fixture.name, point.count, point.fixture.params].append(point)
    same: dict[str, int] = dict.fromkeys(names, 0)
    rule, held = rule_of(verifier), 0
    for batch in batches.values():
        fixture, count = batch[0].fixture, batch[0].count
        given = torch.stack([point.given for point in batch], dim=1)
        got = inject(verifier, fixture, given, count).visible
        if rule.has_law:
            again = (got == expected_of(rule, fixture, count, given)).all(dim=1) == right
            given, got = given[:, again], got[again]
        held += len(got)
        for name in list(same):
            with contextlib.suppress(ArgumentError, VerifierFault):
                its = inject(_zoo()[name], fixture, given, count).visible
                same[name] += int((its == got).all(dim=1).sum())
            differing = held - same[name]
            if len(points) - differing < SAME * len(points):
                del same[name]
    return same, held
