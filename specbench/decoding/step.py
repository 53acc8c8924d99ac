"""One step of decoding: draft, score, verify, commit. Everything stays on the device.

``step(batch, components) -> (batch, result)`` changes neither argument but the caches of the models and the drafter,
which follow the batch. It knows no rule and no drafting method. If nothing is drafted it is plain decoding.
The host waits for the device only to check the ids of a drafter that works on the host, and in a verifier that checks
its arguments or takes no padded drafts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core import arguments, trees
from specbench.core.conf import config_name
from specbench.core.errors import ArgumentError
from specbench.core.fusion import fusible
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.decoding.commit import commit, logits_in_doubt
from specbench.decoding.step_result import PHASES, StepResult
from specbench.decoding.stopwatch import Stamps
from specbench.drafters import Drafter, Observation
from specbench.models import CachedModel, Feature, Features, RowCache
from specbench.rules.verifier import Verifier, capabilities, verify
from specbench.sampling import draw, normalized, reaching, streams_of
from specbench.sampling.batch import Batch, span


@dataclass(frozen=True)
class StepComponents:
    """The parts that a step is made of.

    Attributes:
        target: scores drafts; one forward pass a step.
        drafter: proposes; None decodes plainly.
        verifier: accepts and emits; not used where nothing was drafted.
        gamma: tokens drafted a step, at most.
    """

    target: CachedModel
    drafter: Drafter | None
    verifier: Verifier | None
    gamma: int

    @cached_property
    def draft_caches(self) -> tuple[RowCache, ...]:
        """The drafter's memory with a row for each request."""
        return () if self.drafter is None else self.drafter.caches

    @cached_property
    def caches(self) -> tuple[RowCache, ...]:
        """The target and the drafter's memory: all that follows the batch."""
        return (self.target, *self.draft_caches)

    @cached_property
    def observer(self) -> Drafter | None:
        """The drafter, if it has an ``observe`` of its own."""
        observes = self.drafter is not None and type(self.drafter).observe is not Drafter.observe
        return self.drafter if observes else None

    @cached_property
    def reads_masks(self) -> bool:
        """Whether the readers of the target's rows apply ``LogitRows.allowed``."""
        return self.verifier is None or capabilities(self.verifier).takes_masks

    @cached_property
    def takes_padded(self) -> bool:
        """Whether the verifier takes padded drafts."""
        return self.verifier is not None and capabilities(self.verifier).takes_padded

    @property
    def features(self) -> tuple[Feature, ...]:
        """The hidden states of the target that the drafter observes."""
        return () if self.observer is None else tuple(self.observer.features)


@torch.inference_mode()
def step(batch: Batch, components: StepComponents) -> tuple[Batch, StepResult]:
    """Decodes one block for every running request."""
    stamps = Stamps(len(PHASES) + 1, batch.lengths.device)
    stamps.mark()
    batch = batch.counted(components.target.vocab_size)
    limits = batch.free_tokens()
    streams = streams_of(batch.seeds, batch.lengths, batch.at_most(limits, components.gamma) + 1)
    if components.drafter is None:
        draft = Draft.empty(len(batch), batch.lengths.device)
    else:
        proposed = components.drafter.propose(batch, limits, streams)
        draft = padded(checked(proposed, batch, components.drafter, components.target.vocab_size))
    stamps.mark()
    rows, hidden = score(batch, draft, components.target, components.reads_masks, components.features)
    stamps.mark()
    verification, rows = _verify(components, draft, rows, reaching(streams, draft.max_draft_tokens + 1))
    stamps.mark()
    fed = batch.lengths + verification.num_accepted  # the last token and the accepted ones; the emitted one is not fed
    for cache in components.caches:
        cache.truncate(fed, verification.path)
    if components.observer is not None:
        components.observer.observe(_observation(batch, draft, verification, hidden))
    return _commit(batch, draft, rows, verification, components, stamps)


def checked(draft: object, batch: Batch, drafter: Drafter, vocabulary: int) -> Draft:
    """Returns what a drafter proposed, if it is a draft of this batch.

    Ids on a GPU are read only if the drafter works on the host anyway.

    Raises:
        ArgumentError: it is none, its tokens or counts have another dtype or shape or are on another device, or an id
            is outside of the vocabulary.
    """

    def wrong(problem: str) -> ArgumentError:  # reads yamls for the name, so not before it is needed
        return ArgumentError(f"drafter={config_name('drafter', drafter)}: {problem}")

    if not isinstance(draft, Draft):
        raise wrong(f"propose() returned a {type(draft).__name__}; return a specbench.core.Draft")
    requests, device = len(batch), batch.lengths.device
    tokens = requests * draft.max_draft_tokens if draft.padded else len(draft.token_ids)
    for field, count in (("num_draft_tokens", requests), ("token_ids", tokens)):
        tensor = getattr(draft, field)
        if tensor.dtype != torch.int64 or tensor.shape != (count,) or tensor.device != device:
            form = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            raise wrong(f"{field} of its draft: {form}; torch.int64 ({count},) on {device} needed")
    ids = draft.token_ids
    outside = arguments.first_outside(ids, vocabulary) if ids.is_cpu or not drafter.capturable else None
    if outside is not None:
        raise wrong(
            f"token_ids[{outside}]={int(ids[outside])} of its draft: outside the vocabulary of {vocabulary} tokens. "
            f"Draft ids from 0 to {vocabulary - 1}, padding included."
        )
    return draft


