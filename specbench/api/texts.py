"""``specbench.decode`` and ``specbench.record``: texts of a pair of models, and what the models think of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType

from specbench.api.prompts import Prompts, gammas_of, listed, token_ids
from specbench.api.verifiers import verifier_of
from specbench.checks import check_count
from specbench.decoding import Decoder, DecodingEngine, Request, Step
from specbench.decoding.logprobs import TokenLogprob, completion_logprobs, prompt_logprobs
from specbench.decoding.requests import requests_of
from specbench.drafters import Drafter
from specbench.errors import ArgumentError
from specbench.models import Engine, Pair
from specbench.protocols.model_context import ModelContext
from specbench.protocols.parameters import check_parameters
from specbench.protocols.record import RecordProtocol, repeated
from specbench.protocols.record import record as record_requests
from specbench.provenance import request_seed
from specbench.replay.trace import Trace
from specbench.results import NO_DRAFT
from specbench.runs.choices import chosen
from specbench.sampling import Constraint, SamplingParams, on_host
from specbench.sampling_params import LARGEST_SEED, processors_named
from specbench.verifiers import Verifier


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
    steps: list[Step]
    finished: str
    stop_reason: int | str | None = None
    index: int = 0
    sample: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None

    @property
    def acceptance_length(self) -> float:
        """Accepted tokens a step, plus 1."""
        return acceptance_length([self])


class DecodedBatch(list[Decoded]):
    """The continuations of all prompts, in their order: a list, and what is true of all of them."""

    @property
    def acceptance_length(self) -> float:
        """Accepted tokens a step of all texts together, plus 1: the column of this name of results.parquet."""
        return acceptance_length(self)


def acceptance_length(texts: Sequence[Decoded]) -> float:
    """(accepted + steps) / steps over all texts; what a run's results call acceptance_length (tau)."""
    steps = [step for text in texts for step in text.steps]
    return 1 + sum(step.num_accepted for step in steps) / len(steps)


def decode(
    pair: Pair,
    prompts: Prompts,
    *,
    gamma: int | Iterable[int] = 4,
    verifier: str | Verifier = "masked",
    drafter: str | Drafter = "model",
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 64,
    seed: int = 0,
    batch_size: int = 8,
    engine: str | DecodingEngine = "auto",
) -> DecodedBatch:
    """Continues prompts by speculative decoding: the draft model proposes, the target scores, the verifier decides.

    Args:
        pair: of :func:`specbench.load_pair`.
        prompts: a text, or texts, or sequences of token ids, in an order. Texts go through the pair's chat template if
            it uses one.
        gamma: tokens drafted a step, 0 (plain decoding by the target alone) to 64; of all prompts, or a list with a
            number for each of them.
        verifier: a name of conf/verifier, or an object with ``verify(draft, target, streams)``.
        drafter: a name of conf/drafter, such as "model" (the pair's draft), or "layer_skip" and "prompt_lookup", which
            need no draft model, or a Drafter.
        sampling: how both models sample, what ends a text, and how it is shown; None is temperature 1, nothing cut off.
        max_new_tokens: the most tokens of a continuation, unless ``sampling.max_tokens`` says otherwise.
        seed: of the random numbers, 0 to 2^63 - 1; every prompt gets a seed of its own from it and its place in
            ``prompts``, unless ``sampling.seed`` is set.
        batch_size: prompts decoded side by side; as one ends, another takes its place.
        engine: a name of conf/engine, such as "eager" or "graph", or a DecodingEngine: how steps are taken. "auto" is
            CUDA graphs on a GPU, and eager elsewhere.

    Returns:
        DecodedBatch: a list with one Decoded a prompt (``text``, ``token_ids``, ``steps``, ``acceptance_length``), or
        ``sampling.n`` of each, one after the other; its own ``acceptance_length`` is that of all.

    Raises:
        ArgumentError: an unknown verifier, drafter or engine; a prompt that is empty or too long for the models.
        ConfigError: a number outside its range, or min_tokens above max_new_tokens; a drafter of trees, such as "tree",
            with a verifier of chains alone; a drafter that needs a draft model, for a pair without one.
        ModelError: NaN or infinite logits.

    Example:
        >>> import specbench
        >>> pair = specbench.load_pair("embedded:target", "embedded:draft")
        >>> texts = specbench.decode(pair, ["def add(a, b):", "import "], gamma=4, verifier="block")
        >>> texts[0].text, texts.acceptance_length  # doctest: +SKIP
    """
    requests = _requests(pair, prompts, sampling, max_new_tokens, seed)
    requests, most = _with_gammas(requests, gamma)
    size = check_count("batch_size", batch_size)
    host = on_host(requests[0].sampling)
    decoder = _decoder(pair, most, verifier_of(verifier), _drafter_of(drafter), _engine_of(engine), host)
    decoder.reserve(requests, size)
    completions = decoder.run(requests, at_once=size)
    return DecodedBatch(
        Decoded(
            each.request.prompt,
            each.text,
            list(each.token_ids),
            list(each.steps),
            each.finished,
            each.stop_reason,
            int(each.request.prompt_name),
            each.request.sample,
            completion_logprobs(decoder.parts.target, each),
            prompt_logprobs(decoder.parts.target, each),
        )
        for each in completions
    )


