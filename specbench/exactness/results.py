"""The rows of evidence: tests, habits, bounds, calls in long use, a failing request.

The names of tests and of habits are here too, each with what a certificate says of it. A habit is what tokens of code
were seen to depend on, other than its arguments and uniforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.metrics.exactness_rows import BoundRow

JOINT, ACCEPTANCE, FORM, EXTREMES = "joint", "acceptance", "form", "extremes"
PAIRED, CLASSES, LAW = "differences", "classes of ids", "formulas of the rule"
SUCCESSIVE, LAST_FIRST, NEIGHBOURS, TWINS = "successive steps", "last and next", "neighbours", "twins"
HARD = (FORM, EXTREMES, LAW)  # one failure rejects; they have no false alarm
ALL, LARGE = "all of D", "large vocabularies"  # several strata together
DRAWN = "calls of D"  # in the place of a fixture
LOCATED, RULE, COUNTED = "located", "rule", "counted"  # what requests on a small fixture are held against
# What every test compares, as a certificate says it.
COMPARES = {
    FORM: (
        "whether each result is a prefix of the request's draft, one token of the vocabulary that the target "
        "allows, and padding (-1)"
    ),
    EXTREMES: "the same with uniforms at the very ends of their range, 2^-53 and 1 - 2^-53, for every draft",
    JOINT: (
        "how often each token was emitted after each prefix with the target's probabilities (a likelihood-ratio "
        "test of the joint distribution of a whole step)"
    ),
    PAIRED: (
        "emitted with expected tokens, in requests where they differ: over many requests both should have each "
        "token equally often (bets on each token)"
    ),
    ACCEPTANCE: "how many drafted tokens were accepted with what its rule accepts; no test of losslessness",
    CLASSES: (
        "how the emitted tokens are spread over 8 cells of equal probability along orders of the ids (by p, by q, "
        "by p / q, by number, by lane), beside the target (bets on each cell)"
    ),
    LAW: (
        "the distribution of each token of a step by the formulas of a rule of one's own with the target's, in "
        "closed form"
    ),
    SUCCESSIVE: "the first tokens of two successive steps of a request, which should be independent",
    LAST_FIRST: "the last token of a step and the first of the next, which should be independent",
    NEIGHBOURS: "the first tokens of two requests of a batch, 1, 2, 4, ... places apart, which should be independent",
    TWINS: "the first tokens of two requests whose seeds or positions differ in one bit, which should be independent",
}
SEED, POSITION, STREAMS, TWICE, PLACE, COMPANY, SIZE, GENERATOR = (
    "another seed",
    "another position",
    "the same uniforms, given",
    "called again",
    "another place in the batch",
    "other company",
    "a smaller batch",
    "another state of PyTorch's generator",
)


@dataclass(frozen=True)
class Row:
    """One test of one fixture; the certificate's page explains its columns (certificate/page.md).

    Attributes:
        test: one of COMPARES.
        p_value: of the last look.
        rejected_at: draws at the look that rejected it; None where none did.
        untested: tokens in cells that are too rare to be tested each, or that were expected there, if that is more.
        gates: whether its rejection says that the verifier is not lossless (acceptance: that it is another rule).
    """

    fixture: str
    test: str
    draws: int
    statistic: float
    dof: int
    p_value: float
    rejected_at: int | None = None
    untested: float = 0.0
    detectable: float | None = None
    upper_bound: float | None = None
    gates: bool = True

    @staticmethod
    def of_failures(fixture: str, test: str, draws: int, failures: int, gates: bool = True) -> Row:
        """A test that one failure rejects (HARD): the statistic is their number, and the p-value 0 or 1."""
        return Row(fixture, test, draws, float(failures), 0, float(failures == 0), gates=gates)

    @property
    def key(self) -> tuple[str, str]:
        """Tells the test from the others of a run."""
        return self.fixture, self.test


@dataclass(frozen=True, kw_only=True)
class Bound(BoundRow):
    """A row of bounds.parquet, and what a certificate reads of it."""

    @property
    def by_counts(self) -> bool:
        """Whether ``tv`` is what counts say, since requests were held against nothing whose bias is known."""
        return self.hidden is None or self.located is None


@dataclass(frozen=True, kw_only=True)
class StratumRow:
    """Calls of one stratum of the input distribution D (inputs/distribution.py), or of several together.

    The certificate's page explains its columns (certificate/page.md). Bounds are None where the verifier's rule has
    no formulas here, or it draws drafts of its own.

    Attributes:
        rule_checked, rule_wrong: of a rule that is not registered as proved, requests on which its formulas were held
            against the target, and those on which they are not the target's distribution.
        rule_largest: the largest difference, total variation a step.
        along: upper bound on the total variation of a token's cell along orders of the ids (statistics/cells.py), where
            nothing else is known; those of all strata hold together, and that of D is their mean.
    """

    stratum: str
    reason: str
    probability: float
    calls: int = 0
    requests: int = 0
    rows: int = 0
    refused: int = 0
    differing_calls: int | None = None
    differing: int | None = None
    rounding: int | None = None
    structural: int | None = None
    code: float | None = None
    rule_checked: int = 0
    rule_wrong: int = 0
    rule_largest: float | None = None
    rule: float | None = None
    tv: float | None = None
    along: float | None = None


@dataclass(frozen=True)
class Failure:
    """A request that shows what is wrong, as text for a certificate.

    Attributes:
        fixture, reason: where, and why that fixture is there.
        lines: what was drafted, with which distributions and uniforms, what was emitted and what should have been.
        cause: what usually makes it so; empty where nothing is known.
    """

    fixture: str
    reason: str
    lines: tuple[str, ...]
    cause: str = ""


@dataclass(frozen=True)
class LongUseRow:
    """What long use showed.

    Attributes:
        calls: made between the two times that the recorded requests were verified.
        seconds: that these calls took.
        requests: recorded at the beginning and verified again at the end.
        new_requests: verified at the end for the first time, since a full cache may still hold those of the beginning.
        unsteady: recorded requests that came out otherwise when they were made twice in succession at the beginning.
        changed: recorded requests whose tokens at the end are not those of the beginning.
        unlike_fresh: recorded and new requests whose tokens at the end are not those of an unused copy of the object;
            None if it cannot be copied.
        unlike_rule: recorded and new requests whose tokens at the end are not the rule's, those aside that rounding
            explains; None if its rule has no formulas.
        rechecked: requests verified again between the other calls.
        changed_between: of these, those whose tokens are not those of the beginning.
        first_changed: the number of calls after which one of them was first seen; None if there is none.
    """

    calls: int
    seconds: float
    requests: int
    new_requests: int
    unsteady: int
    changed: int
    unlike_fresh: int | None
    unlike_rule: int | None
    rechecked: int
    changed_between: int
    first_changed: int | None


@dataclass(frozen=True)
class HabitKind:
    """A habit in words.

    Attributes:
        does: what code with the habit does.
        when: its tokens were seen to differ.
        excluded_by: habits that make the tokens of its condition differ too, so that a difference does not prove this
            one. Noise is dealt out by places, a permutation changes the neighbours too, and a request alone is at
            another place.
    """

    does: str
    when: str
    excluded_by: tuple[str, ...] = (TWICE,)


KINDS = {
    TWICE: HabitKind(
        "keeps state from call to call, or draws noise of its own", "when the same call was made again", ()
    ),
    GENERATOR: HabitKind(
        "draws from PyTorch's global generator",
        "from another state of that generator, and none when the same state was set again",
    ),
    STREAMS: HabitKind(
        "does not draw the uniforms that its streams have for a seed and position",
        "when the same uniforms were given as numbers",
    ),
    SEED: HabitKind("reads seeds beside the uniforms", "with other seeds and the same uniforms"),
    POSITION: HabitKind("reads positions beside the uniforms", "with other positions and the same uniforms"),
    COMPANY: HabitKind(
        "depends on the other requests of the batch",
        "when every other request of the batch was replaced",
        (TWICE, GENERATOR),
    ),
    PLACE: HabitKind(
        "depends on a request's place in the batch",
        "when the batch was put in another order",
        (TWICE, GENERATOR, COMPANY),
    ),
    SIZE: HabitKind(
        "depends on how many requests the batch has", "in a smaller batch", (TWICE, GENERATOR, COMPANY, PLACE)
    ),
}


@dataclass(frozen=True)
class Habit:
    """What code was seen to depend on, or not.

    Attributes:
        name: what was changed between two calls that should give the same tokens.
        requests: put before it twice.
        differing: that came out otherwise.
        structural: those among them of which one outcome is not the rule's, beyond rounding; None without its formulas.
    """

    name: str
    requests: int
    differing: int
    structural: int | None = None


def established(habits: Sequence[Habit]) -> list[Habit]:
    """Returns the habits that are proved: the others that would explain the same difference made none."""
    differing = {habit.name for habit in habits if habit.differing}
    return [habit for habit in habits if habit.differing and differing.isdisjoint(KINDS[habit.name].excluded_by)]
