"""``load_pair``, ``decode`` and ``record``: a pair of models, its texts, and what the models think of them."""

import dataclasses
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any, TypeVar

from specbench.api.decoded import Decoded, DecodedBatch
from specbench.api.per_request import Samplings, Seeds, gammas_of, samplings_of, seeds_of, single_sampling
from specbench.api.prompts import Prompts, encode_prompt, split_prompts
from specbench.api.verifiers import name_of, verifier_of
from specbench.core.checks import check_count, check_flag
from specbench.core.errors import ArgumentError
from specbench.core.machine.progress import progress
from specbench.core.naming import names_arguments
from specbench.core.sampling_params import LARGEST_SEED, processors_named
from specbench.decoding import Completion, Decoder, DecodingEngine, Request
from specbench.decoding.engines import Requirements
from specbench.decoding.requests import requests_of
from specbench.drafters import Drafter, draft_name
from specbench.metrics.run_row import NO_DRAFT
from specbench.models import CachedModel, Pair, loading
from specbench.protocols.model_context import ModelContext, in_prompt_groups
from specbench.protocols.record import RecordProtocol, repeated
from specbench.protocols.record import record as record_requests
from specbench.protocols.rounds import decode_timed, speed_fields, timed_rounds
from specbench.protocols.scoring import overlap_fields, score_texts
from specbench.protocols.settings import RoundSettings, check_parameters
from specbench.replay.trace import Trace
from specbench.rules.verifier import Verifier
from specbench.runs.choices import chosen
from specbench.sampling import SamplingParams, on_host

Kind = TypeVar("Kind")
_GROUPS = {"sampler.": "sampling.", "protocol.": ""}
load_pair = names_arguments({"pair.": ""})(loading.load_pair)
_ROUNDS = RoundSettings(rounds=2, max_rounds=6, seconds=60)  # as protocol=decode


@names_arguments(_GROUPS)
def decode(
    pair: Pair,
    prompts: Prompts,
    *,
    gamma: int | Iterable[int] = 4,
    verifier: str | Verifier = "masked",
    drafter: str | Drafter = "model",
    sampling: Samplings = None,
    max_new_tokens: int = 64,
    seed: Seeds = 0,
    batch_size: int = 8,
    engine: str | DecodingEngine = "auto",
    compare_plain: bool = False,
    overlap: bool = False,
) -> DecodedBatch:
    """Continues prompts by speculative decoding: the draft model proposes, the target scores, the verifier decides.

    Args:
        pair: of :func:`specbench.load_pair`.
        prompts: a prompt or a list of prompts. A prompt is a text, a list of token ids, or a conversation up to its
            next reply: a list of messages, ``{"role": "user", "content": "..."}``. Texts and conversations go through
            the pair's chat template if it uses one.
        gamma: tokens drafted a step, 0 (plain decoding by the target alone) to 64; of all prompts, or a list with a
            number for each of them.
        verifier: a name of conf/verifier, or an object with ``verify(draft, target, streams)``.
        drafter: a name of conf/drafter, such as "model" (the pair's draft), or "layer_skip" and "prompt_lookup", which
            need no draft model, or a Drafter.
        sampling: how both models sample, what ends a text, and how it is shown; of all prompts, or a list with one for
            each of them. None is temperature 1, nothing cut off.
        max_new_tokens: the most tokens of a continuation, unless ``sampling.max_tokens`` says otherwise.
        seed: of the random numbers, 0 to 2^63 - 1; every prompt gets a seed of its own from it and its place in
            ``prompts``. From a list each prompt gets its seed as it is. ``sampling.seed`` overrides both.
        batch_size: prompts decoded side by side; as one ends, another takes its place.
        engine: a name of conf/engine, such as "eager" or "graph", or a DecodingEngine: how steps are taken. "auto" is
            CUDA graphs on a GPU, and eager elsewhere.
        compare_plain: decode the prompts by the target alone as well, in paired rounds as ``protocol=decode`` does, to
            measure ``speedup``. Texts and acceptance are those of the first round. Takes at least four times as long,
            and up to a minute more if times scatter.
        overlap: score the texts with both models as well, to measure ``overlap``.

    Returns:
        DecodedBatch: a list with one Decoded a prompt (``text``, ``token_ids``, ``steps``, ``acceptance_length``), or
        ``sampling.n`` of each, one after the other. It has what was measured over all texts: ``acceptance_length``,
        ``acceptance_rate``, ``joint_rates``, ``overlap``, ``seconds``, ``tokens_per_second``, ``speedup``; ``results``
        has these with their intervals, and ``to_pandas()`` is a table with a row a text.

    Raises:
        ArgumentError: an unknown verifier, drafter or engine; a prompt that is empty or too long for the models.
        ConfigError: a number outside its range, or min_tokens above max_new_tokens; a drafter of trees, such as "tree",
            with a verifier of chains alone; a drafter that needs a draft model, for a pair without one; a
            ``compare_plain`` or ``overlap`` that is neither true nor false.
        ModelError: NaN or infinite logits.

    Example:
        >>> import specbench
        >>> pair = specbench.load_pair("embedded:target", "embedded:draft")
        >>> texts = specbench.decode(pair, ["def add(a, b):", "import "], gamma=4, verifier="block")
        >>> texts[0].text, texts.acceptance_length  # doctest: +SKIP
    """
    compare_plain, overlap = check_flag("compare_plain", compare_plain), check_flag("overlap", overlap)
    requests = _requests(pair, prompts, sampling, max_new_tokens, seed)
    requests, most = _with_gammas(requests, gamma)
    if compare_plain and most == 0:
        raise ArgumentError("compare_plain: gamma is 0, which is plain decoding itself; give gamma=1 or more")
    size = check_count("batch_size", batch_size)
    context = _context(
        pair, requests, drafter, size, gamma=most, verifier=verifier, engine=engine, bind=overlap or most > 0
    )
    decoder = context.decoder()
    decoder.reserve(requests, size)
    if compare_plain:
        completions, measured = _compared(context.decoder(0), decoder, requests, size)
    else:
        with progress("decoding", len(requests)):
            timed = decode_timed(decoder, requests, size)
        completions = timed.completions
        measured = {"seconds": timed.seconds, "tokens_per_second": timed.tokens / timed.seconds}
    if overlap:
        rated = context.drafter.rates_any_text
        measured |= overlap_fields(score_texts(context, completions) if rated else None, completions)
    texts = [Decoded.of(completion, decoder.components.target) for completion in completions]
    return DecodedBatch(texts, most, measured)


