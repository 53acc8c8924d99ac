"""The protocol ``greedy_divergence``: at temperature 0, where do speculative and plain text part, and is it rounding?

Both are the target's argmax, so they are equal where arithmetic is exact. Matrix products of another shape (one token
against a block) round differently, and where two logits nearly tie, the argmax may change: the text then goes another
way without anything being wrong. This protocol tells that from a bug by scoring the prefix at the fork in both shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy import stats

from specbench.decoding import Completion, Request, logits_along
from specbench.exactness import tables
from specbench.exactness.texts.support import ROUNDING
from specbench.plots import evidence as plots
from specbench.progress import track
from specbench.protocols.base import Conditions, ModelContext, Outcome, Table
from specbench.sampling import SamplingParams

NEAR_TIE, BUG = "near tie", "unexplained"


@dataclass(frozen=True)
class Fork:
    """Where the two texts of one prompt part; position and all after it are None where they are the same.

    Attributes:
        prompt, tokens: its name, and tokens decoded plainly.
        position: index in the continuation of the first differing token.
        plain_token, speculative_token: the two.
        plain_margin: logit of the plain token over the other's, scored token by token.
        speculative_margin: the same, scored as the first row of a block of gamma + 1 tokens.
        logit_noise: the largest difference of any logit between the two scorings.
        cause: see cause_of.
    """

    prompt: str
    tokens: int
    position: int | None = None
    plain_token: int | None = None
    speculative_token: int | None = None
    plain_margin: float | None = None
    speculative_margin: float | None = None
    logit_noise: float | None = None
    cause: str | None = None


class GreedyDivergenceProtocol:
    """See the module."""

    needs_models = True
    own_conditions: ClassVar[Conditions] = {"sampler": "It decodes at temperature 0; leave it out."}

    @torch.inference_mode()
    def run(self, context: ModelContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        speculative = context.decoder()
        plain = context.decoder(0)
        requests = [dataclasses.replace(each, sampling=SamplingParams(temperature=0.0)) for each in context.requests]
        batches = [requests[i : i + context.batch_size] for i in range(0, len(requests), context.batch_size)]
        forks = []
        for batch in track(batches, "decoding twice"):
            for request, one, two in zip(batch, plain.run(batch), speculative.run(batch), strict=True):
                forks.append(triage(context, request, one, two))
        known = [dataclasses.asdict(fork) for fork in forks if fork.logit_noise is not None]
        figures = {"forks": plots.forks(known, context.verifier_name)} if known else {}
        measured = {"temperature": 0.0}
        return Outcome(headline(forks), measured, {tables.GREEDY: Table(forks, tables.GREEDY_SCHEMA)}, figures)


def headline(forks: list[Fork]) -> str:
    """How many texts part, with 95% intervals (Clopper and Pearson), and why."""
    parted = [fork for fork in forks if fork.position is not None]
    interval = stats.binomtest(len(parted), len(forks)).proportion_ci(method="exact")
    # A text is followed up to its fork; what comes after is another text.
    followed = sum(fork.tokens if fork.position is None else fork.position + 1 for fork in forks)
    ties = sum(fork.cause == NEAR_TIE for fork in parted)
    rate = stats.binomtest(len(parted), max(followed, 1)).proportion_ci(method="exact")
    text = f"{len(parted)} of {len(forks)} texts part ({interval.low:.1%} to {interval.high:.1%}), one token in "
    text += f"{followed / len(parted):,.0f}" if parted else f"{1 / rate.high:,.0f} or more"
    if parted:
        text += (
            f" ({1 / rate.high:,.0f} to {1 / max(rate.low, 1e-12):,.0f}); {ties} at near ties, {len(parted) - ties} "
        )
        text += f"unexplained; largest margin at a fork {max(abs(fork.plain_margin or 0.0) for fork in parted):.3g}"
    return text


def triage(context: ModelContext, request: Request, plain: Completion, speculative: Completion) -> Fork:
    """Finds the fork of two continuations and scores it in both shapes."""
    one, two = plain.token_ids, speculative.token_ids
    same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
    if same is None and len(one) == len(two):
        return Fork(request.name, len(one))
    if same is None:  # one ends where the other goes on, though both stop by the same rules
        return Fork(request.name, len(one), min(len(one), len(two)), cause=BUG)
    prefix = [*request.prompt, *one[:same]]
    single = _scored(context, prefix, [])
    block = _scored(context, prefix, one[same : same + context.gamma])
    a, b = one[same], two[same]
    margins = [float(logits[a] - logits[b]) for logits in (single, block)]
    noise = float((single - block).abs().max())
    units = ROUNDING.get(context.dtype, ROUNDING[torch.float32])  # in the last place of the largest logit
    most = units * torch.finfo(context.dtype).eps * float(single.abs().max())
    return Fork(request.name, len(one), same, a, b, *margins, noise, cause_of(margins, noise, most))


def cause_of(margins: Sequence[float], noise: float, most: float) -> str:
    """NEAR_TIE where rounding explains a fork.

    Each text follows its own larger logit: an honest fork has margins of both signs, or of the noise's size. And the
    noise is rounding only up to ``most``: two passes that differ by more do not compute the same thing.
    """
    explained = margins[0] * margins[1] <= 0 or min(abs(margin) for margin in margins) <= 2 * noise
    return NEAR_TIE if explained and noise <= most else BUG


def _scored(context: ModelContext, prefix: list[int], following: list[int]) -> torch.Tensor:
    """Float64 logits after the prefix, computed as the first row of a block."""
    # What would come after the last of them is not asked for, so that any id may stand there.
    return logits_along(context.target, [prefix], [[*following, 0]])[0][0].double()
