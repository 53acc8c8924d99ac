"""The table of log-probabilities that ``sampler.logprobs`` and ``sampler.prompt_logprobs`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.decoding import Completion
from specbench.decoding.detokenize import text_of
from specbench.decoding.logprobs import completion_logprobs, prompt_logprobs
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import ParquetTable

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


def logprob_table(context: ModelContext, completions: Sequence[Completion]) -> dict[str, ParquetTable]:
    """The table by its file name; empty if no request asks for one."""
    rows = [
        LogprobRow(
            prompt=completion.request.name,
            part=part,
            position=position,
            token_id=token.token_id,
            token=text_of(context.pair.tokenizer, [token.token_id], skip_special_tokens=False),
            logprob=token.logprob,
            rank=token.rank,
            top_ids=[token_id for token_id, _ in token.top],
            top_logprobs=[logprob for _, logprob in token.top],
        )
        for completion in completions
        for part, logprobs in (("prompt", prompt_logprobs), ("completion", completion_logprobs))
        for position, token in enumerate(logprobs(context.target, completion) or ())
    ]
    return {LOGPROBS: ParquetTable(rows, LogprobRow)} if rows else {}