def padded(draft: Draft) -> Draft:
    """Returns the draft with the same number of rows for each request."""
    if draft.padded or draft.max_draft_tokens == 0:
        return draft
    batch, width = draft.drafted.shape
    if len(draft.token_ids) == batch * width:
        return dataclasses.replace(draft, padded=True)
    if not len(draft.token_ids):
        return Draft.empty(batch, draft.token_ids.device)
    places = torch.arange(width, device=draft.token_ids.device)
    row = (draft.first_row[:, None] + places).flatten().clamp(max=len(draft.token_ids) - 1)
    rows = None if draft.rows is None else draft.rows.select(row)
    parents = None if draft.parents is None else draft.parents[row]
    return dataclasses.replace(draft, token_ids=draft.token_ids[row], rows=rows, parents=parents, padded=True)


def score(
    batch: Batch, draft: Draft, target: CachedModel, masks: bool = False, features: tuple[Feature, ...] = ()
) -> tuple[LogitRows, Features]:
    """Returns the target's distributions after the text and after every drafted token, and hidden states there.

    Args:
        masks: whether readers of the rows of a chain apply ``LogitRows.allowed``.
    """
    width = draft.max_draft_tokens
    drafted = draft.token_ids.view(len(batch), width)
    fed, counts = _fed(batch.tokens, batch.lengths, drafted, draft.num_draft_tokens)
    if draft.parents is None:
        output = target.extend(fed, counts, features=features)
        rows = batch.rows(output.logits.flatten(0, 1), drafted, masks=masks)
        return rows if width == 0 else normalized(rows), output.features
    # The text's last token is fed before the tree, so that it is the root of what is fed.
    seen = trees.with_root(draft.ancestors)
    output = target.extend(fed, counts, seen, features)
    rows = batch.rows_of_tree(output.logits.flatten(0, 1), drafted, seen[:, :, 1:], draft.longest)
    return normalized(rows), output.features


@fusible
def _fed(
    tokens: Int64[Tensor, "B capacity"],
    lengths: Int64[Tensor, " B"],
    drafted: Int64[Tensor, "B drafted"],
    counts: Int64[Tensor, " B"],
) -> tuple[Int64[Tensor, "B width"], Int64[Tensor, " B"]]:
    """Returns the last token of each text with its drafted tokens, and their number."""
    return torch.cat([span(tokens, lengths - 1, 1), drafted], dim=1), counts + 1


def _verify(
    components: StepComponents, draft: Draft, rows: LogitRows, streams: Streams
) -> tuple[Verification, LogitRows]:
    """Returns what is emitted, and the rows with what was computed of them."""
    verifier = components.verifier
    if draft.max_draft_tokens == 0 or verifier is None:
        tokens, rows = draw(rows, streams.uniform(Stream.EMIT)[:, 0])
        return Verification(tokens[:, None], torch.zeros_like(draft.num_draft_tokens)), rows
    compact = (draft, rows) if components.takes_padded else draft.compact(rows)
    return verify(verifier, *compact, streams), rows


def _observation(batch: Batch, draft: Draft, verification: Verification, hidden: Features) -> Observation:
    """Returns the fed tokens that stand: the text's last one and the accepted ones, of a tree those on its path."""
    drafted = draft.token_ids.view(len(batch), draft.max_draft_tokens)
    tokens, _ = _fed(batch.tokens, batch.lengths, drafted, draft.num_draft_tokens)
    rows = torch.arange(len(batch), device=batch.lengths.device)
    if verification.path is not None:
        path = torch.nn.functional.pad(verification.path + 1, (1, 0))  # behind its end the root
        tokens = tokens.gather(1, path)
        hidden = {name: states[rows[:, None], path] for name, states in hidden.items()}
    counts = torch.where(batch.running, verification.num_accepted + 1, 0)
    return Observation(rows, tokens, counts, batch.lengths - 1, hidden)


def _commit(
    batch: Batch, draft: Draft, rows: LogitRows, verification: Verification, components: StepComponents, stamps: Stamps
) -> tuple[Batch, StepResult]:
    """Returns the batch with the emitted tokens up to the first stop token, and what the step did."""
    emitted, accepted, differ = verification.token_ids, verification.num_accepted, None
    if components.target.compare_ranks is not None:
        drafted = draft.token_ids.view(len(batch), draft.max_draft_tokens)
        differ = components.target.compare_ranks(rows.logits.unflatten(0, (len(batch), -1)), drafted, emitted)
    texts = (batch.tokens, batch.lengths, batch.limits, batch.finished, batch.stop_ids)
    logits = (logits_in_doubt(draft.rows), logits_in_doubt(rows))
    committed = commit(texts, emitted, accepted, draft.num_draft_tokens, *logits, differ)
    tokens, lengths, num_emitted, finished, bad = committed
    numbers = (draft.num_draft_tokens, draft.reach, accepted, num_emitted, finished, bad)
    after = dataclasses.replace(batch, tokens=tokens, lengths=lengths, finished=finished, tally=None)
    stamps.mark()
    return after, StepResult(emitted, *numbers, stamps=stamps.tensor())
