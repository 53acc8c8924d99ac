"""The types every part speaks: LogitRows, Draft, Verification (and Streams, in rng.py).

Target p and draft q have one form, so that a verifier never has to guess what was sampled from what. Requests are
ragged and flattened, as serving engines hold them: request b owns ``num_draft_tokens[b]`` consecutive draft rows and
``num_draft_tokens[b] + 1`` consecutive target rows, the last of which is its bonus row. A draft may be padded instead:
then every request owns as many rows, whatever it drafted, and no shape depends on what only the device knows.

A draft is a chain, each token of which follows the one before it, or a tree, in which several tokens may follow one.
Target rows are the same for both: the first of a request is for what follows its text, row i + 1 for what follows its
drafted token i. In a chain that is the row of token i + 1, in a tree the row of all children of token i.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from specbench.core import trees

PADDING = -1


@dataclass(frozen=True)
class LogitRows:
    """n distributions over a vocabulary of V tokens, as logits plus three numbers a row.

    ``prob(x) = exp(logit(x) / temperature - log_normalizer)`` where ``logit(x) >= cutoff``, else 0. Temperature 0 means
    all mass on the argmax, the lowest index on ties; such a row's cutoff and log_normalizer are not used. Temperature,
    top-k, top-p and min-p all reduce to this form, so a kernel can fold them into its loads and nothing of vocabulary
    size is copied or sorted after :func:`specbench.sampling.logit_rows` made the rows.

    Attributes:
        logits: as the model gave them (bf16, fp16 or fp32), rows at any stride, last dimension contiguous.
        temperature: >= 0.
        cutoff: tokens with a lower logit have probability 0; -inf keeps all. Tokens tied with the cutoff are kept.
        log_normalizer: log sum over kept x of exp(logit(x) / temperature), float64; None where nobody has computed it
            yet, and no cutoff removes anything: a fused verifier finds it on its way, others ask ``normalizer``.
    """

    logits: Shaped[Tensor, "n V"]
    temperature: Float[Tensor, " n"]
    cutoff: Float[Tensor, " n"]
    log_normalizer: Float[Tensor, " n"] | None

    def __len__(self) -> int:
        return self.raw.shape[0]

    @property
    def mask(self) -> Any:
        """The specbench.core.masked_rows.Mask that readers of ``raw`` still have to apply; None for none."""
        return None

    @property
    def pending(self) -> Any:
        """The specbench.kernels.launch_shape.Pending that readers of ``raw`` still have to apply; None for none."""
        return None

    @property
    def raw(self) -> Tensor:
        """The logits as they lie in memory: ``logits``, unless there is a mask or anything pending."""
        return self.logits

    def select(self, rows: Int64[Tensor, " m"]) -> LogitRows:
        """The rows at the given indices, in that order (copies them)."""
        known = self.__dict__.get("normalizer", self.log_normalizer)
        return LogitRows(
            self.logits[rows], self.temperature[rows], self.cutoff[rows], None if known is None else known[rows]
        )

    @staticmethod
    def interleave(steps: Sequence[LogitRows]) -> LogitRows:
        """Steps of [B] rows each, as [B * len(steps)] rows in which those of one request follow one another."""
        return steps[0].followed_by(steps[1:])

    def followed_by(self, others: Sequence[LogitRows]) -> LogitRows:
        """:meth:`interleave` of these and the others."""
        return LogitRows(
            *(
                torch.stack([getattr(rows, name) for rows in (self, *others)], dim=1).flatten(0, 1)
                for name in ("logits", "temperature", "cutoff", "normalizer")
            )
        )

    def normalized(self, log_normalizer: Float[Tensor, " n"]) -> LogitRows:
        """The same rows, whose normaliser somebody has found."""
        return LogitRows(self.logits, self.temperature, self.cutoff, log_normalizer)

    @cached_property
    def normalizer(self) -> Float[Tensor, " n"]:
        """``log_normalizer``, computed in float64 where it is not known."""
        if self.log_normalizer is not None:
            return self.log_normalizer
        temperature = torch.where(self.temperature > 0, self.temperature, 1).double()
        logits = self.logits.double()
        if _may_hold(self.cutoff > -torch.inf):
            logits = torch.where(logits < self.cutoff.double()[:, None], -torch.inf, logits)  # a NaN is kept, and shows
        return torch.logsumexp(logits / temperature[:, None], dim=-1)

    @cached_property
    def argmax(self) -> Int64[Tensor, " n"]:
        """The lowest index among each row's largest logits."""
        return self.logits.argmax(dim=-1)

    def probs(self) -> Float64[Tensor, "n V"]:
        """The dense distributions in float64, for reference code."""
        temperature = torch.where(self.temperature > 0, self.temperature, 1).double()
        logits = self.logits.double()
        probs = (logits / temperature[:, None]).sub_(self.normalizer.double()[:, None]).exp_()
        if _may_hold(self.cutoff > -torch.inf):
            probs.masked_fill_(logits < self.cutoff.double()[:, None], 0.0)
        greedy = self.temperature == 0
        if _may_hold(greedy):
            probs.masked_fill_(greedy[:, None], 0.0)
            probs[torch.arange(len(self), device=probs.device), self.argmax] += greedy.double()
        return probs

    def prob(self, token_ids: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """Each row's probability of one token, without building the dense rows."""
        logit = self.logits.gather(1, token_ids[:, None])[:, 0].double()
        temperature = torch.where(self.temperature > 0, self.temperature, 1).double()
        random = torch.exp(logit / temperature - self.normalizer.double()) * (logit >= self.cutoff.double())
        if not _may_hold(self.temperature == 0):
            return random
        return torch.where(self.temperature > 0, random, (token_ids == self.argmax).double())

    def finite(self) -> Bool[Tensor, " n"]:
        """False for a row with a NaN or +inf logit, which shows in its normaliser; nothing can sample from it."""
        return self.normalizer.isfinite()


def _may_hold(condition: Bool[Tensor, " n"]) -> bool:
    """Returns whether any row may meet a condition. A CPU looks, which takes less than an operation on the rows does;
    for a GPU it is always True, since the answer would have to be waited for."""
    return not condition.is_cpu or bool(condition.any())


@dataclass(frozen=True)
class Draft:
    """Drafted tokens of B requests, flattened: n = sum of num_draft_tokens, or B * max_draft_tokens where padded.

    Attributes:
        token_ids: drafted tokens.
        rows: the distributions q that the tokens were sampled from; None for a deterministic draft, whose q is one-hot.
        num_draft_tokens: tokens drafted by each request, 0 included.
        max_draft_tokens: a bound on num_draft_tokens known to the host, so that no shape depends on device data.
        padded: every request owns max_draft_tokens draft rows and one target row more. Its first num_draft_tokens[b]
            draft rows count, and as many target rows and the next; what the others hold is not looked at, but for the
            ids, which are of the vocabulary, and the parents, which are those of a tree. A verifier takes such drafts
            only if it says so (``takes_padded``).
        parents: None for a chain. For a tree, which drafted token each one follows, as its index among the rows of its
            own request; -1 if it follows the text. A token stands behind its parent, and siblings stand in the order
            in which they were drawn. So the first k tokens are a tree too, and num_draft_tokens may cut it anywhere.
            ``rows`` then holds what each token was drawn from given its earlier siblings. A verifier takes trees only
            if it says so (``takes_trees``).
        depth: of a tree, a bound on the tokens of its longest path known to the host; None for a chain.
    """

    token_ids: Int64[Tensor, " n"]
    rows: LogitRows | None
    num_draft_tokens: Int64[Tensor, " B"]
    max_draft_tokens: int
    padded: bool = False
    parents: Int64[Tensor, " n"] | None = None
    depth: int | None = None

    @property
    def longest(self) -> int:
        """The most tokens that a request can accept, those of the longest path, or all of a chain."""
        return self.max_draft_tokens if self.depth is None else self.depth

    @cached_property
    def first_row(self) -> Int64[Tensor, " B"]:
        """The index of each request's first draft row; its first target row is ``first_row[b] + b``."""
        if self.padded:
            requests = torch.arange(len(self.num_draft_tokens), device=self.token_ids.device)
            return requests * self.max_draft_tokens
        return self.num_draft_tokens.cumsum(0) - self.num_draft_tokens

    @cached_property
    def request_of_row(self) -> Int64[Tensor, " n"]:
        """The request that owns each draft row."""
        requests = torch.arange(len(self.num_draft_tokens), device=self.token_ids.device)
        if self.padded:
            return requests.repeat_interleave(self.max_draft_tokens)
        return requests.repeat_interleave(self.num_draft_tokens, output_size=len(self.token_ids))

    @cached_property
    def reach(self) -> Int64[Tensor, " B"]:
        """How many tokens each request could accept, those of its longest path. A tree has to be padded."""
        if self.parents is None:
            return self.num_draft_tokens
        parents = self.parents.view(len(self.num_draft_tokens), self.max_draft_tokens)
        depths = trees.depths(trees.ancestors(parents, self.longest))
        return torch.where(self.drafted, depths, 0).amax(dim=1)

    @cached_property
    def drafted(self) -> Bool[Tensor, "B gamma"]:
        """True at the places of each block that hold a drafted token."""
        places = torch.arange(self.max_draft_tokens, device=self.token_ids.device)
        return places < self.num_draft_tokens[:, None]

    def probs(self, vocabulary: int) -> Float64[Tensor, "n V"]:
        """The dense q that each token was drafted from, for reference code; one-hot if the draft is deterministic."""
        if self.rows is not None:
            return self.rows.probs()
        return torch.nn.functional.one_hot(self.token_ids, vocabulary).double()

    def compact(self, target: LogitRows) -> tuple[Draft, LogitRows]:
        """The same draft and target rows without padding. Waits for the device; a draft without padding is returned."""
        if not self.padded or bool(self.drafted.all()):
            return dataclasses.replace(self, padded=False), target
        kept = self.drafted.flatten().nonzero()[:, 0]
        scored = torch.cat([torch.ones_like(self.drafted[:, :1]), self.drafted], dim=1).flatten().nonzero()[:, 0]
        compact = dataclasses.replace(
            self,
            token_ids=self.token_ids[kept],
            rows=None if self.rows is None else self.rows.select(kept),
            parents=None if self.parents is None else self.parents[kept],
            padded=False,
        )
        return compact, target.select(scored)

    @staticmethod
    def empty(batch: int, device: torch.device) -> Draft:
        """Nothing drafted for any request: verifying it is plain decoding."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Draft(none, None, torch.zeros(batch, dtype=torch.int64, device=device), 0)


@dataclass(frozen=True)
class Verification:
    """What a verifier emits.

    Attributes:
        token_ids: accepted tokens, then the recovered or bonus token, then PADDING (-1); width ``draft.longest + 1``.
        num_accepted: drafted tokens accepted by each request.
        path: of a tree, which drafted tokens were accepted: their indices among the request's own rows, each one a
            child of the one before it, then PADDING. None for a chain, whose accepted tokens are the first ones.
    """

    token_ids: Int64[Tensor, "B width"]
    num_accepted: Int64[Tensor, " B"]
    path: Int64[Tensor, "B depth"] | None = None
