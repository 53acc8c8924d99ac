"""The data that drafters and verifiers exchange: LogitRows, Draft and Verification.

Target p and draft q have one form, LogitRows, so that a verifier knows exactly which distribution a token was sampled
from. Batches are ragged and flattened, as in serving engines: request b owns ``num_draft_tokens[b]`` consecutive draft
rows and ``num_draft_tokens[b] + 1`` consecutive target rows, the last of which is its bonus row. A padded draft gives
every request the same number of rows, so that no shape depends on numbers that only the device knows.

A draft is a chain, in which each token follows the one before it, or a tree, in which several tokens may follow one.
Target rows have one layout for both: the first row of a request is for the token after its text, row i + 1 for the
token after its draft token i. In a chain that is the row of draft token i + 1, in a tree the row of all children of
draft token i.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from specbench.core import trees
from specbench.core.fusion import fusible
from specbench.core.mask import Mask

PADDING = -1


@dataclass(frozen=True)
class LogitRows:
    """n distributions over a vocabulary of V tokens: logits, three numbers a row, and the tokens that are allowed.

    ``prob(x) = exp(logit(x) / temperature - log_normalizer)`` if ``logit(x) >= cutoff`` and x is allowed, else 0.
    Temperature 0 puts all mass on the argmax of the allowed tokens, the lowest index on ties; cutoff and log_normalizer
    of such a row are not used. Temperature, top-k, top-p and min-p all reduce to this form, so that a kernel applies
    them while it loads the logits, and nothing of vocabulary size is copied or sorted after
    :func:`specbench.sampling.logit_rows` has made the rows. Penalties, biases and bans are in the logits.

    A row whose tokens are all at -inf has no distribution at any temperature: its probabilities are NaN, from which no
    verifier draws.

    Rows are immutable, and every method is a pure function of the fields. Code that reads ``logits`` itself has to
    apply ``allowed`` too; it receives rows with a mask only if it asks for them (:func:`~specbench.sampling.logit_rows`
    has ``masks``, a verifier ``takes_masks``).

    Attributes:
        logits: bf16, fp16 or fp32, rows at any stride, last dimension contiguous.
        temperature: >= 0.
        cutoff: tokens with a lower logit have probability 0; -inf keeps all. Tokens tied with the cutoff are kept.
        log_normalizer: log sum of exp(logit(x) / temperature) over the tokens x that cutoff and mask keep, float64;
            None if it is not computed yet and no cutoff removes a token. A fused verifier computes it on its way,
            other code reads ``normalizer``.
        allowed: the tokens that are not banned; None for all.
    """

    logits: Shaped[Tensor, "n V"]
    temperature: Float[Tensor, " n"]
    cutoff: Float[Tensor, " n"]
    log_normalizer: Float[Tensor, " n"] | None
    allowed: Mask | None = None

    def __len__(self) -> int:
        return self.logits.shape[0]

    def select(self, rows: Int64[Tensor, " m"] | slice) -> LogitRows:
        """Returns copies of the given rows, in that order; those of a slice in the same memory, if there is no mask."""
        normalizer = None if self.log_normalizer is None else self.log_normalizer[rows]
        allowed = None
        if self.allowed is not None:
            allowed = self.allowed.select(torch.arange(len(self), device=self.logits.device)[rows])
        return LogitRows(self.logits[rows], self.temperature[rows], self.cutoff[rows], normalizer, allowed)

    @staticmethod
    def interleave(steps: Sequence[LogitRows]) -> LogitRows:
        """Returns steps of [B] rows each as [B * len(steps)] rows, those of a request one after another."""
        plain = [rows.with_mask_applied() for rows in steps]
        names = ("logits", "temperature", "cutoff", "normalizer")
        parts = [[getattr(rows, name) for rows in plain] for name in names]
        logits, temperature, cutoff, normalizer = _interleaved(parts)
        return LogitRows(logits, temperature, cutoff, normalizer)

    def with_mask_applied(self) -> LogitRows:
        """Returns the same distributions with -inf as the logit of each banned token, and without a mask."""
        if self.allowed is None:
            return self
        logits = self.logits.masked_fill(self.allowed.banned(self.logits.shape[1]), -torch.inf)
        return dataclasses.replace(self, logits=logits, allowed=None)

    @cached_property
    def normalizer(self) -> Float[Tensor, " n"]:
        """``log_normalizer``, computed in float64 if it is None."""
        if self.log_normalizer is not None:
            return self.log_normalizer
        temperature = torch.where(self.temperature > 0, self.temperature, 1).double()
        logits = self.with_mask_applied().logits.double()
        if _may_hold(self.cutoff > -torch.inf):
            logits = torch.where(logits < self.cutoff.double()[:, None], -torch.inf, logits)  # a NaN is kept, and shows
        return torch.logsumexp(logits / temperature[:, None], dim=-1)

    @cached_property
    def argmax(self) -> Int64[Tensor, " n"]:
        """The lowest index among the largest allowed logits of each row."""
        return self.with_mask_applied().logits.argmax(dim=-1)

    def probs(self) -> Float64[Tensor, "n V"]:
        """Returns the dense distributions in float64, for reference code."""
        if self.allowed is not None:
            return self.with_mask_applied().probs()
        temperature = torch.where(self.temperature > 0, self.temperature, 1).double()
        logits = self.logits.double()
        probs = (logits / temperature[:, None]).sub_(self.normalizer.double()[:, None]).exp_()
        if _may_hold(self.cutoff > -torch.inf):
            probs.masked_fill_(logits < self.cutoff.double()[:, None], 0.0)
        greedy = self.temperature == 0
        if _may_hold(greedy):
            probs.masked_fill_(greedy[:, None], 0.0)
            probs[torch.arange(len(self), device=probs.device), self.argmax] += self._mass_at_argmax
        return probs

    @property
    def _mass_at_argmax(self) -> Float64[Tensor, " n"]:
        """Returns 1 for a greedy row, 0 for another, and NaN for a greedy row of -inf alone. Applies no mask."""
        largest = self.logits.gather(1, self.argmax[:, None])[:, 0]
        greedy = (self.temperature == 0).double()
        return torch.where((greedy > 0) & (largest == -torch.inf), torch.nan, greedy)

    def prob(self, token_ids: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """Returns each row's probability of one token, without the dense distributions."""
        if self.allowed is not None:
            return self.with_mask_applied().prob(token_ids)
        logit = self.logits.gather(1, token_ids[:, None])[:, 0].double()
        temperature = torch.where(self.temperature > 0, self.temperature, 1).double()
        random = torch.exp(logit / temperature - self.normalizer.double()) * (logit >= self.cutoff.double())
        if not _may_hold(self.temperature == 0):
            return random
        return torch.where(self.temperature > 0, random, (token_ids == self.argmax) * self._mass_at_argmax)

    def finite(self) -> Bool[Tensor, " n"]:
        """Returns False for a row that no token can be sampled from: allowed logits are NaN or +inf, or all -inf."""
        return self.normalizer.isfinite()