def record(
    pair: Pair,
    prompts: Prompts,
    *,
    drafter: str | Drafter = "model",
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 64,
    samples: int = 1,
    seed: int = 0,
    batch_size: int = 8,
) -> Trace:
    """Samples texts from the target and scores them with both models: all that :func:`specbench.replay` needs.

    Args:
        drafter: whose distributions are recorded beside the target's: "model" (the pair's draft), "layer_skip", or a
            Drafter that has some.
        samples: texts a prompt, each with a seed of its own.
        pair, prompts, sampling, max_new_tokens, seed, batch_size: as in :func:`specbench.decode`.

    Returns:
        Trace: a line a token with its log-probability under both models, and what it is a trace of, processors
        included.

    Raises:
        ArgumentError, ConfigError, ModelError: as in :func:`specbench.decode`.

    Example:
        >>> import specbench
        >>> pair = specbench.load_pair("embedded:target", "embedded:draft")
        >>> trace = specbench.record(pair, ["def add(a, b):", "import "], samples=4)
        >>> [each.acceptance_length for each in specbench.replay(trace, "block", [1, 2, 4])]  # doctest: +SKIP
    """
    samples, seed = check_count("samples", samples), check_count("seed", seed, 0, LARGEST_SEED)
    check_parameters(sampling or SamplingParams(), RecordProtocol(samples))
    requests = _requests(pair, prompts, sampling, max_new_tokens, seed)
    context = _context(pair, _drafter_of(drafter), requests, seed, check_count("batch_size", batch_size))
    return record_requests(context, repeated(context, samples)).trace


def _requests(
    pair: Pair, prompts: Prompts, sampling: SamplingParams | None, max_new_tokens: int, seed: int
) -> list[Request]:
    seed = check_count("seed", seed, 0, LARGEST_SEED)
    max_new_tokens = check_count("max_new_tokens", max_new_tokens)
    if not isinstance(pair, Pair):
        raise ArgumentError(f"pair: a {type(pair).__name__}; give what specbench.load_pair returns")
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise ArgumentError(f"sampling: a {type(sampling).__name__}; give specbench.SamplingParams(...), or None")
    each = listed(prompts)
    if not each:
        raise ArgumentError("prompts: empty; give a text, or a list of texts or of token ids")
    sampling = sampling or SamplingParams()
    sampling.check_length(max_new_tokens)
    sampling = pair.resolved(sampling)
    requests = []
    for i, prompt in enumerate(each):
        ids = tuple(pair.encode(prompt)) if isinstance(prompt, str) else token_ids(f"prompts[{i}]", prompt)
        if not ids:
            raise ArgumentError(f"prompts[{i}]: no tokens")
        if min(ids) < 0 or max(ids) >= pair.vocab_size:
            raise ArgumentError(f"prompts[{i}]: ids outside 0 to {pair.vocab_size - 1}, the pair's vocabulary")
        made = requests_of(str(i), ids, sampling, request_seed(seed, str(i)), max_new_tokens)
        tokens, most = len(made[0].prompt), made[0].max_new_tokens
        if tokens + most > pair.context:
            raise ArgumentError(
                f"prompts[{i}]: {tokens} tokens and max_new_tokens={most} are more than the pair's context of "
                f"{pair.context}"
            )
        requests += made
    return requests


