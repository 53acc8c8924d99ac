"""One step of decoding: draft, score, verify, commit. Everything stays on the device, and nothing waits for it.

``step(batch) -> (batch, what happened)`` changes neither; what it does change are the caches of the models, which
follow the batch. It knows no rule and no drafting method. With nothing drafted it is plain decoding.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from specbench.core import trees
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.decoding.stamps import Stamps
from specbench.drafters import Drafter
from specbench.models import Engine
from specbench.sampling import sample, streams_of
from specbench.sampling.batch import FAILED, FULL, RUNNING, STOPPED, Batch
from specbench.verifiers import Verifier
from specbench.verifiers.base import offers


@dataclass(frozen=True)
class Parts:
    """What a step is made of.

    Attributes:
        target: scores drafts; one forward pass a step.
        drafter: proposes; None decodes plainly.
        verifier: accepts and emits; not used where nothing was drafted.
        gamma: tokens drafted a step, at most.
    """

    target: Engine
    drafter: Drafter | None
    verifier: Verifier | None
    gamma: int


PHASES = ("draft", "target", "verify", "commit")  # of a step
FINITE, BAD_TARGET, BAD_DRAFT, RANKS_DIFFER = 0, 1, 2, 3  # Happened.bad


@dataclass(frozen=True)
class Line:
    """What a step did for one request, as the host reads it; the names are those of Happened."""

    num_draft_tokens: int
    num_accepted: int
    num_emitted: int
    draft_depth: int
    finished: int
    bad: int
    token_ids: list[int]


@dataclass(frozen=True)
class Happened:
    """What a step did; nothing that goes on depends on it.

    Attributes:
        token_ids: accepted tokens, then the emitted one, then PADDING.
        num_draft_tokens, num_accepted: of each request.
        draft_depth: how many tokens it could have accepted, fewer than it drafted if the draft is a tree.
        num_emitted: num_accepted + 1, or fewer where a stop token cut the block; 0 for a request that had finished.
        finished: as in Batch, after the step.
        bad: whose logits are NaN or +inf: FINITE (nobody's), BAD_TARGET or BAD_DRAFT; or RANKS_DIFFER.
        stamps: nanoseconds at which it began and each of PHASES ended.
    """

    token_ids: Int64[Tensor, "B width"]
    num_draft_tokens: Int64[Tensor, " B"]
    draft_depth: Int64[Tensor, " B"]
    num_accepted: Int64[Tensor, " B"]
    num_emitted: Int64[Tensor, " B"]
    finished: Int64[Tensor, " B"]
    bad: Int64[Tensor, " B"]
    stamps: Int64[Tensor, " 5"]

    def packed(self) -> Int64[Tensor, " n"]:
        """All of it, in one tensor: one copy brings it to the host."""
        numbers = (
            self.num_draft_tokens,
            self.num_accepted,
            self.num_emitted,
            self.draft_depth,
            self.finished,
            self.bad,
        )
        lines = torch.cat([torch.stack(numbers, dim=1), self.token_ids], dim=1)
        return torch.cat([self.stamps, lines.flatten()])


@dataclass(frozen=True)
class Report:
    """What the host reads of a step.

    Attributes:
        lines: of each row of the batch; those of rows without a request, or whose request had ended, say nothing.
        stamps: nanoseconds; see Happened.
    """

    lines: list[Line]
    stamps: list[int]

    @staticmethod
    def of(numbers: list[int], batch: int) -> Report:
        """What :meth:`Happened.packed` holds."""
        stamps, rest = numbers[: len(PHASES) + 1], numbers[len(PHASES) + 1 :]
        width = len(rest) // batch
        lines = [rest[i : i + width] for i in range(0, len(rest), width)]
        return Report([Line(*line[:6], token_ids=line[6:]) for line in lines], stamps)


@torch.inference_mode()
def step(batch: Batch, parts: Parts) -> tuple[Batch, Happened]:
    """One block for every running request."""
    stamps = Stamps(len(PHASES) + 1, batch.lengths.device)
    stamps.mark()
    batch = batch.counted(parts.target.vocab_size)
    room = batch.room()
    streams = streams_of(batch.seeds, batch.lengths, batch.at_most(room, parts.gamma) + 1)
    if parts.drafter is None:
        draft = Draft.empty(len(batch), batch.lengths.device)
    else:
        draft = padded(parts.drafter.propose(batch, room, streams))
    stamps.mark()
    reads_masks = parts.verifier is None or offers(parts.verifier).takes_masks
    rows = score(batch, draft, parts.target, reads_masks)
    stamps.mark()
    verification = _verify(parts.verifier, draft, rows, streams.reaching(draft.max_draft_tokens + 1))
    stamps.mark()
    return _commit(batch, draft, rows, verification, parts, stamps)


def padded(draft: Draft) -> Draft:
    """The draft with as many rows for each request."""
    batch, width = draft.drafted.shape
    if draft.padded:
        return draft
    if len(draft.token_ids) == batch * width:
        return dataclasses.replace(draft, padded=True)
    if not len(draft.token_ids):
        return Draft.empty(batch, draft.token_ids.device)
    places = torch.arange(width, device=draft.token_ids.device)
    row = (draft.first_row[:, None] + places).flatten().clamp(max=len(draft.token_ids) - 1)
    rows = None if draft.rows is None else draft.rows.select(row)
    parents = None if draft.parents is None else draft.parents[row]
    return dataclasses.replace(draft, token_ids=draft.token_ids[row], rows=rows, parents=parents, padded=True)


def score(batch: Batch, draft: Draft, target: Engine, masks: bool = False) -> LogitRows:
    """The target's distribution after the text and after every drafted token.

    Args:
        masks: whether readers of the rows of a chain apply ``LogitRows.allowed``.
    """
    width = draft.max_draft_tokens
    drafted = draft.token_ids.view(len(batch), width)
    fed = torch.cat([batch.span(batch.lengths - 1, 1), drafted], dim=1)
    if draft.parents is None:
        logits = target.extend(fed, draft.num_draft_tokens + 1)
        return batch.rows(logits.flatten(0, 1), drafted, masks=masks)
    # The text's last token is fed before the tree, so that it is the root of what is fed.
    seen = trees.ancestors(trees.with_root(draft.parents.view(len(batch), width)), draft.longest + 1)
    logits = target.extend(fed, draft.num_draft_tokens + 1, seen)
    path = trees.paths(seen, draft.longest + 1)[:, :, 1:]
    tokens = fed.gather(1, path.flatten(1)).view(path.shape)
    return batch.rows_of_paths(logits.flatten(0, 1), tokens, trees.depths(seen) - 1)


def _verify(verifier: Verifier | None, draft: Draft, rows: LogitRows, streams: Streams) -> Verification:
    if draft.max_draft_tokens == 0 or verifier is None:
        tokens = sample(rows, streams.uniform(Stream.EMIT)[:, 0])
        return Verification(tokens[:, None], torch.zeros_like(draft.num_draft_tokens))
    if not offers(verifier).takes_padded:
        draft, rows = draft.compact(rows)
    return verifier.verify(draft, rows, streams)


def _commit(
    batch: Batch, draft: Draft, rows: LogitRows, verification: Verification, parts: Parts, stamps: Stamps
) -> tuple[Batch, Happened]:
    emitted, accepted = verification.token_ids, verification.num_accepted
    places = torch.arange(emitted.shape[1], device=emitted.device)
    block = (places <= accepted[:, None]) & batch.running[:, None]
    stops = block & (emitted[:, :, None] == batch.stop_ids[:, None]).any(dim=2)
    kept = block & (stops.cumsum(dim=1) - stops.long() == 0)  # up to the first stop token
    num_emitted = kept.sum(dim=1)
    lengths = batch.lengths + num_emitted
    ended = torch.where(lengths >= batch.limits, FULL, RUNNING)
    ended = torch.where(stops.any(dim=1), STOPPED, ended)
    nothing, bad = block & (emitted == PADDING), _bad(draft, rows)
    if parts.target.shards is not None:
        drafted = draft.token_ids.view(len(batch), draft.max_draft_tokens)
        differ = parts.target.shards.differing(rows.logits.unflatten(0, (len(batch), -1)), drafted, emitted)
        bad = torch.where(differ & (bad == FINITE), RANKS_DIFFER, bad)
    ended = torch.where(nothing.any(dim=1) | (bad != FINITE), FAILED, ended)
    finished = torch.where(batch.running, ended, batch.finished)
    # The pending token and the accepted ones stay cached; the emitted one is fed by the next step.
    agreed = batch.lengths + accepted
    if verification.path is not None:
        parts.target.keep_path(batch.lengths, verification.path)
    parts.target.truncate(agreed)
    if parts.drafter is not None:
        if verification.path is not None:
            parts.drafter.keep_path(batch.lengths, verification.path)
        parts.drafter.commit(agreed)
    numbers = (draft.num_draft_tokens, draft.reach, accepted, num_emitted, finished, bad)
    tokens = _written(batch, emitted, kept & ~nothing)
    after = dataclasses.replace(batch, tokens=tokens, lengths=lengths, finished=finished, tally=None)
    stamps.mark()
    return after, Happened(emitted, *numbers, stamps=stamps.tensor())


def _bad(draft: Draft, target: LogitRows) -> Int64[Tensor, " B"]:
    """Whose logits are NaN or +inf for each request: one read of them, since a NaN in a row counts as its largest.

    Rows from which nothing was sampled count too, and so do the logits of tokens that a mask bans. A row of -inf alone
    is no error: a grammar may have come to its end.
    """
    counts, bad = draft.num_draft_tokens, torch.full_like(draft.num_draft_tokens, FINITE)
    for name, rows, more in ((BAD_DRAFT, draft.rows, 0), (BAD_TARGET, target, 1)):
        width = draft.max_draft_tokens + more
        if rows is not None and width > 0:
            used = torch.arange(width, device=counts.device) < (counts + more)[:, None]
            finite = (_largest(rows.logits) < torch.inf).view(-1, width)
            bad = torch.where((~finite & used).any(dim=1), name, bad)
    return bad


def _largest(rows: Shaped[Tensor, "N V"]) -> Shaped[Tensor, " N"]:
    """The largest number of each row, or NaN. Of pieces first: with few outputs PyTorch leaves most of a GPU idle."""
    return rows.unflatten(1, (math.gcd(rows.shape[1], 256), -1)).amax(dim=2).amax(dim=1)


def _written(batch: Batch, emitted: Int64[Tensor, "B width"], kept: Bool[Tensor, "B width"]) -> Tensor:
    columns = batch.lengths[:, None] + torch.arange(emitted.shape[1], device=emitted.device)
    before = batch.tokens.gather(1, columns)
    return batch.tokens.scatter(1, columns, torch.where(kept, emitted, before))
