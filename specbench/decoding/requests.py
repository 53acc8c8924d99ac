"""Requests, their completions and the log of their steps, on the host."""

import dataclasses
from dataclasses import dataclass, field

from specbench.core.conf import config_name
from specbench.core.errors import ArgumentError, ModelError
from specbench.core.machine.provenance import request_seed, sample_name
from specbench.core.sampling_params import BANS
from specbench.decoding.detokenize import TextStream, Tokenizer
from specbench.decoding.step_result import BAD_DRAFT, BAD_TARGET, RANKS_DIFFER, RequestStep
from specbench.decoding.stopping import StopSearch
from specbench.rules.verifier import Verifier
from specbench.sampling import SamplingParams
from specbench.sampling.batch import FAILED, FULL, RUNNING, STOPPED

_FINISHED = {RUNNING: "", STOPPED: "stop", FULL: "length"}
_MODELS = {BAD_TARGET: "target model", BAD_DRAFT: "drafter"}


@dataclass(frozen=True)
class Request:
    """A text to continue. Its continuation depends on these fields alone, not on the batch it is decoded in.

    Attributes:
        gamma: tokens drafted a step, at most; None is the decoder's, which is the upper limit. Plain decoding ignores
            it.
        category, conversation, turn: columns of tables, on which no result depends: the workload's name for its kind
            of text, the name of its first turn's request (empty: its own), and the number of its turn, from 1.
        stop_ids: ids that end it, in place of the model's own; None takes the model's own. ``ignore_eos`` and
            ``stop_token_ids`` of ``sampling`` change either.
        sample: the number of this continuation of its prompt, from 0.
    """

    name: str
    prompt: tuple[int, ...]
    seed: int
    sampling: SamplingParams
    max_new_tokens: int
    gamma: int | None = None
    stop_ids: frozenset[int] | None = None
    sample: int = 0
    category: str = ""
    conversation: str = ""
    turn: int = 1

    @property
    def labels(self) -> dict[str, str | int]:
        """Its columns in tables, but for its name."""
        return {"category": self.category, "conversation": self.conversation or self.prompt_name, "turn": self.turn}

    @property
    def prompt_name(self) -> str:
        """The name of its prompt, which all continuations of it share."""
        return self.name.removesuffix(sample_name("", self.sample)) if self.sample else self.name


def requests_of(
    name: str,
    prompt: tuple[int, ...],
    sampling: SamplingParams,
    seed: int,
    max_new_tokens: int,
    gamma: int | None = None,
) -> list[Request]:
    """Returns the ``sampling.n`` requests of one prompt.

    Args:
        prompt: token ids, of which the last ``sampling.truncate_prompt_tokens`` are kept.
        seed: of the first request, unless ``sampling.seed`` is set. Those of the others are derived from the first's
            and their number alone.
        max_new_tokens: unless ``sampling.max_tokens`` is set.
    """
    fed = prompt[-(sampling.truncate_prompt_tokens or 0) :]
    first = seed if sampling.seed is None else sampling.seed
    most = sampling.max_tokens or max_new_tokens
    request = Request(name, fed, first, sampling, most, gamma)
    others = [
        dataclasses.replace(request, name=sample_name(name, i), seed=request_seed(first, f"#{i}"), sample=i)
        for i in range(1, sampling.n)
    ]
    return [request, *others]


@dataclass(frozen=True)
class Step:
    """One verification of one request; num_emitted < num_accepted + 1 only where the end of the text cut the block.

    num_accepted is the number that the verifier accepted, also behind the end of the text; num_emitted tokens stand.

    draft_depth is the largest number of tokens that could have been accepted: num_draft_tokens, or a tree's depth.
    """

    name: str
    step: int
    num_draft_tokens: int
    num_accepted: int
    num_emitted: int
    draft_depth: int