def _compared(
    plain: Decoder, decoder: Decoder, requests: Sequence[Request], size: int
) -> tuple[list[Completion], dict[str, Any]]:
    """The texts of the first round, and columns of speed. Batches, rounds and warm-up are those of protocol=decode."""
    timed = timed_rounds(plain, decoder, in_prompt_groups(requests, size), _ROUNDS, size)
    speeds = speed_fields(timed)
    names = ("seconds", "plain_seconds", "tokens_per_second", "plain_tokens_per_second", "rounds", "other_cores")
    names += ("speedup", "speedup_low", "speedup_high", "differing_texts")
    return [c for _, batch in timed.first for c in batch.completions], {name: speeds[name] for name in names}


@names_arguments(_GROUPS)
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
        pair, prompts, max_new_tokens, batch_size: as in :func:`specbench.decode`.
        sampling, seed: likewise, one of all prompts.

    Returns:
        Trace: a line a token with its log-probability under both models, and what it is a trace of, processors
        included.

    Raises:
        ArgumentError, ConfigError, ModelError: as in :func:`specbench.decode`.

    Example:
        >>> import specbench
        >>> pair = specbench.load_pair("embedded:target", "embedded:draft")
        >>> trace = specbench.record(pair, ["def add(a, b):", "import "], samples=4)
        >>> [point.acceptance_length for point in specbench.replay(trace, "block", [1, 2, 4])]  # doctest: +SKIP
    """
    samples, seed = check_count("samples", samples), check_count("seed", seed, 0, LARGEST_SEED)
    check_parameters(single_sampling(sampling), RecordProtocol(samples))
    requests = _requests(pair, prompts, sampling, max_new_tokens, seed)
    size, processors = check_count("batch_size", batch_size), _processors_text(requests[0].sampling)
    context = _context(pair, requests, drafter, size, seed=seed, processors=processors)
    return record_requests(context, repeated(context, samples)).trace


def _requests(pair: Pair, prompts: Prompts, sampling: Samplings, max_new_tokens: int, seed: Seeds) -> list[Request]:
    max_new_tokens = check_count("max_new_tokens", max_new_tokens)
    if not isinstance(pair, Pair):
        raise ArgumentError(f"pair: a {type(pair).__name__}; give what specbench.load_pair returns")
    items = split_prompts(prompts)
    if not items:
        raise ArgumentError("prompts: empty; give a text, or a list of texts, of token ids or of conversations")
    seeds, samplings = seeds_of(seed, len(items)), samplings_of("sampling", sampling, len(items), "prompts")
    resolved: dict[int, SamplingParams] = {}  # of each object once, since structures take time to compile
    requests = []
    for i, prompt in enumerate(items):
        ids = encode_prompt(f"prompts[{i}]", prompt, pair)
        if id(samplings[i]) not in resolved:
            samplings[i].check_length(max_new_tokens)
            resolved[id(samplings[i])] = pair.resolved(samplings[i])
        continuations = requests_of(str(i), ids, resolved[id(samplings[i])], seeds[i], max_new_tokens)
        tokens, most = len(continuations[0].prompt), continuations[0].max_new_tokens
        if tokens + most > pair.context:
            raise ArgumentError(
                f"prompts[{i}]: {tokens} tokens and max_new_tokens={most} are more than the pair's context of "
                f"{pair.context}"
            )
        requests += continuations
    return requests


def _with_gammas(requests: Sequence[Request], gamma: int | Iterable[int]) -> tuple[list[Request], int]:
    """The requests with the gammas of their prompts, and the largest of these."""
    prompts = list(dict.fromkeys(request.prompt_name for request in requests))
    gammas = dict(zip(prompts, gammas_of(gamma, len(prompts)), strict=True))
    with_gammas = [dataclasses.replace(request, gamma=gammas[request.prompt_name]) for request in requests]
    return with_gammas, max(gammas.values())


def _component(group: str, choice: str | Kind, kind: type[Kind]) -> Kind:
    """The object that a name of conf/``group`` stands for, or the given one. Raises ArgumentError."""
    component = chosen(group, choice) if isinstance(choice, str) else choice
    if not isinstance(component, kind):
        raise ArgumentError(f"{group}: a {type(choice).__name__}; a name of conf/{group} or a {kind.__name__} needed")
    return component


def _context(
    pair: Pair,
    requests: Sequence[Request],
    drafter: str | Drafter,
    batch_size: int,
    *,
    seed: int = 0,
    gamma: int = 0,
    verifier: str | Verifier = "masked",
    engine: str | DecodingEngine = "eager",
    bind: bool = True,
    processors: str = "",
) -> ModelContext:
    """What decoding and the protocol ``record`` read of a run.

    Args:
        bind: whether the drafter is needed: a pair without a draft decodes plainly.
    """
    unbound, chosen_engine = _component("drafter", drafter, Drafter), _component("engine", engine, DecodingEngine)
    chosen_verifier = verifier_of(verifier)
    target, name = CachedModel(pair.target, pair.vocab_size, "target"), pair.target.name_or_path or "target"
    draft = NO_DRAFT if pair.draft is None else pair.draft.name_or_path or "draft"
    bound = unbound.bind(pair, target) if bind else unbound
    parts = (bound, chosen_verifier) if gamma > 0 else (None, None)
    host = next(filter(None, (on_host(request.sampling) for request in requests)), "")
    return ModelContext(
        verifier=chosen_verifier,
        verifier_name=name_of(verifier),
        sampling=requests[0].sampling,
        gamma=gamma,
        batch_size=batch_size,
        seed=seed,
        device=pair.target.device,
        dtype=pair.target.dtype,
        title="",
        command="specbench.record(...)",
        pair=pair,
        target=target,
        drafter=bound,
        requests=requests,
        names=(name, draft_name(unbound, name, draft)),
        engine=chosen_engine.resolve(Requirements(target.device, *parts, on_host=host)),
        processors=processors,
    )


def _processors_text(sampling: SamplingParams) -> str:
    """What a trace calls its processors: as ``sampler.processors`` would name them, if the attributes of each are the
    arguments of its class; empty for none."""
    named = []
    for processor in sampling.processors:
        if hasattr(processor, "parameter"):
            continue  # named by the parameter that it was made from
        kind = processor if isinstance(processor, FunctionType) else type(processor)
        named.append({"_target_": f"{kind.__module__}.{kind.__qualname__}", **getattr(processor, "__dict__", {})})
    return processors_named(named, sampling)
