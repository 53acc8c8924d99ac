"""Habits: what tokens of code were seen to depend on, other than its arguments and uniforms, each with its words."""

from collections.abc import Sequence
from dataclasses import dataclass

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
