"""Steps drawn on small fixtures: counted, and held against what a model of the code foresees."""

import math
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.exactness.draws.alpha_spending import AGAIN, LOOKS, TIMES_AGAIN
from specbench.exactness.draws.probes import Probe
from specbench.exactness.evidence import Evidence
from specbench.exactness.purity.altered_arguments import check_pure
from specbench.exactness.results import COUNTED
from specbench.exactness.settings import deadline_of
from specbench.exactness.statistics.calls import OF_COMPARED, OF_COUNTED, call_sizes
from specbench.exactness.steps import draw, verified_steps
from specbench.exactness.streams import BLOCKS, SMALL_PAIRS, request_streams
from specbench.rules.verifier import Verifier

# Steps of one chunk: what a CPU's cache holds, and where a kernel's scan of a batch's layout is still short.
LARGEST = {"cpu": 2**17, "cuda": 2**16}
FIRST = 32  # steps of the first chunk
FEW = 8  # requests on which it shows whether arguments are altered
FIRST_LOOK = 10_000  # draws; earlier the chi-square limit is far
_APART = BLOCKS // 256  # requests between the first of one fixture and the first of the next
_FOR_NEW_MODELS = 0.2  # of the time, if less is left


def drawn_on_each(probes: Mapping[str, Probe]) -> int:
    """Requests on each small fixture, or on the one with the most."""
    return max((probe.tally.draws for probe in probes.values()), default=0)


class SmallTier:
    """Draws steps on small fixtures side by side.

    No two fixtures share a request, and each has sizes of calls of its own: what is said of the calls of all fixtures
    together (calls.call_bound) takes them to be independent, which a fault of some seeds or sizes would not be else.

    Attributes:
        late: whether the time was up before all steps were drawn.
    """

    def __init__(
        self, verifier: Verifier, probes: Mapping[str, Probe], seed: int, device: torch.device, evidence: Evidence
    ):
        self.verifier, self.device, self.evidence, self.seed = verifier, device, evidence, seed
        self.probes = probes
        self.late = False
        self.chunk = FIRST  # steps drawn at once; each further chunk is twice as large, up to LARGEST

    def looks(self, draws: int, seconds: float | int, report: Callable[[str], None]) -> Iterator[float]:
        """Draws, and yields when the tests are to be looked at: the share of the false alarm for that look.

        What code did otherwise than its models foresee is followed up between two looks; AGAIN is yielded after that.

        Args:
            seconds: limit for all of them; 0 is no limit.
        """
        deadline = deadline_of(seconds)
        for share, part in LOOKS:
            wanted = max(int(draws * share), min(FIRST_LOOK, draws))
            if wanted > drawn_on_each(self.probes):
                report(f"{wanted:,} draws a fixture")
            self.late = self.draw(dict.fromkeys(self.probes, wanted), deadline)
            yield part if not self.late else LOOKS[-1][1]
            if self.late:
                return
            for _ in range(TIMES_AGAIN if share == 1.0 else 1):
                if time.perf_counter() > deadline:
                    break
                anew = [name for name, probe in self.probes.items() if probe.follow_up(self.seed)]
                if anew:  # without draws nothing bounds a new model
                    deadline = max(deadline, time.perf_counter() + _FOR_NEW_MODELS * seconds)
                if not anew or share < 1.0:
                    break
                report(f"followed up on {', '.join(anew)}: {draws:,} draws anew")
                self.late |= self.draw({name: self.probes[name].tally.draws + draws for name in anew}, deadline)
                yield AGAIN

    def draw(self, wanted: dict[str, int], deadline: float = math.inf) -> bool:
        """Draws until every fixture has as many steps as wanted; returns whether the deadline cut that short.

        A fixture that is not named in ``wanted`` is left alone.
        """
        while True:
            open_ = {
                name: probe.tally
                for name, probe in self.probes.items()
                if name not in self.evidence.unsupported and probe.tally.draws < wanted.get(name, 0)
            }
            if not open_:
                return False
            size = min(self.chunk, *(wanted[name] - tally.draws for name, tally in open_.items()))
            for number, (name, probe) in enumerate(self.probes.items()):
                if name not in open_:
                    continue
                draws = probe.tally.draws
                if draws and time.perf_counter() > deadline:
                    return True
                first = SMALL_PAIRS + number * _APART + draws
                streams = request_streams(self.seed, first, size, probe.fixture.gamma + 1, self.device)
                sizes = call_sizes(size, self.seed + first, OF_COUNTED if probe.method == COUNTED else OF_COMPARED)
                self._add(probe, streams, sizes)
                self.evidence.batch = max(self.evidence.batch, *sizes)
            self.chunk = min(2 * self.chunk, LARGEST[self.device.type])

    def _add(self, probe: Probe, streams: Streams, sizes: list[int]) -> None:
        try:
            if probe.tally.draws == 0:
                few = Streams(streams.seeds[:FEW].clone(), streams.positions[:FEW].clone(), streams.width)
                check_pure(self.verifier, draw(self.verifier, probe.fixture, few))
            steps = verified_steps(self.verifier, probe.fixture, streams, sizes)
        except ArgumentError as error:
            self.evidence.unsupported[probe.fixture.name] = str(error)
            return
        probe.check(steps, sizes)
