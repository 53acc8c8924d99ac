"""The table of log-probabilities that ``sampler.logprobs`` and ``sampler.prompt_logprobs`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.decoding import Completion
from specbench.decoding.logprobs import completion_logprobs, prompt_logprobs
from specbench.metrics.results import schema_of
from specbench.protocols.contract import ParquetTable
from specbench.protocols.model_context import ModelContext

LOGPROBS = "logprobs.parquet"


@dataclass(frozen=True)
class LogprobRow:
    """One token of a prompt or of a continuation; see :class:`specbench.decoding.logprobs.TokenLogprob`."""

    prompt: str
    part: str  # prompt, completion
    position: int  # in its part, from 0
    token_id: int
    token: str
    logprob: float | None
    rank: int | None
    top_ids: list[int]
    top_logprobs: list[float]


SCHEMA = schema_of(LogprobRow)


def logprob_table(context: ModelContext, completions: Sequence[Completion]) -> dict[str, ParquetTable]:
    """The table by its file name; empty if no request asks for one."""
    decode = context.pair.tokenizer.decode
    rows = []
    for completion in completions:
        parts = {"prompt": prompt_logprobs, "completion": completion_logprobs}
        for part, scores in ((name, score(context.target, completion)) for name, score in parts.items()):
            for i, token in enumerate(scores or ()):
                ids, values = [t for t, _ in token.top], [value for _, value in token.top]
                text = str(decode([token.token_id]))
                row = LogprobRow(
                    completion.request.name, part, i, token.token_id, text, token.logprob, token.rank, ids, values
                )
                rows.append(row)
    return {LOGPROBS: ParquetTable(rows, SCHEMA)} if rows else {}