@fusible
def _interleaved(steps: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(parts, dim=1).flatten(0, 1) for parts in steps]


def _may_hold(condition: Bool[Tensor, " n"]) -> bool:
    """Returns whether any row may meet a condition. A CPU looks, which takes less than an operation on the rows does;
    for a GPU it is always True, since the answer would have to be waited for."""
    return not condition.is_cpu or bool(condition.any())


@dataclass(frozen=True)
class Draft:
    """Draft tokens of B requests, flattened: n = sum of num_draft_tokens, or B * max_draft_tokens if padded.

    Attributes:
        rows: the distributions q that the tokens were sampled from; None for a deterministic draft, whose q is one-hot.
        num_draft_tokens: draft tokens of each request, >= 0.
        max_draft_tokens: a bound on num_draft_tokens known to the host, so that no shape depends on device data.
        padded: whether every request owns max_draft_tokens draft rows and max_draft_tokens + 1 target rows. Its first
            num_draft_tokens[b] draft rows count, and its first num_draft_tokens[b] + 1 target rows. The other rows are
            not read, but their ids are of the vocabulary and their parents are those of a tree. A verifier receives
            padded drafts only if it has ``takes_padded``.
        parents: None for a chain. For a tree, the draft token that each token follows, as an index among the rows of
            its request; -1 if it follows the text. A token comes after its parent, and siblings come in the order in
            which they were drawn, so that the first k tokens of a tree are a tree too. ``rows`` then holds the
            distribution of each token given its earlier siblings. A verifier receives trees only if it has
            ``takes_trees``.
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
        """A bound on the tokens that a request can accept: those of the longest path, or all of a chain."""
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
        """The number of tokens that each request could accept: those of its longest path. A tree has to be padded."""
        if self.parents is None:
            return self.num_draft_tokens
        return torch.where(self.drafted, trees.depths(self.ancestors), 0).amax(dim=1)

    @cached_property
    def ancestors(self) -> Bool[Tensor, "B gamma gamma"]:
        """Of a padded tree: which tokens are on the path to each token (core/trees.py)."""
        assert self.parents is not None
        return trees.ancestors(self.parents.view(len(self.num_draft_tokens), self.max_draft_tokens), self.longest)

    @cached_property
    def drafted(self) -> Bool[Tensor, "B gamma"]:
        """True at the places of each block that hold a draft token."""
        places = torch.arange(self.max_draft_tokens, device=self.token_ids.device)
        return places < self.num_draft_tokens[:, None]

    def probs(self, vocabulary: int) -> Float64[Tensor, "n V"]:
        """Returns the dense q of each draft token, for reference code; one-hot if the draft is deterministic."""
        if self.rows is not None:
            return self.rows.probs()
        return torch.nn.functional.one_hot(self.token_ids, vocabulary).double()

    def compact(self, target: LogitRows) -> tuple[Draft, LogitRows]:
        """Returns the same draft and target rows without padding. Waits for the device if the draft is padded."""
        if not self.padded or bool(self.drafted.all()):
            return dataclasses.replace(self, padded=False), target
        draft_rows = self.drafted.flatten().nonzero()[:, 0]
        scored = torch.cat([torch.ones_like(self.drafted[:, :1]), self.drafted], dim=1).flatten().nonzero()[:, 0]
        compact = dataclasses.replace(
            self,
            token_ids=self.token_ids[draft_rows],
            rows=None if self.rows is None else self.rows.select(draft_rows),
            parents=None if self.parents is None else self.parents[draft_rows],
            padded=False,
        )
        return compact, target.select(scored)

    @staticmethod
    def empty(batch: int, device: torch.device) -> Draft:
        """Returns a draft without tokens: to verify it is plain decoding."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Draft(none, None, torch.zeros(batch, dtype=torch.int64, device=device), 0)


