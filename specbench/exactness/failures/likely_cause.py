"""Whose tokens does code emit? Those of another rule, of a known bug, or of its own rule from other uniforms.

Requests of all small fixtures are put before the code and before each of these verifiers. They show another rule or a
large bug, and refute every other one. Requests next to a threshold of the code show a small bug. If no flawed verifier
emits the tokens of the code, its rule may, from other uniforms (``uniform_order``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Verification
from specbench.exactness.enumeration.injection import Point, expected_of, inject
from specbench.exactness.failures.uniform_order import other_orders
from specbench.exactness.fixtures import Fixture
from specbench.exactness.guard import VerifierFault
from specbench.exactness.reference import VerifyCall
from specbench.exactness.steps import draw, verified_steps
from specbench.exactness.streams import CAUSES, request_streams
from specbench.exactness.zoo.bugs import bugs, card
from specbench.rules.rule import Rule, rule_of, rules_with_formulas
from specbench.rules.verifier import Verifier

SAME = 0.98  # share of the wrong requests of which a cause has to give the very same tokens; rounding has the rest
REQUESTS = 256  # of each fixture, drawn without regard to the code
_FEWEST = 10  # wrong requests; of fewer nothing is concluded
_SOURCE = re.compile(r" ?\([^()]*(?:issues?|PRs?|arXiv|[\w-]+/[\w.-]+) [^()]*\)")  # in a card: where the bug is from


@functools.cache
def _zoo() -> dict[str, Verifier]:
    """The flawed verifiers with their default settings, by their names in results."""
    return {f"flawed/{bug}": kind() for bug, kind in bugs().items()}


def _words(name: str) -> str:
    """What a flawed verifier does wrong, without where that was seen."""
    return _SOURCE.sub("", card(name.removeprefix("flawed/")))


def padding_cause(call: VerifyCall, result: Verification, b: int) -> str:
    """Returns the cause of a request's wrong form if it is the padding alone; "" if it is not."""
    behind = torch.arange(result.token_ids.shape[1], device=result.num_accepted.device) > result.num_accepted[:, None]
    padded = dataclasses.replace(result, token_ids=result.token_ids.masked_fill(behind, PADDING))
    if call.well_formed(result)[b] or not call.well_formed(padded)[b]:
        return ""
    wrong = result.token_ids[b][behind[b]]
    return (
        f"The padding: {int(wrong[wrong != PADDING][0])} stands behind the emitted token, where -1 is required. Fill "
        "token_ids with -1 behind the emitted token."
    )


@dataclass(frozen=True)
class _Batch:
    """Requests of a fixture, and the tokens that code emits for them.

    Attributes:
        emitted: [B, gamma + 1], PADDING behind the tokens.
        wrong: the number of requests without the tokens of the rule that the code names.
    """

    fixture: Fixture
    streams: Streams
    emitted: Int64[Tensor, "B width"]
    wrong: int


