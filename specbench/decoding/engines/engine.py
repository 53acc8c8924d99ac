"""The base class of decoding engines, which hold the requests that are decoded together and take their steps."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import torch

from specbench.core.checks import check_count
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.core.machine.devices import to_tensor
from specbench.decoding.engines.prompts import PromptQueue
from specbench.decoding.step import StepComponents
from specbench.decoding.step_result import StepReport
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter, Observation
from specbench.models import Features, RowCache, right_padded
from specbench.rules.verifier import Verifier
from specbench.sampling.batch import FULL, RUNNING, STOPPED, Batch

ReadReport = Callable[[], StepReport]  # waits until the step is over


@dataclass(frozen=True)
class Requirements:
    """What an engine is to run.

    Attributes:
        drafter: may be unbound; None decodes plainly.
        batch_size: the largest number of requests decoded together, as far as it is known.
        on_host: the sampling parameter that works on the host (:func:`specbench.sampling.on_host`); "" for none.
        tokens: a rough number of the tokens in float32 that all jobs of the sweep decode, plainly and speculatively; 0
            if it is not known.
    """

    device: torch.device
    drafter: Drafter | None
    verifier: Verifier | None
    batch_size: int = 1
    on_host: str = ""
    tokens: int = 0


class DecodingEngine:
    """Built from its yaml alone, and bound to the components of a step afterwards.

    Every request stands in a row. Rows change as requests come and go: :meth:`admit` and :meth:`retire` return them.

    Args:
        prompt_chunk: tokens of prompts, padding included, that are fed between two steps at most, so that running
            requests do not wait for a long prompt; None feeds whole prompts as requests come.

    Attributes:
        name: the value of the column ``engine`` of results.parquet.
        lag: steps that may have begun before the report of one is read. A request that has ended meanwhile is left as
            it is.
        preparation: seconds spent on preparing steps, such as capturing CUDA graphs.
        batch_sizes: numbers of rows that its steps are made for; empty for any.
    """

    name: ClassVar[str] = ""
    lag: ClassVar[int] = 0
    preparation: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    prompt_chunk: int | None = None

    def __init__(self, prompt_chunk: object = None):
        self.prompt_chunk = None if prompt_chunk is None else check_count("engine.prompt_chunk", prompt_chunk)

    def resolve(self, required: Requirements) -> DecodingEngine:
        """Returns the engine that runs these, checked: this one, unless it chooses another. Needs no model.

        Raises:
            ConfigError: it cannot run them.
        """
        engine = self._choose(required)
        engine._check(required)
        return engine

    def _choose(self, required: Requirements) -> DecodingEngine:
        """Returns the engine that takes the steps."""
        return self

    def _check(self, required: Requirements) -> None:
        """Raises ConfigError for what this engine cannot run."""
        drafter = required.drafter or Drafter()
        if self.prompt_chunk is not None and not drafter.takes_pieces:
            problem = f"drafter={config_name('drafter', drafter)} takes prompts as a whole"
            remedy = "Use engine.prompt_chunk=null, or another drafter."
            raise ConfigError("engine.prompt_chunk", self.prompt_chunk, problem, remedy)

    def bind(self, components: StepComponents, stopwatch: Stopwatch) -> DecodingEngine:
        """Returns the engine that runs these components, with these settings.

        Args:
            stopwatch: receives the seconds in which prompts are fed, under "target" and "draft".

        Raises:
            ConfigError: components that this engine cannot run with.
        """
        bound = copy.copy(self.resolve(Requirements(components.target.device, components.drafter, components.verifier)))
        bound._attach(components, stopwatch)
        return bound

    def _attach(self, components: StepComponents, stopwatch: Stopwatch) -> None:
        self.components, self.stopwatch, self._prompts = components, stopwatch, PromptQueue()

    def reserve(self, requests: int, capacity: int, stops: int) -> None:
        """Allocates memory for a number of requests together.

        Args:
            capacity: tokens of a text and of a block behind it.

        Raises:
            ConfigError: more requests than steps are made for.
        """

    def start(self) -> None:
        """Forgets all requests."""
        raise NotImplementedError

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Adds requests and returns their rows. Feeds their prompts; if these come in pieces, :meth:`feed` does.

        Args:
            batch: the requests, whose tokens are the prompts.
        """
        raise NotImplementedError

    @property
    def feeding(self) -> Set[int]:
        """The rows of requests whose prompts are not fed to the end; steps do nothing for them."""
        return self._prompts.rows

    @torch.inference_mode()
    def feed(self) -> None:
        """Feeds the next pieces of unfinished prompts; a request whose prompt is complete then takes part in steps."""
        assert self.prompt_chunk is not None, "prompts are fed when requests are admitted"
        pieces = self._prompts.take(self.prompt_chunk)
        self._feed(pieces.tokens, pieces.rows, pieces.first)
        finished = [RUNNING if last else FULL for last in pieces.last]
        rows = self._tensor(pieces.rows)
        self._texts.lengths[rows] = self._tensor(pieces.fed) + 1  # the last token of a text is not fed
        self._texts.finished[rows] = self._tensor(finished)

    def _feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """Feeds pieces of prompts to all caches and to a drafter that observes them."""
        components = self.components
        with self.stopwatch.feeding("target"):
            hidden = self._feed_cache(components.target, pieces, rows, first)
        if components.drafter is not None:
            with self.stopwatch.feeding("draft"):
                for cache in components.draft_caches:
                    self._feed_cache(cache, pieces, rows, first)
                self._observe(pieces, rows, first, hidden)

    def _feed_cache(
        self, cache: RowCache, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]
    ) -> Features:
        """Returns the hidden states that the drafter observes, if the cache is the target's."""
        if cache is self.components.target:
            return self.components.target.feed(pieces, rows, first, self.components.features)
        cache.feed(pieces, rows, first)
        return {}

    def _place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int], capacity: int | None = None) -> None:
        """Feeds whole prompts; with a capacity, the caches forget all earlier requests."""
        components, target = self.components, self.components.target
        with self.stopwatch.feeding("target"):
            if capacity is None:
                hidden = target.place(prompts, rows, components.features)
            else:
                hidden = target.start(prompts, capacity, components.features)
        if components.drafter is not None:
            with self.stopwatch.feeding("draft"):
                for cache in components.draft_caches:
                    cache.place(prompts, rows) if capacity is None else cache.start(prompts, capacity)
                self._observe([prompt[:-1] for prompt in prompts], rows, [0] * len(prompts), hidden)

    @torch.inference_mode()
    def _observe(
        self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int], hidden: Features
    ) -> None:
        """Hands tokens of prompts to a drafter that observes them."""
        if self.components.observer is None or not pieces:
            return
        counts, tokens = self._tensor([len(piece) for piece in pieces]), right_padded(pieces, self._device)
        self.components.observer.observe(Observation(self._tensor(rows), tokens, counts, self._tensor(first), hidden))

    @property
    def _texts(self) -> Batch:
        """All rows."""
        raise NotImplementedError

    @property
    def _device(self) -> torch.device:
        return self.components.target.device

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return to_tensor(list(numbers), self._device)

    def _to_be_fed(self, batch: Batch, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> Batch:
        """Queues prompts for :meth:`feed`. Until a prompt is complete, its request is marked as ended.

        Its length is that of the fed tokens and one more, so that a step writes only behind what was fed.
        """
        self._prompts.add(rows, prompts)
        return dataclasses.replace(
            batch, lengths=torch.ones_like(batch.lengths), finished=torch.full_like(batch.finished, FULL)
        )

    def step(self, longest: int) -> ReadReport:
        """Begins a step of all requests; the returned function waits for its end and returns its report.

        Args:
            longest: an upper bound on the tokens of a text that were fed, if the reports of all steps were read.
        """
        raise NotImplementedError

    @torch.inference_mode()
    def retire(self, rows: Sequence[int], cut: Sequence[int]) -> dict[int, int]:
        """Removes the requests in these rows. Returns the new row of each request that moved, by its old row.

        The reports of steps that are under way have the rows as they were.

        Args:
            cut: the rows among them whose text ended for a reason that steps do not see, such as a stop string.
        """
        if cut:
            self._texts.finished[self._tensor(cut)] = STOPPED
        return self._remove(rows)

    def _remove(self, rows: Sequence[int]) -> dict[int, int]:
        raise NotImplementedError


def moves(remaining: Sequence[int]) -> dict[int, int]:
    """Returns the moves that fill the leading rows: each remaining request behind these rows goes into a gap.

    Args:
        remaining: the rows of the remaining requests.

    Returns:
        The new row of each request that moves, by its old row.
    """
    leading = set(range(len(remaining)))
    gaps = sorted(leading.difference(remaining))
    return dict(zip(sorted(set(remaining) - leading), gaps, strict=True))
