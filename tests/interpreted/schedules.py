"""Schedules for programs that take turns (turns.py): which of them goes on.

Each is the same for the same seed, and serves one launch or several.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.interpreted.turns import Launch, Program, Schedule


@dataclass
class InOrder:
    """One after another, as far as they do not wait."""

    def choose(self, ready: Sequence[Program]) -> Program:
        return ready[0]


@dataclass
class Uniform:
    """Each time any of them with equal probability, of those that are not held back if there are any."""

    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, ready: Sequence[Program]) -> Program:
        return self._random.choice([program for program in ready if not self.holds(program)] or ready)

    def holds(self, program: Program) -> bool:
        """Whether a program stops until all others have ended, wait or are held back too."""
        return False


@dataclass
class Delayed(Uniform):
    """One program stops after ``after`` accesses."""

    index: int
    after: int

    def holds(self, program: Program) -> bool:
        return program.index == self.index and program.accesses >= self.after


@dataclass
class Held(Uniform):
    """Every program stops before each atomic, or after.

    What is counted or published too late shows if it is held before; what is done after that and should not, after.
    """

    before: bool

    def holds(self, program: Program) -> bool:
        return program.before_atomic if self.before else program.after_atomic


@dataclass
class Priorities:
    """The program of the highest priority. Priorities are drawn, and ``falls`` times that of who runs falls below all.

    A fault that shows once falls + 1 pairs of accesses come in a certain order is found with a probability of at least
    1 / (programs * accesses^falls): Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding
    Bugs", ASPLOS 2010.
    """

    accesses: int  # of all programs, about
    falls: int
    seed: int
    _priorities: dict[int, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._random, self._made = random.Random(self.seed), 0
        self._at = {self._random.randrange(self.accesses): -1.0 - fall for fall in range(self.falls)}

    def choose(self, ready: Sequence[Program]) -> Program:
        for program in ready:
            self._priorities.setdefault(program.index, self._random.random())
        if self._made in self._at:
            self._priorities[self._first(ready).index] = self._at[self._made]
        self._made += 1
        return self._first(ready)

    def _first(self, ready: Sequence[Program]) -> Program:
        return max(ready, key=lambda program: self._priorities[program.index])


def orders(launches: Sequence[Launch], seed: int, few: int) -> Iterator[tuple[Schedule, int]]:
    """A few schedules of each kind for launches like these, each with how many programs are resident."""
    longest = max(launches, key=lambda launch: len(launch.programs)).programs
    accesses = sum(program.accesses for launch in launches for program in launch.programs)
    chosen = random.Random(seed)
    for number in range(few):
        delayed = chosen.choice([program for program in longest if program.accesses])
        for schedule in (
            Uniform(chosen.getrandbits(32)),
            Held(chosen.getrandbits(32), before=True),
            Held(chosen.getrandbits(32), before=False),
            Delayed(index=delayed.index, after=chosen.randrange(delayed.accesses), seed=chosen.getrandbits(32)),
            Priorities(accesses, number % 3, chosen.getrandbits(32)),
        ):
            yield schedule, len(longest)
        yield Uniform(chosen.getrandbits(32)), chosen.randint(2, len(longest))
