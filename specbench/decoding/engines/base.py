"""What an engine is: it holds the requests that are decoded side by side, and takes their steps."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence, Set
from typing import ClassVar

import torch

from specbench.core.checks import check_count
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.decoding.engines.prompts import PromptQueue
from specbench.decoding.step import Parts, Report
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter
from specbench.models import Engine
from specbench.sampling.batch import FULL, RUNNING, STOPPED, Batch
from specbench.verifiers import Verifier

Follower = Engine | Drafter  # what keeps something in a row for each request
Reading = Callable[[], Report]  # waits until the step is over


class DecodingEngine:
    """Built from its yaml alone, and bound to the parts of a step afterwards.

    Every request stands in a row. Rows change as requests come and go; who needs to know which request stands where
    goes by what :meth:`admit` and :meth:`retire` return.

    Args:
        prompt_chunk: tokens of prompts, padding included, that are fed between two steps at most, so that requests
            which decode wait for no more; None feeds whole prompts as requests come.

    Attributes:
        name: what results.parquet says in its column ``engine``.
        lag: steps that may have begun before the report of one is read; a request that has ended meanwhile is left as
            it is.
        preparation: seconds that it took to make ready what steps are taken with, such as CUDA graphs.
        batch_sizes: numbers of rows that its steps are made for; empty for any.
        prompt_chunk: as it was given.
    """

    name: ClassVar[str] = ""
    lag: ClassVar[int] = 0
    preparation: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    prompt_chunk: int | None = None

    def __init__(self, prompt_chunk: object = None):
        self.prompt_chunk = None if prompt_chunk is None else check_count("engine.prompt_chunk", prompt_chunk)

    def chosen(
        self, device: torch.device, drafter: Drafter | None, verifier: Verifier | None, on_host: str = ""
    ) -> DecodingEngine:
        """The engine that runs these: this one, unless its choice is left to them.

        Args:
            on_host: what of the sampling parameters works on the host (:func:`specbench.sampling.on_host`).
        """
        return self

    def check(
        self,
        device: torch.device,
        drafter: Drafter | None,
        verifier: Verifier | None,
        batch_size: int = 1,
        on_host: str = "",
    ) -> None:
        """Raises ConfigError for what this engine cannot run with. Needs no model; the drafter may be unbound.

        Args:
            batch_size: the most requests side by side, as far as that is known.
            on_host: as in :meth:`chosen`.
        """
        drafter = drafter or Drafter()
        kind = type(drafter)
        keeps = kind.place is not Drafter.place or kind.start is not Drafter.start
        if self.prompt_chunk is not None and keeps and kind.feed is Drafter.feed:
            problem = f"drafter={config_name('drafter', drafter)} keeps something for each request, and has no feed()"
            remedy = "Use engine.prompt_chunk=null, or give it feed()."
            raise ConfigError("engine.prompt_chunk", self.prompt_chunk, problem, remedy)

    def bind(self, parts: Parts, stopwatch: Stopwatch) -> DecodingEngine:
        """An engine with these settings for these parts.

        Args:
            stopwatch: gets the seconds in which prompts are fed, under "target" and "draft".

        Raises:
            ConfigError: parts that this engine cannot run with.
        """
        bound = copy.copy(self)
        bound._attach(parts, stopwatch)
        return bound

    def _attach(self, parts: Parts, stopwatch: Stopwatch) -> None:
        self.check(parts.target.device, parts.drafter, parts.verifier)
        self.parts, self.stopwatch, self._prompts = parts, stopwatch, PromptQueue()
        named = {"target": parts.target, "draft": parts.drafter}
        self.followers: dict[str, Follower] = {name: each for name, each in named.items() if each is not None}

    def reserve(self, requests: int, capacity: int, stops: int) -> None:
        """Makes room for so many requests side by side, each with so many ids that end it, and texts of so many tokens
        with a block behind them.

        Raises:
            ConfigError: more requests than steps are made for.
        """

    def start(self) -> None:
        """Forgets all requests."""
        raise NotImplementedError

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Takes in requests, and returns the rows that they stand in. Feeds their prompts, or leaves that to
        :meth:`feed`, if they come in pieces.

        Args:
            batch: the requests, whose tokens are the prompts.
        """
        raise NotImplementedError

    @property
    def feeding(self) -> Set[int]:
        """The rows of requests whose prompts are not whole; steps do nothing for them."""
        return self._prompts.rows

    @torch.inference_mode()
    def feed(self) -> None:
        """Feeds the next pieces of the prompts that are not whole; whose prompt is whole then takes part in steps."""
        assert self.prompt_chunk is not None, "prompts are fed when requests are admitted"
        pieces = self._prompts.take(self.prompt_chunk)
        for name, each in self.followers.items():
            with self.stopwatch(name):
                each.feed(pieces.tokens, pieces.rows, pieces.first)
        device, finished = self.parts.target.device, [RUNNING if last else FULL for last in pieces.last]
        rows = torch.tensor(pieces.rows, device=device)
        self._texts.lengths[rows] = torch.tensor(pieces.fed, device=device) + 1  # as of any text, one token is not fed
        self._texts.finished[rows] = torch.tensor(finished, device=device)

    @property
    def _texts(self) -> Batch:
        """All rows."""
        raise NotImplementedError

    def _to_be_fed(self, batch: Batch, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> Batch:
        """Queues prompts for :meth:`feed`. Until theirs are whole, requests stand in their rows like ones that have
        ended, as texts of what was fed and one token more: a step writes nothing there but behind what was fed."""
        self._prompts.add(rows, prompts)
        return dataclasses.replace(
            batch, lengths=torch.ones_like(batch.lengths), finished=torch.full_like(batch.finished, FULL)
        )

    def step(self) -> Reading:
        """Begins a step of all requests; what it returns waits for its end and tells what happened."""
        raise NotImplementedError

    @torch.inference_mode()
    def end(self, rows: Sequence[int]) -> None:
        """Ends requests for a reason that steps do not see, such as the text that their tokens are."""
        self._texts.finished[torch.tensor(rows, device=self.parts.target.device)] = STOPPED

    def retire(self, rows: Sequence[int]) -> dict[int, int]:
        """Takes the requests in these rows out. Returns where those that had to move stand now, by where they stood.

        The reports of steps that are under way tell of the rows as they were.
        """
        raise NotImplementedError

    def bound(self, longest: int) -> None:
        """Says that no text has more than so many tokens that were fed."""


def moves(kept: Sequence[int]) -> dict[int, int]:
    """How the leading rows can be filled with the requests to keep: each that stands behind them goes into a gap.

    Args:
        kept: their rows.

    Returns:
        Where each of these goes, by its row; one that stays is not there.
    """
    leading = set(range(len(kept)))
    gaps = sorted(leading.difference(kept))
    return dict(zip(sorted(set(kept) - leading), gaps, strict=True))
