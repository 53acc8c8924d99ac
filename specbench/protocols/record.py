"""The protocol ``record``: sample texts from the target, score them with both models, keep the trace.

Plain decoding, since its steps need no draft; the text of a decode run has the same distribution, and its job leaves a
trace as well. The trace is all that ``protocol=replay`` needs.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specbench.core.checks import MOST_SAMPLES, check_count
from specbench.core.machine.devices import synchronize
from specbench.core.machine.progress import track
from specbench.core.machine.provenance import request_seed
from specbench.decoding import Completion, Request
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import Conditions, Ignored, Outcome, ParquetTable, RunContext
from specbench.protocols.scoring import draft_model, identity_of, score_texts, trace_table
from specbench.protocols.settings import OWN_SAMPLES, check_draft_model
from specbench.replay.renewal import replay
from specbench.replay.trace import TRACE, Trace, trace_of
from specbench.rules import replayable


@dataclass(frozen=True)
class Recorded:
    """A trace and the table it is stored as.

    Attributes:
        texts: in the order of the trace, where texts of one prompt follow one another.
        seconds_sampling, seconds_scoring: what it took; 0 where it was not timed.
    """

    trace: Trace
    table: ParquetTable
    texts: list[Completion]
    seconds_sampling: float = 0.0
    seconds_scoring: float = 0.0


class RecordProtocol:
    """See the module.

    Args:
        samples: texts a prompt, each with a seed of its own.
    """

    needs_models = True
    ignored_parameters: ClassVar[Ignored] = OWN_SAMPLES
    drafts = False
    own_conditions: ClassVar[Conditions] = {"verifier": "Texts are decoded plainly, without one; leave it out."}

    def __init__(self, samples: int):
        self.samples = check_count("protocol.samples", samples, 1, MOST_SAMPLES)

    def precheck(self, context: RunContext) -> None:
        """Raises ConfigError for a drafter without a model."""
        check_draft_model(context)

    def run(self, context: ModelContext) -> Outcome:
        kept = record(context, repeated(context, self.samples))
        trace = kept.trace
        lengths = {info.title: replay(trace, info, [context.gamma])[0].acceptance_length for info in replayable()}
        by_rule = ", ".join(f"{length:.2f} by the {title}" for title, length in lengths.items())
        return Outcome(
            f"{len(trace)} tokens recorded in {kept.seconds_sampling + kept.seconds_scoring:.1f} s; replayed at "
            f"gamma {context.gamma}, tokens a step: {by_rule}",
            tables={TRACE: kept.table},
        )


def repeated(context: ModelContext, samples: int) -> list[Request]:
    """Every request ``samples`` times: the first as it is, the others with seeds of their own."""

    def seed_of(request: Request, i: int) -> int:
        if i == 0:
            return request.seed
        if request.sampling.seed is not None:  # which its texts depend on, and on its name they do not
            return request_seed(request.seed, f"#{i}")
        return request_seed(context.seed, f"{request.name}#{i}")

    return [
        dataclasses.replace(request, seed=seed_of(request, i)) for i in range(samples) for request in context.requests
    ]


def record(context: ModelContext, requests: Sequence[Request], independent: bool = False) -> Recorded:
    """Samples a text for each request and scores it.

    Args:
        independent: whether texts have other seeds than those that are decoded of the same requests.

    Raises:
        ConfigError: a drafter without a model.
    """
    draft_model(context)  # fails before anything is sampled
    if independent:
        requests = [dataclasses.replace(request, seed=request_seed(request.seed, "record")) for request in requests]
    decoder, completions = context.decoder(0), []
    started = time.perf_counter()
    for batch in track(context.batches(requests), "sampling"):
        completions += decoder.run(batch)
    synchronize(context.target.device)
    sampled = time.perf_counter()
    recording = recorded(context, completions)
    return dataclasses.replace(
        recording, seconds_sampling=sampled - started, seconds_scoring=time.perf_counter() - sampled
    )


def recorded(
    context: ModelContext, completions: Sequence[Completion], scored: list[dict[str, Tensor]] | None = None
) -> Recorded:
    """The trace of texts that were decoded already, in the order of ``repeated``: all prompts, then all again.

    Args:
        scored: what :func:`score_texts` returned for them, where it is there.

    Raises:
        ConfigError: a drafter without a model, or texts that have no trace (:func:`forbidden`).
    """
    scored = score_texts(context, completions) if scored is None else scored
    prompts, identity = len(context.requests), identity_of(context)
    order = sorted(range(len(completions)), key=lambda i: (i % prompts, i))
    requests = [completions[i].request for i in order]
    names = [(request.prompt_name, i // prompts + request.sample) for i, request in zip(order, requests, strict=True)]
    limits = [request.max_new_tokens for request in requests]
    table = trace_table(names, limits, [scored[i] for i in order], identity)
    trace = trace_of(table, identity, TRACE)
    return Recorded(trace, ParquetTable(table, table.schema), [completions[i] for i in order])


def forbidden(completions: Sequence[Completion], scored: Sequence[dict[str, Tensor]]) -> tuple[int, str]:
    """Returns the number of tokens that the target gives no probability, and says which; 0 and "" for its own texts."""
    places = [(columns["log_p"] == -math.inf).nonzero().flatten().tolist() for columns in scored]
    for completion, of_text in zip(completions, places, strict=True):
        if of_text:
            first = f"the first is token {of_text[0] + 1} of prompt {completion.request.name!r}"
            count = sum(map(len, places))
            return count, f"{count} token{'s' if count > 1 else ''} that the target gives no probability ({first})"
    return 0, ""
