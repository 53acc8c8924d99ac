"""Configuration -> objects: components, the pair, the requests of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from specbench.config import Config
from specbench.decoding import DecodingEngine, Request, check_fit
from specbench.drafters import Drafter
from specbench.errors import ConfigError
from specbench.models import Engine, Pair, load_pair
from specbench.models.loading import locate
from specbench.models.sharding import check_installed
from specbench.models.threads import default_threads
from specbench.protocols import MeasurementProtocol, ModelContext, Prechecked, RunContext
from specbench.protocols.settings import unused
from specbench.provenance import request_seed
from specbench.runs.choices import build, explained
from specbench.sampling import SamplingParams, on_host
from specbench.sampling.structures import grammar_of
from specbench.sampling_params import processors_named
from specbench.workloads import Prompt, load_prompts

_pairs: dict[tuple[Any, ...], Pair] = {}  # the last pair that this process loaded


def loaded_pair(config: Config, device: torch.device) -> Pair:
    """Loads a pair once for all the jobs of this process that use it; another pair takes its place in memory."""
    wanted = config.pair
    key = (wanted.target, wanted.draft, wanted.chat, wanted.download, str(device), config.dtype, config.parallel)
    if key not in _pairs:
        _pairs.clear()
        _pairs[key] = load_pair(
            wanted.target,
            wanted.draft,
            device=str(device),
            dtype=config.dtype,
            chat=wanted.chat,
            download=wanted.download,
            parallel=config.parallel,
        )
    return _pairs[key]


def with_models(context: RunContext, config: Config, protocol: MeasurementProtocol) -> ModelContext:
    """Adds the pair, the drafter and the requests. All that can be known without a model is checked first."""
    prompts = load_prompts(config.workload.path, config.workload.limit)
    check_own(prompts, config, unused(protocol))
    for name in ("target", "draft"):
        locate(f"pair.{name}", getattr(config.pair, name))
    drafter = build("drafter", config.drafter)
    if not isinstance(drafter, Drafter):
        remedy = "Make it a class of specbench.drafters.Drafter, without _partial_ in its yaml."
        raise ConfigError("drafter", type(drafter).__name__, "no drafter", remedy)
    engine = build("engine", config.engine)
    if not isinstance(engine, DecodingEngine):
        remedy = "Make it a class of specbench.decoding.DecodingEngine, without _partial_ in its yaml."
        raise ConfigError("engine", type(engine).__name__, "no engine", remedy)
    if not {"drafter", "verifier", "gamma"} & set(unused(protocol)):
        check_fit(drafter, context.verifier, context.gamma)
    host = on_host(context.sampling)
    engine = engine.chosen(context.device, drafter, context.verifier, host)
    if not {"engine", "batch_size"} & set(unused(protocol)):
        engine.check(context.device, drafter, context.verifier, min(context.batch_size, len(prompts)), host)
    context = dataclasses.replace(context, drafter=drafter)
    if config.parallel != "none":
        check_installed()
    if isinstance(protocol, Prechecked):
        protocol.precheck(context)
    pair = loaded_pair(config, context.device)
    torch.set_num_threads(config.threads or default_threads(pair))
    target = Engine(pair.target, pair.vocab_size, "target")
    bound = explained("drafter", drafter.bind, pair, target)
    context = dataclasses.replace(context, sampling=pair.resolved(context.sampling))
    return ModelContext(
        **vars(context) | {"drafter": bound},
        engine=engine,
        names=(config.pair.target, config.pair.draft),
        pair=pair,
        target=target,
        requests=make_requests(prompts, pair, context.sampling, config),
    )


def check_own(prompts: list[Prompt], config: Config, ignored: Mapping[str, str | None]) -> None:
    """Checks what prompts have of their own.

    Args:
        ignored: the keys that the protocol makes no use of.

    Raises:
        ConfigError: a gamma above the run's, or a number that the protocol would ignore.
    """
    for prompt in prompts:
        for key in ("gamma", "max_new_tokens"):
            value = getattr(prompt, key)
            if value is not None and key in ignored:
                problem = (
                    f"line {prompt.line}: {key} {value} of prompt {prompt.name!r} would be ignored by the protocol"
                )
                remedy = f"Remove it. {ignored[key] or ''}".rstrip()
                raise ConfigError("workload.path", config.workload.path, problem, remedy)
        if prompt.gamma is not None and prompt.gamma > config.gamma:
            where = f"line {prompt.line} of {config.workload.path}: prompt {prompt.name!r}"
            problem = f"{where} has gamma {prompt.gamma}, above it"
            raise ConfigError("gamma", config.gamma, problem, f"Use gamma={prompt.gamma}, or lower the line's.")


def make_requests(prompts: list[Prompt], pair: Pair, sampling: SamplingParams, config: Config) -> list[Request]:
    """Tokenised prompts with their seeds.

    Raises:
        ConfigError: a prompt that leaves no room for max_new_tokens in either model's context.
    """
    requests = []
    for prompt in prompts:
        ids = tuple(pair.encode(prompt.text))
        if not ids:
            problem = f"line {prompt.line}: prompt {prompt.name!r} has no tokens"
            raise ConfigError("workload.path", config.workload.path, problem, "Remove it.")
        longest = prompt.max_new_tokens or config.max_new_tokens
        if len(ids) + longest > pair.context:
            raise ConfigError(
                "max_new_tokens",
                longest,
                f"line {prompt.line}: prompt {prompt.name!r} has {len(ids)} tokens, and the pair's context is "
                f"{pair.context}",
                "Shorten the prompt or lower max_new_tokens.",
            )
        seed = request_seed(config.seed, prompt.name)
        requests.append(Request(prompt.name, ids, seed, sampling, longest, prompt.gamma))
    return requests


def sampling_params(sampler: Mapping[str, Any]) -> SamplingParams:
    """The run's sampling parameters, with its processors built. Raises ConfigError."""
    made = tuple(build("sampler.processors", node) for node in sampler["processors"])
    for processor in made:
        if not callable(processor):
            remedy = "Give it __call__(logits, history); see specbench.sampling.Processor."
            raise ConfigError("sampler.processors", type(processor).__name__, "not callable", remedy)
    params = SamplingParams.from_mapping({**sampler, "processors": made})
    if params.structure is not None:
        grammar_of(*params.structure)  # what cannot be compiled is known before any model
    return params


def processors_text(sampler: Mapping[str, Any]) -> str:
    """What sampler.processors says, as JSON, with what the text has to be at its end; empty for none."""
    return processors_named(sampler["processors"], SamplingParams.from_mapping({**sampler, "processors": ()}))