def _with_gammas(requests: Sequence[Request], given: int | Iterable[int]) -> tuple[list[Request], int]:
    """The requests with the gammas of their prompts, and the largest of these."""
    prompts = list(dict.fromkeys(request.prompt_name for request in requests))
    gammas = dict(zip(prompts, gammas_of(given, len(prompts)), strict=True))
    made = [dataclasses.replace(request, gamma=gammas[request.prompt_name]) for request in requests]
    return made, max(gammas.values())


def _drafter_of(given: str | Drafter) -> Drafter:
    made = chosen("drafter", given) if isinstance(given, str) else given
    if not isinstance(made, Drafter):
        raise ArgumentError(f"drafter: a {type(given).__name__}; a name of conf/drafter or a Drafter needed")
    return made


def _engine_of(given: str | DecodingEngine) -> DecodingEngine:
    made = chosen("engine", given) if isinstance(given, str) else given
    if not isinstance(made, DecodingEngine):
        raise ArgumentError(f"engine: a {type(given).__name__}; a name of conf/engine or a DecodingEngine needed")
    return made


def _decoder(
    pair: Pair, gamma: int, verifier: Verifier, drafter: Drafter, engine: DecodingEngine, host: str
) -> Decoder:
    target = _target(pair)
    parts = (None, None) if gamma == 0 else (drafter.bind(pair, target), verifier)
    return Decoder(target, *parts, gamma, pair.stop_ids, engine.chosen(target.device, *parts, host), pair.tokenizer)


def _target(pair: Pair) -> Engine:
    return Engine(pair.target, pair.vocab_size, "target")


def _context(pair: Pair, drafter: Drafter, requests: Sequence[Request], seed: int, batch_size: int) -> ModelContext:
    """What the protocol ``record`` reads of a run. It decodes plainly, so that no verifier is asked."""
    target, name = _target(pair), pair.target.name_or_path or "target"
    draft_name = NO_DRAFT if pair.draft is None else pair.draft.name_or_path or "draft"
    return ModelContext(
        verifier=verifier_of("masked"),
        verifier_name="masked",
        sampling=requests[0].sampling,
        gamma=0,
        batch_size=batch_size,
        seed=seed,
        device=pair.target.device,
        dtype=pair.target.dtype,
        title="",
        command="specbench.record(...)",
        pair=pair,
        target=target,
        drafter=drafter.bind(pair, target),
        requests=requests,
        names=(name, drafter.draft_name(name, draft_name)),
        processors=_processors_text(requests[0].sampling),
    )


def _processors_text(sampling: SamplingParams) -> str:
    """What a trace calls its processors: as ``sampler.processors`` would name them, if the attributes of each are the
    arguments of its class; empty for none."""
    named = []
    for each in sampling.processors:
        if isinstance(each, Constraint):
            continue  # named by what it was made from
        kind = each if isinstance(each, FunctionType) else type(each)
        named.append({"_target_": f"{kind.__module__}.{kind.__qualname__}", **getattr(each, "__dict__", {})})
    return processors_named(named, sampling)
