"""One teacher-forced pass of both models over texts: the columns of a trace.

Of a pair with different vocabularies also how much of the target its draft can say: the target's probability of the
tokens that both have. Token-level intersection accepts a drafted token with this probability at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.machine.progress import track
from specbench.core.types import LogitRows
from specbench.decoding import Completion, logits_along, rows_along
from specbench.drafters.lengths import confidence
from specbench.exactness.texts.support import default_tolerance, support_edge
from specbench.metrics.intervals import Estimate, columns, ratio_of_sums
from specbench.models import CachedModel
from specbench.protocols.model_context import ModelContext, in_groups, unit_of
from specbench.protocols.settings import no_probabilities
from specbench.replay.trace import LIMIT, Identity, trace_schema
from specbench.replay.values import sampler_of
from specbench.sampling import RowParams, SamplingParams

CELLS = 1 << 24  # logits looked at together: a few float64 copies of them fit anywhere


def identity_of(context: ModelContext) -> Identity:
    """What a trace recorded in this context is a trace of."""
    return Identity(
        target=context.names[0],
        draft=context.names[1],
        sampler=sampler_of(context.sampling.numbers),
        dtype=str(context.dtype).removeprefix("torch."),
        source=context.command,
        processors=context.processors,
        shaping=context.sampling.shaping_text,
    )


def draft_model(context: ModelContext) -> CachedModel:
    """The drafter's model.

    Raises:
        ConfigError: a drafter without one, whose drafts have no probabilities to record.
    """
    if context.drafter.model is None:
        raise no_probabilities(context.drafter)
    return context.drafter.model


def score_texts(context: ModelContext, completions: Sequence[Completion]) -> list[dict[str, Tensor]]:
    """For each text its tokens and the trace's columns, [tokens of the text], on the CPU. For a pair with different
    vocabularies there is a column "shared" too: the target's probability of the tokens that the draft has.

    Raises:
        ConfigError: the drafter has no model.
    """
    draft = draft_model(context)
    batches = track(in_groups(completions, context.batch_size), "scoring")
    return [columns for batch in batches for columns in _score_batch(context, draft, batch)]


def _score_batch(
    context: ModelContext, draft: CachedModel, completions: Sequence[Completion]
) -> Iterator[dict[str, Tensor]]:
    requests = [completion.request for completion in completions]
    prompts, texts = [request.prompt for request in requests], [completion.token_ids for completion in completions]
    both = (logits_along(model, prompts, texts) for model in (context.target, draft))
    translation = context.pair.translation
    shared = None if translation is None else translation.shared.to(draft.device)
    for request, text, *logits in zip(requests, texts, *both, strict=True):
        tokens = torch.tensor(list(text), device=draft.device)
        q = context.drafter.sampled_with(request.sampling)
        columns = columns_of(*logits, tokens, request.sampling, request.prompt, q, shared)
        yield {name: values.cpu() for name, values in {"token": tokens, **columns}.items()}


@torch.inference_mode()
def columns_of(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    sampling: SamplingParams,
    prompt: Sequence[int] = (),
    draft_sampling: SamplingParams | None = None,
    shared: Tensor | None = None,
) -> dict[str, Tensor]:
    """The trace's columns for logits [n, V] of both models at the positions of ``tokens`` [n]; float32 [n].

    Args:
        tokens: of one text.
        prompt: what the text follows; needed by processors, penalties and bans.
        draft_sampling: of the draft; None is the target's.
        shared: [V], which of the target's tokens the draft has; gives one more column, "shared".
    """
    both = ((target, sampling), (draft, draft_sampling or sampling))
    pieces: list[dict[str, Tensor]] = []
    rows = max(1, CELLS // target.shape[1])
    for start in range(0, len(tokens), rows):
        span = slice(start, start + rows)
        p_rows, q_rows = (rows_along(logits[span], params, prompt, tokens.tolist(), start) for logits, params in both)
        p, q, sure = p_rows.probs(), q_rows.probs(), confidence(q_rows)
        drafted = torch.where(q_rows.temperature > 0, tokens[span], q_rows.argmax)
        nothing = q_rows.logits.amax(dim=1) == -torch.inf  # where the sampler bans all that a draft may say
        pieces.append(
            {
                # Probabilities round to a little above 1, and a logarithm above 0 is refused by readers of traces.
                "log_p": _emitted(p_rows, p, tokens[span], sampling).log().clamp(max=0),
                "log_q": q_rows.prob(tokens[span]).masked_fill(nothing, 0).log().clamp(max=0),
                "overlap": torch.minimum(p, q).sum(dim=-1).clamp(max=1).masked_fill(nothing, 0),
                "target_entropy": torch.special.entr(p).sum(dim=-1),
                "draft_entropy": torch.special.entr(sure.probs()).sum(dim=-1).masked_fill(nothing, 0),
                "draft_confidence": sure.prob(drafted).clamp(max=1).masked_fill(nothing, 0),
                "argmax_agree": (p_rows.argmax == q_rows.argmax).double().masked_fill(nothing, 0),
                "draft_argmax": (q_rows.argmax == tokens[span]).double().masked_fill(nothing, 0),
                **({} if shared is None else {"shared": p[:, shared].sum(dim=-1)}),
            }
        )
    return {name: torch.cat([piece[name] for piece in pieces]).float() for name in pieces[0]}


def _emitted(
    rows: LogitRows, probs: Tensor, tokens: Int64[Tensor, " n"], sampling: SamplingParams
) -> Float64[Tensor, " n"]:
    """The probabilities of tokens that were drawn from rows, whose dense probabilities are known.

    Decoding and scoring round logits differently, so that the likeliest token of one may be the second of the other,
    and a token beside the edge of top-k, top-p or min-p be inside for one alone. A token that was drawn, and that
    rounding may have put outside here, has the probability of the least likely one inside. Others outside have 0.
    """
    probability = rows.prob(tokens).double()
    lost = probability == 0
    if not lost.any():
        return probability
    tolerance, logits = default_tolerance(rows.logits), rows.logits
    if sampling.greedy:
        lowest = logits.amax(dim=1).double() - 2 * tolerance
    else:
        params = RowParams.of([sampling] * len(tokens), tokens.device)
        lowest = support_edge(logits, params, tolerance).lowest
    possible = lost & (logits.gather(1, tokens[:, None])[:, 0].double() >= lowest)
    return torch.where(possible, probs.double().masked_fill(probs == 0, 1).amin(dim=1), probability)


def trace_table(
    names: Sequence[tuple[str, int]], limits: Sequence[int], scored: Sequence[dict[str, Tensor]], identity: Identity
) -> pa.Table:
    """The table of a trace, for (prompt, sample) and max_new_tokens of each text."""
    schema, counts = trace_schema(identity), [len(columns["token"]) for columns in scored]
    written: dict[str, Any] = {
        "prompt": [prompt for (prompt, _), count in zip(names, counts, strict=True) for _ in range(count)],
        "sample": np.repeat([sample for _, sample in names], counts),
        "position": np.concatenate([np.arange(count) for count in counts]),
        **{
            name: torch.cat([columns[name] for columns in scored]).numpy() for name in scored[0] if name in schema.names
        },
        LIMIT: np.repeat(limits, counts),
    }
    return pa.Table.from_pydict(written, schema=schema)


def overlap_fields(scored: Sequence[Mapping[str, Tensor]] | None, completions: Sequence[Completion]) -> dict[str, Any]:
    """Columns of sum_x min(p(x), q(x)) at every emitted position; None for texts that the drafter cannot rate."""
    if scored is None:
        return columns("overlap", None)
    return columns("overlap", _per_token([float(of_text["overlap"].double().sum()) for of_text in scored], completions))


def shared_fields(
    context: ModelContext, completions: Sequence[Completion], scored: Sequence[Mapping[str, Tensor]] | None = None
) -> dict[str, Any]:
    """RunRow's columns of what is shared; none for a pair of one vocabulary.

    Args:
        scored: the columns of each text, if it was scored (score_texts); the target scores it here if not.
    """
    translation = context.pair.translation
    if translation is None:
        return {}
    shared = translation.shared.to(context.device)
    if scored is None:
        sums = [_mass(context, completion, shared) for completion in completions]
    else:
        sums = [float(of_text["shared"].double().sum()) for of_text in scored]
    mass = _per_token(sums, completions)
    assert mass is not None, "every text has a token"
    return {"shared_tokens": int(shared.sum()), **columns("shared_mass", mass)}


def _per_token(sums: Sequence[float], completions: Sequence[Completion]) -> Estimate | None:
    """A number that was summed over each text, per token, with an interval over prompts and conversations."""
    tokens = np.array([len(completion.token_ids) for completion in completions])
    return ratio_of_sums(np.array(sums), tokens, [unit_of(completion.request) for completion in completions])


@torch.inference_mode()
def _mass(context: ModelContext, completion: Completion, shared: Tensor) -> float:
    """The target's probability of the tokens ``shared`` [V], summed over the places of a text."""
    prompt, text = completion.request.prompt, completion.token_ids
    rows = rows_along(logits_along(context.target, [prompt], [text])[0], completion.request.sampling, prompt, text)
    return float(rows.probs()[:, shared].sum())
