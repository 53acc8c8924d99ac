"""The base class of drafters: ``propose`` drafts tokens, ``observe`` reads what stands, ``caches`` follow the batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from specbench.core.conf import config_name
from specbench.core.draft_lengths import FIXED, LengthPolicy
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.models import CachedModel, Feature, Features, Pair, RowCache
from specbench.sampling import SamplingParams
from specbench.sampling.batch import Batch


@dataclass(frozen=True)
class Observation:
    """Tokens that the target was fed and that stand: part of a prompt, or what a step kept.

    After a step these are the last token of the text, as it was before the step, and the accepted tokens. The token
    that the step emitted behind them is fed by the next step.

    Attributes:
        rows: the batch rows of n requests.
        token_ids: right-padded.
        counts: tokens of each request; 0 for a row without a request.
        first: the position in the text of each request's first token.
        features: the requested hidden states after each token, [n, width, hidden size], by name.
    """

    rows: Int64[Tensor, " n"]
    token_ids: Int64[Tensor, "n width"]
    counts: Int64[Tensor, " n"]
    first: Int64[Tensor, " n"]
    features: Features

    def after_last(self, feature: Feature, before: Float[Tensor, "n hidden"]) -> Float[Tensor, "n hidden"]:
        """Returns the hidden state after each request's last token; the state in ``before`` if it has no token here."""
        states = self.features[feature]
        if states.shape[1] == 0:
            return before
        rows = torch.arange(len(states), device=states.device)
        return torch.where((self.counts > 0)[:, None], states[rows, (self.counts - 1).clamp(min=0)], before)


class Drafter:
    """Proposes tokens for a batch of requests. It is built from its yaml alone, and bound to models afterwards.

    A drafter needs :meth:`propose`. Whatever it stores for each request it names in ``caches``, which the decoding
    engine moves, truncates and reserves with the target's own cache. If it reads hidden states of the target, it names
    them in ``features`` and receives them in :meth:`observe`.

    Attributes:
        has_probabilities: whether its drafts are sampled, and carry the distributions that they were sampled from. If
            not, they are deterministic, so that their q is one-hot.
        needs_draft_model: whether it requires the pair's draft (``pair.draft``).
        drafts_trees: whether its drafts are trees (``Draft.parents``), which only some verifiers take.
        synthetic: whether its drafts belong to no method, so that only a synthetic verifier accepts them.
        capturable: whether a CUDA graph can hold its work; False if the host decides what is drafted.
        takes_free_rows: of a drafter that decides on the host: whether rows of its batches may be without a request, as
            in compiled steps on a CPU, whose first step is taken twice.
        takes_pieces: whether its caches take prompts in pieces (``engine.prompt_chunk``).
        features: the hidden states of the target that :meth:`observe` reads: "last", which the output layer reads, or
            the number of a layer, from 1.
        caches: its memory with a row for each request, the cache of a draft model included; set when it is bound. The
            target's cache does not belong here, even if the drafter shares it.
        model: the model that q comes from; None if there is none, or if q comes from hidden states of the target.
        temperature: of the drafts alone; None is the target's.
        policy: when a draft ends although more tokens may be drafted.
        source: what q is the distribution of, in words, with {target} and {draft} for the names of the models.
    """

    has_probabilities: ClassVar[bool] = False
    needs_draft_model: ClassVar[bool] = False
    drafts_trees: ClassVar[bool] = False
    synthetic: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    takes_free_rows: ClassVar[bool] = False
    takes_pieces: ClassVar[bool] = True
    features: Sequence[Feature] = ()
    caches: tuple[RowCache, ...] = ()
    model: CachedModel | None = None
    temperature: float | None = None
    policy: LengthPolicy = FIXED
    source: str = "{draft}"

    @property
    def rates_any_text(self) -> bool:
        """Whether q is known at the tokens of any text, not of drafts alone; once bound."""
        return self.has_probabilities and self.model is not None

    def bind(self, pair: Pair, target: CachedModel) -> Drafter:
        """Returns a drafter with these settings for these models.

        Args:
            target: scores drafts; a drafter may share its cache.
        """
        bound = copy.copy(self)
        bound._attach(pair, target)
        return bound

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        """Makes what needs the models: ``caches`` and ``model`` among them."""

    def check(self, has_draft: bool | None = None, target_config: Any = None) -> None:
        """Called before weights are read; checks what is known by then.

        Args:
            has_draft: whether the pair has a draft model; None if that is not known yet.
            target_config: the target's configuration, as transformers has it; None if it is not read yet.

        Raises:
            ConfigError: the pair has no draft and the drafter needs one, or the target does not fit the settings.
        """
        if self.needs_draft_model and has_draft is False:
            problem = f"drafter={config_name('drafter', self)} drafts with a model of its own"
            remedy = "Give one, or use drafter=layer_skip or drafter=prompt_lookup, which need none."
            raise ConfigError("pair.draft", "null", problem, remedy)

    def sampled_with(self, sampling: SamplingParams) -> SamplingParams:
        """Returns the parameters that the drafts of a request with ``sampling`` are sampled with."""
        return sampling

    def most_tokens(self, gamma: int) -> int:
        """Returns the most tokens of a request's draft of which gamma can be accepted.

        Raises:
            ConfigError: settings that do not fit this gamma.
        """
        return gamma

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """Returns a draft of at most ``limits[b]`` tokens (possibly 0) after each text, in a tree on each path.

        No request has more than ``streams.width - 1``, which the host knows. A drafter that samples turns logits into
        distributions by ``batch.rows``, draws with the uniforms of ``Stream.DRAFT``, and returns these very rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no propose()")

    def observe(self, observation: Observation) -> None:
        """Receives the tokens that stand and were fed to the target, with the hidden states named in ``features``.

        Called for prompts when they are placed or fed, and at the end of every step, after ``caches`` were truncated.
        Inside a step it must not read a tensor on the host.
        """

    def ended(self, texts: Sequence[Sequence[int]]) -> None:
        """Receives complete continuations, without their prompts; later drafts may depend on them."""

    def forget(self) -> None:
        """Forgets texts that have ended. Each timed round begins with this, so that none learns from another."""


def draft_name(drafter: Drafter, target: str, draft: str) -> str:
    """Returns the name in a trace of the distribution q, of which the recorded log-probabilities are.

    Args:
        target, draft: the names of the pair's models.
    """
    name = drafter.source.format(target=target, draft=draft)
    return name if drafter.temperature is None else f"{name} at temperature {drafter.temperature:g}"
