"""What a drafter is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from jaxtyping import Int64
from torch import Tensor

from specbench.core.conf import config_name
from specbench.core.draft_lengths import FIXED, LengthPolicy
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.models import Engine, Pair
from specbench.sampling import SamplingParams
from specbench.sampling.batch import Batch


class Drafter:
    """Proposes tokens for a batch of requests. Built from its yaml alone, and bound to models afterwards.

    A drafter of your own needs :meth:`propose`. If it has a model, it makes it ``own``, and what that caches follows
    the batch. One that keeps something else for each request has more of the methods here: it keeps it in tensors with
    a row a request, and changes them in place, so that a step can be captured in a CUDA graph.

    Attributes:
        has_probabilities: whether its drafts are sampled, and carry the distributions that they were sampled from;
            False if they are deterministic, so that their q is one-hot.
        needs_draft_model: whether it cannot do without the pair's draft (``pair.draft``).
        drafts_trees: whether its drafts are trees (``Draft.parents``), which only some verifiers take.
        synthetic: whether its drafts stand for no method, so that only a verifier that is synthetic too accepts them.
        capturable: whether a CUDA graph can hold its work; False if the host decides what is drafted.
        engine: the model that these distributions come of, once it is bound; None if there is none.
        own: the model that it alone extends; None if it has none, or shares the target's cache.
        temperature: of the drafts alone; None is the target's.
        policy: when a draft ends although more may be drafted.
        layout: changes whenever memory of its own that a step uses is allocated anew, beside that of ``own``: a
            captured CUDA graph would not notice.
    """

    has_probabilities: ClassVar[bool] = False
    needs_draft_model: ClassVar[bool] = False
    drafts_trees: ClassVar[bool] = False
    synthetic: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    engine: Engine | None = None
    own: Engine | None = None
    temperature: float | None = None
    policy: LengthPolicy = FIXED
    layout: int = 0

    def bind(self, pair: Pair, target: Engine) -> Drafter:
        """A drafter with these settings for these models.

        Args:
            target: the engine that scores; a drafter may share it.
        """
        bound = copy.copy(self)
        bound._attach(pair, target)
        return bound

    def _attach(self, pair: Pair, target: Engine) -> None:
        """Makes whatever the models are needed for."""

    def check_draft(self, given: bool) -> None:
        """Needs no model.

        Args:
            given: whether the pair has a draft.

        Raises:
            ConfigError: it has none, and the drafter needs one.
        """
        if self.needs_draft_model and not given:
            problem = f"drafter={config_name('drafter', self)} drafts with a model of its own"
            remedy = "Give one, or use drafter=layer_skip or drafter=prompt_lookup, which need none."
            raise ConfigError("pair.draft", "null", problem, remedy)

    def check_target(self, config: Any) -> None:
        """Called before weights are read.

        Args:
            config: the target's, as transformers has it.

        Raises:
            ConfigError: a target that these settings do not fit.
        """

    def draft_name(self, target: str, draft: str) -> str:
        """What a trace calls the draft: its distribution q, of which the log-probabilities are.

        Args:
            target, draft: what the pair's models are called.
        """
        return draft if self.temperature is None else f"{draft} at temperature {self.temperature:g}"

    def sampled_with(self, sampling: SamplingParams) -> SamplingParams:
        """What the drafts of a request with these parameters are sampled with."""
        return sampling

    def most_tokens(self, gamma: int) -> int:
        """How many tokens a draft holds for a request at most, if at most gamma of them can be accepted.

        Raises:
            ConfigError: settings that do not fit this gamma.
        """
        return gamma

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """Drafts at most ``limits[b]`` tokens (0 is allowed) after each text, and ``streams.width - 1`` of any; in a
        tree, on each path.

        A drafter that samples turns logits into distributions by ``batch.rows``, draws with the uniforms of
        ``Stream.DRAFT``, and hands on these very rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no propose()")

    def keep_path(self, root: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"]) -> None:
        """Says of a draft that was a tree which path stands; :meth:`commit` follows.

        Args:
            root: tokens of each text.
            path: see :class:`specbench.core.types.Verification`.
        """

    def commit(self, agreed: Int64[Tensor, " B"]) -> None:
        """Says how many tokens of each text and of what was drafted after it still stand; the others were rejected."""
        if self.own is not None:
            self.own.truncate(agreed)

    def ended(self, texts: Sequence[Sequence[int]]) -> None:
        """Says what some requests wrote, each to its end and without its prompt; later drafts may go by it."""

    def forget(self) -> None:
        """Forgets the texts that have ended. What is timed begins with this, so that no round learns from another."""

    def state(self) -> tuple[Tensor, ...]:
        """What a step changes in place and the next one goes by; saved around a trial step, which must not count."""
        return () if self.own is None else self.own.state()

    # What follows the batch: the rows of requests that come, move and go.

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """Forgets all requests and begins with these; a text and what is drafted after it have ``capacity`` tokens."""
        if self.own is not None:
            self.own.start(prompts, capacity)

    def reserve(self, rows: int, capacity: int) -> None:
        """Makes room for so many requests, of texts of so many tokens; nothing is forgotten."""
        if self.own is not None:
            self.own.reserve(rows, capacity)

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        """Takes further requests into these rows of the batch."""
        if self.own is not None:
            self.own.place(prompts, rows)

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """Takes in a piece of each prompt, in place of :meth:`place` if prompts come in pieces
        (``engine.prompt_chunk``); arguments as in ``feed`` of models/engine.py."""
        if self.own is not None:
            self.own.feed(pieces, rows, first)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Writes the requests of some rows to others, whose own are over."""
        if self.own is not None:
            self.own.move(sources, targets)

    def show(self, rows: int, fixed: bool = False) -> None:
        """Says that the batch is the leading rows, so many; ``fixed`` as in :class:`specbench.sampling.batch.Batch`."""
        if self.own is not None:
            self.own.show(rows, fixed)

    def bound(self, longest: int) -> None:
        """Says that no text has more than so many tokens that stand and were fed."""
        if self.own is not None:
            self.own.bound(longest)