@dataclass
class Completion:
    """A request's continuation so far.

    Attributes:
        token_ids: the stop token included, or the token that completed a stop string.
        finished: "stop" or "length" once it is.
        stop_reason: the stop string, or the id of ``stop_token_ids``, that ended it; None if the model's own stop token
            or the length did, as in vLLM.
        hidden: complete characters at the end of the tokens' text that are not shown, if a stop string ended it.
        started: when the decoder admitted the request, in seconds of time.perf_counter(), as are the two below.
        first_token: when the host had read the step of the first token; None before.
        ended: when the host had read the step of the last token; None before.
    """

    request: Request
    token_ids: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished: str = ""
    stop_reason: int | str | None = None
    hidden: int | None = None
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    search: StopSearch | None = field(default=None, repr=False, compare=False)
    started: float = field(default=0.0, repr=False, compare=False)
    first_token: float | None = field(default=None, repr=False, compare=False)
    ended: float | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.request.sampling.stop:
            self.search = StopSearch(self._stream(), self.request.sampling)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - len(self.token_ids)

    @property
    def text(self) -> str:
        """The continuation as it is shown.

        A stop token or stop string that ended it is shown if the request sets ``include_stop_str_in_output``, special
        tokens if it sets ``skip_special_tokens=False``.

        Raises:
            ArgumentError: the decoder has no tokenizer.
        """
        by_token = self.finished == "stop" and self.hidden is None
        dropped = by_token and not self.request.sampling.include_stop_str_in_output
        stream = self._stream()
        whole = stream.feed(self.token_ids[:-1] if dropped else self.token_ids)
        return whole + stream.rest() if self.hidden is None else whole[: len(whole) - self.hidden]

    def record(self, step: RequestStep, verifier: Verifier | None, read: float) -> None:
        """Adds what a step emitted, and ends the continuation if it ended there.

        Args:
            verifier: of the step, which messages name.
            read: when the host had read the step, in seconds of time.perf_counter().

        Raises:
            ModelError: NaN or infinite logits, a step without a token, or ranks that disagree.
        """
        name, number = self.request.name, len(self.steps)
        if step.finished == FAILED:
            raise ModelError(_failure(self.request, number, step.bad, verifier))
        tokens = step.token_ids[: step.num_emitted]
        self.finished = _FINISHED[step.finished]
        by_token = step.finished == STOPPED
        if by_token and tokens[-1] in self.request.sampling.stop_token_ids:
            self.stop_reason = tokens[-1]
        # A stop token is no text, in which there could be a stop string.
        if self.search and (match := self.search.feed(tokens[:-1] if by_token else tokens)):
            tokens = tokens[: match.tokens - len(self.token_ids)]
            self.finished, self.stop_reason, self.hidden = "stop", match.text, match.hidden
        self.token_ids.extend(tokens)
        self.steps.append(Step(name, number, step.num_draft_tokens, step.num_accepted, len(tokens), step.draft_depth))
        if self.first_token is None:
            self.first_token = read
        if self.finished:
            self.ended = read

    def _stream(self) -> TextStream:
        if self.tokenizer is None:
            raise ArgumentError("tokenizer: None; a Decoder needs one for stop strings and for the text that it writes")
        return TextStream(self.tokenizer, self.request.prompt, self.request.sampling.skip_special_tokens)


def _failure(request: Request, number: int, bad: int, verifier: Verifier | None) -> str:
    """Returns a message on a step that failed; of one without a token it names what bans tokens, or the verifier."""
    where = f"prompt {request.name!r} at step {number}"
    # Resolved parameters have a processor for structured_outputs, which the user knows by that name.
    own = [processor for processor in request.sampling.processors if not hasattr(processor, "parameter")]
    if bad in _MODELS:
        names = ", ".join(type(processor).__name__ for processor in own)
        first = f"Check sampler.processors ({names}), which change them, and" if own else "Check"
        remedy = f"{first} its weights, or use dtype=float32."
        return f"The {_MODELS[bad]} returned NaN or infinite logits for {where}. {remedy}"
    if bad == RANKS_DIFFER:
        name = config_name("verifier", verifier)
        return (
            f"parallel=tensor: ranks disagree on the logits or tokens of {where}. Check that all GPUs are of one "
            f"model, and that verifier={name} uses only its `streams` argument for randomness."
        )
    sampling = request.sampling
    values = {name: own if name == "processors" else getattr(sampling, name) for name in BANS}
    bans = [f"sampler.{name}" for name, value in values.items() if value]
    banned = f"Check whether {' and '.join(bans)} leave a token that may come" if bans else ""
    suspect = "" if verifier is None else f"{'and' if bans else 'Check'} verifier={config_name('verifier', verifier)}"
    remedy = ", ".join(filter(None, [banned, suspect])) or "Check the target's logits"
    return f"Nothing could be drawn for {where}, though no logit is NaN or +inf. {remedy}."
