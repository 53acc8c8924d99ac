"""The protocol ``decode``: decode the workload speculatively and plainly, in turns, and measure both.

Plain decoding is timed in the same run, in paired rounds (rounds.py); texts, acceptance and overlap are the first
round's. Times are wall-clock and end to end: prompts, drafting, verification and all bookkeeping.

Requests are decoded in groups, each of which is timed as one. A group of ``batch_size`` requests is a batch that ends
before the next begins; its last steps are of few requests, since texts end at different times. A larger group is a
continuous batch, as serving engines have it: ``batch_size`` requests are side by side until none is left to come.
Texts of one prompt, and the turns of a conversation, are in one group, which may be larger for that.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch

from specbench.benchmark.weights import copy_bandwidth, weight_bytes
from specbench.core.checks import MOST_ROUNDS, check_count, check_flag
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.core.machine.devices import texts_repeat
from specbench.core.rounding import speedup
from specbench.decoding import Completion, Request
from specbench.decoding.detokenize import Tokenizer, text_of
from specbench.decoding.logprobs import completion_logprobs, prompt_logprobs
from specbench.metrics.acceptance import acceptance_fields, position_estimates
from specbench.metrics.definitions import latency_columns
from specbench.metrics.results import (
    BASELINES,
    CATEGORIES,
    EMPIRICAL,
    STEPS,
    TEXTS,
    BaselineRow,
    CategoryRow,
    EmpiricalRow,
    StepRow,
    TextRow,
)
from specbench.protocols.against import against, check_ways, wrong_texts
from specbench.protocols.categories import by_category
from specbench.protocols.empirical import CheckSettings, check_first_tokens
from specbench.protocols.model_context import ModelContext, count_prompts, in_groups, in_prompt_groups
from specbench.protocols.protocol import Ignored, Outcome, ParquetTable, RunContext
from specbench.protocols.record import forbidden, recorded
from specbench.protocols.rounds import ROUNDS, RoundRow, TimedRounds, speed_fields, timed_rounds
from specbench.protocols.scoring import overlap_fields, score_texts, shared_fields
from specbench.protocols.settings import NOTHING, RoundSettings
from specbench.protocols.together import shared_rounds
from specbench.replay.trace import TRACE
from specbench.reports.plots import decode as plots
from specbench.reports.plots.exactness import empirical_against_target
from specbench.reports.winner import disturbed
from specbench.rules.verifier import capabilities

BY_CATEGORY = "category"
LOGPROBS = "logprobs.parquet"
BY_ROUNDING = 1e-3  # of all tokens


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


class DecodeProtocol:
    """See the module.

    Args:
        rounds, max_rounds, seconds: see :class:`specbench.protocols.rounds.RoundSettings`.
        warmup: times the first batch is decoded both ways before the clock starts.
        together: whether jobs of a sweep that differ in verifier and gamma alone share their rounds (together.py), if
            they run in one process. ``seconds`` are then those of all of them; rounds and max_rounds play no role.
        check: settings of the empirical-against-target check.
        against: other decoders to time on the same requests, in batches of batch_size (against.py).
        group: requests that are timed as one; 0 is all of the workload, None is batch_size, and "category" is all of a
            category.
    """

    needs_models = True
    ignored_parameters: ClassVar[Ignored] = NOTHING
    times = True
    mixed_sampling = True

    def __init__(
        self,
        rounds: int,
        max_rounds: int,
        seconds: float | int,
        warmup: int,
        check: Mapping[str, Any],
        against: Sequence[str] = (),
        group: object = None,
        together: object = False,
    ):
        self.rounds = RoundSettings(rounds, max_rounds, seconds)
        self.warmup = check_count("protocol.warmup", warmup, 0, MOST_ROUNDS)
        self.check = CheckSettings(**check)
        self.against = check_ways(against)
        self.together = check_flag("protocol.together", together)
        if self.together and self.against:
            remedy = "Use protocol.together=false, or protocol.against=[]."
            raise ConfigError("protocol.against", list(self.against), "not timed in rounds that jobs share", remedy)
        self.by_category = group == BY_CATEGORY
        counted = group is not None and not self.by_category
        self.group = check_count("protocol.group", group, least=0) if counted else None

    def precheck(self, context: RunContext) -> None:
        """Raises ConfigError for groups that fill no batch."""
        if self.group and self.group < context.batch_size:
            problem = f"fewer than batch_size={context.batch_size}, so that no batch is ever full"
            remedy = f"Use {context.batch_size} or more, 0 for all requests, or null for batch_size."
            raise ConfigError("protocol.group", self.group, problem, remedy)

    def run(self, context: ModelContext) -> Outcome:
        """Decodes, measures, checks; see :class:`specbench.protocols.protocol.MeasurementProtocol`."""
        groups, baselines = self._groups(context), []
        if self.together and context.together is not None:
            timed = shared_rounds(context, groups, self.rounds.seconds, self.warmup)
        else:
            plain = context.decoder(0)
            timed = timed_rounds(
                plain, context.decoder(), groups, self.rounds, context.batch_size, self.warmup, context.journal
            )
            batches = in_groups([request for group in groups for request in group], context.batch_size)
            plain_texts = [c.token_ids for batch, _ in timed.first for c in batch.completions]
            baselines = against(context, self.against, batches, plain_texts, len(timed.times.seconds), plain)
        completions = [c for _, batch in timed.first for c in batch.completions]
        steps = step_log(completions)
        check, empirical = check_first_tokens(context, self.check)
        scored = score_texts(context, completions) if context.drafter.rates_any_text else None
        outside, wrong = (0, "") if scored is None else forbidden(completions, scored)
        mixed = any(request.sampling != context.sampling for request in context.requests)  # a trace is of one sampler
        rounds = by_category(steps, timed)
        categories = {CATEGORIES: ParquetTable(rounds, CategoryRow)} if rounds else {}
        measured: dict[str, Any] = {
            "prompts_decoded": count_prompts(completion.request for completion in completions),
            **acceptance_fields(steps, context.gamma),
            **overlap_fields(scored, completions),
            **shared_fields(context, completions, scored),
            **speed_fields(timed),
            **latency_columns(timed.request_times),
            "group": max(map(len, groups)),
            "weight_bytes_target": weight_bytes(context.target),
            "weight_bytes_draft": weight_bytes(context.drafter.model),
            "copy_bandwidth": copy_bandwidth(context.device),
            **check,
        }
        figures = {"acceptance_histogram": plots.acceptance_histogram(measured["acceptance_histogram"], context.title)}
        if rates := plots.position_rates(*position_estimates(steps, context.gamma)):
            figures["position_rates"] = rates
        if empirical:
            figures["empirical_against_target"] = empirical_against_target(pd.DataFrame(empirical))
        return Outcome(
            headline(measured, timed, capabilities(context.verifier).synthetic, wrong),
            measured,
            {
                ROUNDS: ParquetTable(timed.rows(), RoundRow),
                STEPS: ParquetTable(steps.to_dict("records"), StepRow),
                EMPIRICAL: ParquetTable(empirical, EmpiricalRow),
                TEXTS: ParquetTable([text_row(context.pair.tokenizer, c) for c in completions], TextRow),
                **logprob_table(context, completions),
                **categories,
                **({} if scored is None or mixed or wrong else {TRACE: recorded(context, completions, scored).table}),
                **({BASELINES: ParquetTable(baselines, BaselineRow)} if baselines else {}),
            },
            figures,
            failure=forbidden_failure(context, outside, measured["tokens"], wrong)
            or repeat_failure(timed.differing, context.device, context.dtype)
            or wrong_texts(baselines, context.device, context.dtype),
        )

    def _groups(self, context: ModelContext) -> list[Sequence[Request]]:
        """The requests that are timed as one."""
        if self.by_category:
            names = dict.fromkeys(request.category for request in context.requests)
            return [[request for request in context.requests if request.category == name] for name in names]
        size = context.batch_size if self.group is None else self.group or len(context.requests)
        return in_prompt_groups(context.requests, size)


def step_log(completions: Sequence[Completion]) -> pd.DataFrame:
    """The steps of all texts in the columns of results.StepRow."""
    log = [{**dataclasses.asdict(step), **c.request.labels} for c in completions for step in c.steps]
    return pd.DataFrame(log).rename(columns={"name": "prompt"})


def headline(measured: Mapping[str, Any], timed: TimedRounds, synthetic: bool = False, wrong: str = "") -> str:
    """The run in a line: acceptance, speedup, and what keeps the speedup or the texts from being trusted.

    Args:
        wrong: tokens that the target gives no probability (:func:`specbench.protocols.record.forbidden`).
    """
    ratio = speedup(*(measured[f"speedup{end}"] for end in ("", "_low", "_high")))
    parts = [f"{measured['tokens'] / measured['steps']:.2f} tokens a step, {ratio} times plain decoding"]
    if measured["speedup_low"] is None:
        parts.append("no interval, since all was timed in one batch")
    if synthetic:
        parts.append("synthetic acceptance, so the texts are no model's")
    if timed.differing:
        parts.append(f"{timed.differing} texts of later rounds are not those of the first")
    if wrong:
        parts.append(f"{wrong}, so no trace")
    return "; ".join(filter(None, [*parts, disturbed([timed.disturbance])]))


def forbidden_failure(context: ModelContext, outside: int, tokens: int, wrong: str) -> str | None:
    """Why tokens that the target gives no probability are an error, unless the verifier is lossy.

    Rounding makes a few: of scores that are nearly equal, another is the largest in a pass of another shape.
    """
    too_many = texts_repeat(context.device, context.dtype) and outside > max(1, BY_ROUNDING * tokens)
    if not (too_many and context.verifier.lossless):
        return None
    return f"verifier={config_name('verifier', context.verifier)} is declared lossless, and wrote {wrong}."


def repeat_failure(differing: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why rounds that wrote other texts than the first are an error; on a GPU or in 16 bits rounding may do that."""
    if differing == 0 or not texts_repeat(device, dtype):
        return None
    return (
        f"{differing} texts of later rounds differ from those of the first, though their seeds are the same. The "
        "verifier or the drafter has randomness of its own, or a text leaves something behind for the next one. "
        "protocol.rounds=1 protocol.max_rounds=1 decodes each text once."
    )


def text_row(tokenizer: Tokenizer, completion: Completion) -> TextRow:
    """The row of a text that has ended; the pair's ``tokenizer`` tells its prompt."""
    request, reason = completion.request, completion.stop_reason
    labels: Any = request.labels
    return TextRow(
        prompt=request.name,
        text=text_of(tokenizer, request.prompt, skip_special_tokens=True),
        completion=completion.text,
        tokens=len(completion.token_ids),
        finished=completion.finished,
        stop_reason=None if reason is None else str(reason),
        **labels,
    )


def logprob_table(context: ModelContext, completions: Sequence[Completion]) -> dict[str, ParquetTable]:
    """The table of log-probabilities that requests ask for, by its file name; empty if none does."""
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