@dataclass(frozen=True)
class CauseSearch:
    """Looks for the known rule, bug or order of uniforms that explains all of a verifier's tokens.

    Args:
        fixtures: small ones, on the device. Refused ones are left out.
        seed: of the run, from which the requests follow.
        most: requests of each fixture that code may be given, fewer than REQUESTS for slow code. Nothing but points is
            compared then.
    """

    verifier: Verifier
    fixtures: Sequence[Fixture]
    seed: int
    most: int

    def cause(self, wrong: Sequence[Point] = (), right: Sequence[Point] = ()) -> str:
        """Returns the rule that the code follows in place of its own, the bug of the zoo or the other uniforms of its
        rule, if that explains what it does.

        Args:
            wrong: requests that the code gets wrong.
            right: requests next to them that it gets right, which a larger bug of the same kind would not.

        Returns:
            A sentence, and in brackets what shows it; "" if no known bug, or more than one, has all tokens of the code.
        """
        requests, of_wrong = sum(len(batch.emitted) for batch in self._batches), self._wrong
        if of_wrong >= _FEWEST and (rule := self._other_rule()) is not None:
            return (
                f"It follows the {rule.title}: it has all tokens of that rule in {requests:,} requests on small pairs, "
                f"and other tokens than the rule that it names in {of_wrong:,} of them. Name the rule {rule.name!r}."
            )
        if of_wrong >= _FEWEST and len(self._alike) == 1:
            (name,) = self._alike
            return (
                f"{_words(name)} (It emits what {name} does in {requests:,} requests on small pairs, of which "
                f"{of_wrong:,} are wrong.)"
            )
        if self._alike:
            return self._at_points(wrong, right)
        return self._of_uniforms(requests) if of_wrong >= _FEWEST else ""

    def _other_rule(self) -> Rule | None:
        """The known rule, other than the verifier's own, that has the tokens of the code; None if it is not one."""
        others = [rule for rule in rules_with_formulas().values() if rule is not rule_of(self.verifier)]
        alike = [rule for rule in others if rule.reference is not None and self._explains(rule.reference)]
        return alike[0] if len(alike) == 1 else None

    def _of_uniforms(self, requests: int) -> str:
        orders = [order for order in other_orders(rule_of(self.verifier)) if self._explains(order)]
        if len(orders) != 1:
            return ""
        return (
            f"{orders[0].described} (With these it has all tokens of the code in {requests:,} requests on small pairs, "
            f"and other tokens in {self._wrong:,} of them with its own.)"
        )

    @cached_property
    def _batches(self) -> list[_Batch]:
        rule, batches = rule_of(self.verifier), []
        if self.most < REQUESTS or not rule.has_law:
            return []
        for fixture in self.fixtures:
            streams = request_streams(self.seed, CAUSES, REQUESTS, fixture.gamma + 1, fixture.p.device)
            with contextlib.suppress(ArgumentError, VerifierFault):
                emitted = verified_steps(self.verifier, fixture, streams).visible
                own = draw(None, fixture, streams).expected(rule).token_ids
                batches.append(_Batch(fixture, streams, emitted, int((emitted != own).any(dim=1).sum())))
        return batches

    @cached_property
    def _wrong(self) -> int:
        return sum(batch.wrong for batch in self._batches)

    @cached_property
    def _alike(self) -> list[str]:
        """The flawed verifiers that the requests do not refute."""
        return [name for name, flawed in _zoo().items() if self._explains(flawed)]

    def _explains(self, other: Verifier) -> bool:
        """Whether another verifier emits the tokens of the code in all requests, but for rounding."""
        differing, allowed = 0, max(1.0, (1 - SAME) * self._wrong)
        for batch in self._batches:
            try:
                emitted = verified_steps(other, batch.fixture, batch.streams).visible
            except (ArgumentError, VerifierFault):
                return False
            differing += int((emitted != batch.emitted).any(dim=1).sum())
            if differing > allowed:
                return False
        return True

    def _at_points(self, wrong: Sequence[Point], right: Sequence[Point]) -> str:
        """Returns the bug, of those that are not refuted, that explains what code does at points; "" if none does."""
        as_wrong, of_wrong = self._agreement(wrong, self._alike, right=False)
        as_right, of_right = self._agreement(right, as_wrong, right=True)
        best = max(
            as_right,
            default="",
            key=lambda name: min(as_wrong[name] - SAME * of_wrong, as_right[name] - SAME * of_right),
        )
        if not best or of_wrong < _FEWEST or as_wrong[best] < SAME * of_wrong or as_right[best] < SAME * of_right:
            return ""
        return f"{_words(best)} (It emits what {best} does in {as_wrong[best]} of {of_wrong} such requests.)"

    def _agreement(self, points: Sequence[Point], names: Iterable[str], right: bool) -> tuple[dict[str, int], int]:
        """In how many requests each of the names emits what the code does, and how many there are.

        What does not come out right or wrong again, as it should, says nothing and is left out. A name is dropped as
        soon as it differs in more requests than it may, since each costs a call.
        """
        batches = defaultdict(list)
        for point in points:
            batches[point.fixture.name, point.fixture.counts, point.fixture.params].append(point)
        same: dict[str, int] = dict.fromkeys(names, 0)
        rule, held = rule_of(self.verifier), 0
        for batch in batches.values():
            fixture = batch[0].fixture
            given = torch.stack([point.given for point in batch], dim=1)
            got = inject(self.verifier, fixture, given).visible
            if rule.has_law:
                again = (got == expected_of(rule, fixture, given)).all(dim=1) == right
                given, got = given[:, again], got[again]
            held += len(got)
            for name in list(same):
                with contextlib.suppress(ArgumentError, VerifierFault):
                    its = inject(_zoo()[name], fixture, given).visible
                    same[name] += int((its == got).all(dim=1).sum())
                differing = held - same[name]
                if len(points) - differing < SAME * len(points):
                    del same[name]
        return same, held
