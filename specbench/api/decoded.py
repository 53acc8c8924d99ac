"""What ``specbench.decode`` returns: texts, and the measurements of all of them by the names of results' columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specbench.decoding import Completion, Step
from specbench.decoding.logprobs import TokenLogprob, completion_logprobs, prompt_logprobs
from specbench.models import CachedModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Decoded:
    """One prompt's continuation.

    Attributes:
        prompt: token ids.
        text: of the continuation, without special tokens, and without the stop string that ended it, unless
            ``sampling`` says otherwise.
        token_ids: of the continuation, the stop token included, or the token that completed a stop string.
        steps: the step log: tokens drafted, accepted and emitted by each verification.
        finished: "stop" if a stop token or a stop string ended it, "length" if max_new_tokens did.
        stop_reason: the stop string, or the id of ``stop_token_ids``, that ended it; None if the model's own stop token
            or the length did.
        index: the place of its prompt in ``prompts``.
        sample: which of the ``sampling.n`` continuations of its prompt it is, from 0.
        logprobs, prompt_logprobs: of each token of the continuation and of the prompt, if ``sampling`` asks for them.
    """

    prompt: tuple[int, ...]
    text: str
    token_ids: list[int]
    steps: list[Step] = dataclasses.field(repr=False)
    finished: str
    stop_reason: int | str | None = None
    index: int = 0
    sample: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None

    @staticmethod
    def of(completion: Completion, target: CachedModel) -> Decoded:
        """The continuation that a decoder made; ``target`` scores it if its request asks for log-probabilities."""
        return Decoded(
            prompt=completion.request.prompt,
            text=completion.text,
            token_ids=list(completion.token_ids),
            steps=list(completion.steps),
            finished=completion.finished,
            stop_reason=completion.stop_reason,
            index=int(completion.request.prompt_name),
            sample=completion.request.sample,
            logprobs=completion_logprobs(target, completion),
            prompt_logprobs=prompt_logprobs(target, completion),
        )

    @property
    def acceptance_length(self) -> float:
        """Accepted tokens a step, plus 1."""
        return DecodedBatch([self]).acceptance_length

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens; None if nothing was drafted."""
        return DecodedBatch([self]).acceptance_rate


class DecodedBatch(list[Decoded]):
    """The continuations of all prompts in their order: a list, with what was measured over all of them.

    Args:
        texts: the continuations.
        gamma: the largest number of tokens drafted a step.
        measured: columns of results.parquet that the texts do not say: times, speedup, overlap.
    """

    def __init__(self, texts: Iterable[Decoded] = (), gamma: int = 0, measured: Mapping[str, Any] | None = None):
        super().__init__(texts)
        self.gamma, self.measured = gamma, dict(measured or {})

    @property
    def acceptance_length(self) -> float:
        """Accepted tokens a step of all texts together, plus 1; NaN if there are no texts."""
        steps = [step for text in self for step in text.steps]
        return 1 + sum(step.num_accepted for step in steps) / len(steps) if steps else math.nan

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens of all texts together; None if nothing was drafted."""
        steps = [step for text in self for step in text.steps]
        drafted = sum(step.num_draft_tokens for step in steps)
        return sum(step.num_accepted for step in steps) / drafted if drafted else None

    @property
    def joint_rates(self) -> list[float | None]:
        """For i = 1 to gamma: the share of steps that drafted i tokens which accepted at least i of them."""
        return self.results["joint_rates"]

    @property
    def overlap(self) -> float | None:
        """Mean over positions of sum min(p, q), 0 to 1. None unless ``decode(..., overlap=True)`` measured it; None too
        for a drafter without probabilities."""
        return self.measured.get("overlap")

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds of decoding, prompts included. The first call of a process also pays for start-up, unless
        ``compare_plain=True`` decoded a batch before the clock started."""
        return self.measured.get("seconds")

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all continuations by ``seconds``."""
        return self.measured.get("tokens_per_second")

    @property
    def speedup(self) -> float | None:
        """Tokens a second by those of plain decoding; None unless ``decode(..., compare_plain=True)`` measured it. Its
        95% interval is ``results["speedup_low"]`` and ``results["speedup_high"]``, None for a single batch."""
        return self.measured.get("speedup")

    @cached_property
    def results(self) -> dict[str, Any]:
        """Measurements of all texts by the names of columns of results.parquet, with 95% intervals (``_low``,
        ``_high``) over prompts."""
        from specbench.metrics.acceptance import acceptance_fields

        return {**acceptance_fields(self.step_log(), self.gamma), **self.measured}

    def step_log(self) -> pd.DataFrame:
        """A row a verification step: ``prompt`` (its place in ``prompts``), ``sample``, ``step``, ``num_draft_tokens``,
        ``num_accepted``, ``num_emitted``, ``draft_depth``."""
        import pandas as pd

        rows = [
            {"prompt": completion.index, "sample": completion.sample, **dataclasses.asdict(step)}
            for completion in self
            for step in completion.steps
        ]
        fields = [field.name for field in dataclasses.fields(Step) if field.name != "name"]
        return pd.DataFrame(rows, columns=["prompt", "sample", *fields])

    def to_pandas(self) -> pd.DataFrame:
        """A row a continuation: ``prompt`` (its place in ``prompts``), ``sample``, ``text``, ``tokens``, ``steps``,
        ``drafted``, ``accepted``, ``acceptance_rate``, ``acceptance_length``, ``finished``, ``stop_reason``."""
        import pandas as pd

        return pd.DataFrame({name: [value(completion) for completion in self] for name, value in _COLUMNS.items()})


_COLUMNS: dict[str, Callable[[Decoded], Any]] = {
    "prompt": lambda text: text.index,
    "sample": lambda text: text.sample,
    "text": lambda text: text.text,
    "tokens": lambda text: len(text.token_ids),
    "steps": lambda text: len(text.steps),
    "drafted": lambda text: sum(step.num_draft_tokens for step in text.steps),
    "accepted": lambda text: sum(step.num_accepted for step in text.steps),
    "acceptance_rate": lambda text: text.acceptance_rate,
    "acceptance_length": lambda text: text.acceptance_length,
    "finished": lambda text: text.finished,
    "stop_reason": lambda text: text.stop_reason,
}