@dataclass(frozen=True)
class Verification:
    """The tokens that a verifier emits.

    Attributes:
        token_ids: accepted tokens, then the recovered or bonus token, then PADDING (-1); width ``draft.longest + 1``.
        path: of a tree, the accepted tokens as indices among the rows of their request, each a child of the one before
            it, then PADDING. None for a chain, whose accepted tokens are its first.
    """

    token_ids: Int64[Tensor, "B width"]
    num_accepted: Int64[Tensor, " B"]
    path: Int64[Tensor, "B depth"] | None = None

    def select(self, requests: Int64[Tensor, " m"]) -> Verification:
        """Returns the outcomes of the given requests, in that order."""
        path = None if self.path is None else self.path[requests]
        return Verification(self.token_ids[requests], self.num_accepted[requests], path)

    @staticmethod
    def join(parts: Sequence[Verification]) -> Verification:
        """Returns the outcomes of several batches of chains, of one width, as those of one batch."""
        tokens, accepted = zip(*((part.token_ids, part.num_accepted) for part in parts), strict=True)
        return Verification(torch.cat(tokens), torch.cat(accepted))

    def differs(self, other: Verification) -> Bool[Tensor, " B"]:
        """Returns True for each request whose tokens or accepted length differ."""
        return (self.token_ids != other.token_ids).any(dim=1) | (self.num_accepted != other.num_accepted)
