"""What ``protocol=eprocess`` does at temperature 0, where nothing is drawn that one could bet on.

Every text is decoded plainly and speculatively. If two part, the text up to the fork is scored in both shapes, token by
token and block by block, so that a near tie can be told from a bug (exactness/texts/forks.py). All of it, since what
stands in the cache was rounded in these shapes too: in 16 bits that alone can move an argmax.
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Float64
from torch import Tensor

from specbench.core.machine.progress import track
from specbench.decoding import Completion, logits_along, rows_along
from specbench.exactness import tables
from specbench.exactness.texts.forks import BUG, Fork, cause_of, headline
from specbench.exactness.texts.support import tolerance_of
from specbench.protocols.base import Outcome, Table
from specbench.protocols.model_context import ModelContext
from specbench.reports.plots import evidence as plots


def greedy_divergence(context: ModelContext, tolerance: float | None) -> Outcome:
    """Decodes the workload both ways and explains every fork.

    Args:
        context: of temperature 0.
        tolerance: by how much a logit may differ between the two shapes; None takes it from its dtype and size.
    """
    speculative = context.decoder()
    plain = context.decoder(0)
    requests = context.requests
    batches = [requests[i : i + context.batch_size] for i in range(0, len(requests), context.batch_size)]
    forks = []
    for batch in track(batches, "decoding twice"):
        for one, two in zip(plain.run(batch), speculative.run(batch), strict=True):
            forks.append(triage(context, one, two, tolerance))
    known = [dataclasses.asdict(fork) for fork in forks if fork.logit_noise is not None]
    figures = {"forks": plots.forks(known, context.verifier_name)} if known else {}
    return Outcome(headline(forks), {}, {tables.GREEDY: Table(forks, tables.GREEDY_SCHEMA)}, figures)


def triage(context: ModelContext, plain: Completion, speculative: Completion, tolerance: float | None = None) -> Fork:
    """Finds the fork of two continuations of one request and scores it in both shapes."""
    name, one, two = plain.request.name, plain.token_ids, speculative.token_ids
    same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
    if same is None and len(one) == len(two):
        return Fork(name, len(one))
    if same is None:  # one ends where the other goes on, though both stop by the same rules
        return Fork(name, len(one), min(len(one), len(two)), cause=BUG)
    single, most = _scored(context, plain, same, 1, tolerance)
    block, _ = _scored(context, plain, same, context.gamma + 1, tolerance)
    a, b = one[same], two[same]
    margins = [float(logits[a] - logits[b]) for logits in (single, block)]
    noise = float((single - block).nan_to_num(nan=0.0).abs().max())  # -inf in both, of a banned token, is the same
    return Fork(name, len(one), same, a, b, *margins, noise, cause_of(margins, noise, most))


def _scored(
    context: ModelContext, plain: Completion, place: int, width: int, tolerance: float | None
) -> tuple[Float64[Tensor, " V"], float]:
    """What the token at a place of the plain text is the argmax of, if the text is fed ``width`` tokens at a time; and
    by how much rounding may move it."""
    request, text = plain.request, plain.token_ids[: place + 1]
    logits = logits_along(context.target, [request.prompt], [text], width)[0][place:]
    rows = rows_along(logits, request.sampling, request.prompt, text, place)
    return rows.logits[0].double(), float(tolerance_of(logits, tolerance)[0])
