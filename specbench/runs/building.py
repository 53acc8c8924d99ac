"""Configuration -> objects of a job with models: the pair, the drafter, the requests. Imports transformers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specbench.core.errors import ConfigError
from specbench.core.machine import ranks
from specbench.core.machine.journal import Journal
from specbench.core.machine.progress import say
from specbench.core.machine.provenance import request_seed
from specbench.decoding import DecodingEngine, Request, check_fit
from specbench.decoding.engines import Requirements
from specbench.decoding.requests import requests_of
from specbench.drafters import Drafter, draft_name
from specbench.metrics.results import read_rows
from specbench.metrics.run_row import NO_DRAFT, RunRow
from specbench.models import CachedModel, Pair, load_pair
from specbench.models.checkpoint import locate
from specbench.models.threads import TIMED, Threads, choose_threads
from specbench.protocols import MeasurementProtocol, RunContext
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import Together, options_of
from specbench.protocols.settings import unused, unused_of_lines
from specbench.runs.choices import build, build_part, explained
from specbench.runs.config import Config
from specbench.runs.conversations import all_turns
from specbench.runs.job import JobInfo
from specbench.runs.job_row import component_name
from specbench.runs.plan import PlannedJob, read_plan
from specbench.runs.samplings import all_samplings, own_sampling
from specbench.runs.state import Status, read_state
from specbench.runs.workloads import EMBEDDED, Prompt, load_workload
from specbench.sampling import SamplingParams, on_host

_pairs: dict[str, Pair] = {}  # the last pair that this process loaded


def loaded_pair(config: Config, device: torch.device, drafter: Drafter) -> Pair:
    """Loads a pair once for all the jobs of this process that use it; another pair takes its place in memory.

    Args:
        drafter: not yet bound; it may refuse the target.
    """
    names = ("draft_dtype", "chat", "system", "thinking", "thinking_tokens", "download", "vocabularies")
    settings = {name: getattr(config.pair, name) for name in names}
    settings |= {"device": str(device), "dtype": config.dtype, "parallel": config.parallel}
    key = repr((config.pair.target, config.pair.draft, settings))
    if key in _pairs:
        drafter.check(target_config=_pairs[key].target.config)
    else:
        _pairs.clear()
        settings["check"] = lambda target_config: drafter.check(target_config=target_config)
        _pairs[key] = load_pair(config.pair.target, config.pair.draft, **settings)
    return _pairs[key]


def with_models(context: RunContext, config: Config, protocol: MeasurementProtocol) -> ModelContext:
    """Adds the pair, the drafter and the requests. All that can be known without a model is checked first."""
    workload = load_workload(config.workload)
    if not config.workload.path.startswith(EMBEDDED):
        say(f"workload: {workload.description}")
    prompts = workload.prompts
    check_own(prompts, config, unused_of_lines(protocol))
    options = options_of(protocol)
    samplings = all_samplings(prompts, config, context.sampling, options.mixed_sampling)
    for name in ("target", "draft"):
        if (place := getattr(config.pair, name)) is not None:
            locate(f"pair.{name}", place)
    drafter = build("drafter", config.drafter)
    if not isinstance(drafter, Drafter):
        remedy = "Make it a class of specbench.drafters.Drafter, without _partial_ in its yaml."
        raise ConfigError("drafter", type(drafter).__name__, "no drafter", remedy)
    if "drafter" in unused(protocol) and config.pair.draft is None:
        drafter = Drafter()  # the configuration's is not used, and need not have its model
    drafter.check(config.pair.draft is not None)
    if not {"drafter", "verifier", "gamma"} & set(unused(protocol)):
        check_fit(drafter, context.verifier, context.gamma)
    texts = sum(sampling.n for sampling in samplings)
    most = 1 if "batch_size" in unused(protocol) else min(context.batch_size, texts)
    engine = _engine(config, context, drafter, most, samplings, texts)
    context = dataclasses.replace(context, drafter=drafter)
    options.precheck(context)
    pair = loaded_pair(config, context.device, drafter)
    target = CachedModel(pair.target, pair.vocab_size, "target")
    threads = _threads(context, config, target)
    bound = explained("drafter", drafter.bind, pair, target)

    dtype = config.pair.draft_dtype  # part of the draft's name in a trace, if it is not the target's
    draft = f"{config.pair.draft or NO_DRAFT}{'' if dtype is None else f' in {dtype}'}"
    common: dict[str, Any] = {**vars(context), "drafter": bound, "sampling": pair.resolved(context.sampling)}
    made = ModelContext(
        **common,
        engine=engine,
        names=(config.pair.target, draft_name(drafter, config.pair.target, draft)),
        pair=pair,
        target=target,
        threads_reason=threads.reason,
        requests=(),
    )

    def make(some: Sequence[Prompt]) -> list[Request]:
        return make_requests(some, pair, context.sampling, config)  # which lines change before it is in ids

    return dataclasses.replace(made, requests=all_turns(prompts, make, lambda: made.decoder(0), config.batch_size))


def _engine(
    config: Config, context: RunContext, drafter: Drafter, most: int, samplings: Sequence[SamplingParams], texts: int
) -> DecodingEngine:
    """The engine that runs these: ``texts`` of one setting, with at most ``most`` requests together."""
    engine = build("engine", config.engine)
    if not isinstance(engine, DecodingEngine):
        remedy = "Make it a class of specbench.decoding.DecodingEngine, without _partial_ in its yaml."
        raise ConfigError("engine", type(engine).__name__, "no engine", remedy)
    host = next(filter(None, map(on_host, samplings)), "")
    tokens = _tokens(context, config, texts)
    return engine.resolve(Requirements(context.device, drafter, context.verifier, most, host, tokens))


def _tokens(context: RunContext, config: Config, texts: int) -> int:
    """Returns how many tokens in float32 all jobs of the sweep may decode: each text plainly and with the draft.

    Jobs that ``resume=`` added do not count: their engine would differ from the one that timed the others.
    """
    plan = None if context.folder is None else read_plan(context.folder.parent)
    if plan is None or context.dtype != torch.float32:
        return 0
    jobs = plan.begun_with or len(plan.jobs)
    rounds = 1 if config.protocol.get("together") else config.protocol.get("rounds", 1)
    return texts * config.max_new_tokens * 2 * (rounds if isinstance(rounds, int) else 1) * jobs


def together_with(context: ModelContext, config: Config, job: JobInfo) -> Together | None:
    """The jobs that may share their rounds with this one (protocol.together); None if it runs by itself."""
    planned = {other.number: other for other in (job.plan.sharing_rounds(job.number) if job.plan else ())}
    if not planned:
        return None
    if not job.in_turn:
        say(f"protocol.together: job {job.number} is timed by itself, since jobs do not take turns in one process.")
        return None
    states = {number: read_state(job.folder.parent / str(number)) for number in planned}
    left = [number for number, state in states.items() if state is None or state.status is not Status.DONE]
    return Together(left, lambda number: _beside(context, config, planned[number]))


def _beside(context: ModelContext, config: Config, job: PlannedJob) -> ModelContext:
    """The context of another job, which has a verifier and a gamma of its own, and the models of this one."""
    verifier, gamma = build_part("verifier", job.together["verifier"]), job.together["gamma"]
    name = component_name("verifier", job.together["verifier"], job)
    drafter = build("drafter", config.drafter)
    check_fit(drafter, verifier, gamma)
    other = dataclasses.replace(context, verifier=verifier, verifier_name=name, gamma=gamma, title=job.label)
    samplings = [request.sampling for request in context.requests]
    texts = len(context.requests)
    engine = _engine(config, other, drafter, min(context.batch_size, texts), samplings, texts)
    bound = explained("drafter", drafter.bind, context.pair, context.target)
    return dataclasses.replace(other, drafter=bound, engine=engine, journal=Journal())


def _threads(context: RunContext, config: Config, target: CachedModel) -> Threads:
    """Sets the run's threads: those that a job of its sweep has found to be faster, so that their times compare."""
    choice = ranks.broadcast_from_rank0(
        lambda: None if config.threads else _threads_of_sweep(context, config.pair.target)
    )
    return choose_threads(config.threads, target, config.batch_size, config.gamma + 1, choice and Threads(*choice))


def _threads_of_sweep(context: RunContext, target: str) -> tuple[int, str] | None:
    table = None if context.folder is None else read_rows(context.folder.parent)
    here = (target, str(context.device), str(context.dtype).removeprefix("torch."))
    for row in [] if table is None else (RunRow(**row) for row in table.to_pylist()):
        if (row.target, row.device, row.dtype) == here and (row.threads_reason or "").startswith(TIMED):
            return row.threads, str(row.threads_reason)
    return None


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
                problem = f"{prompt.place}: {key} {value} of prompt {prompt.name!r} would be ignored by the protocol"
                remedy = f"Remove it, or use workload.parameters=false. {ignored[key] or ''}".rstrip()
                raise ConfigError("workload.path", config.workload.path, problem, remedy)
        if prompt.gamma is not None and prompt.gamma > config.gamma:
            where = f"{prompt.place} of {config.workload.path}: prompt {prompt.name!r}"
            problem = f"{where} has gamma {prompt.gamma}, above it"
            raise ConfigError("gamma", config.gamma, problem, f"Use gamma={prompt.gamma}, or lower the line's.")


def make_requests(prompts: Sequence[Prompt], pair: Pair, sampling: SamplingParams, config: Config) -> list[Request]:
    """Tokenised prompts with their seeds; ``sampling.n`` requests of each.

    Raises:
        ConfigError: a prompt that leaves no room for its new tokens in either model's context; ids that stop a text and
            are none of the pair's.
    """
    requests = []
    for prompt in prompts:
        which = f"{prompt.place}: prompt {prompt.turn_name!r}"
        # What a line says of itself goes before what all lines have.
        params = own_sampling(prompt, sampling, config)
        characters = sum(len(message["content"]) for message in prompt.messages)
        if params.truncate_prompt_tokens is None and characters > pair.most_characters:  # its tokens take gigabytes
            problem = f"{which} has {characters:,} characters, and the pair's context is {pair.context} tokens"
            remedy = "Shorten the prompt, or cut it (sampler.truncate_prompt_tokens)."
            raise ConfigError("workload.path", config.workload.path, problem, remedy)
        ids = tuple(pair.encode(prompt.messages))
        if not ids:
            raise ConfigError("workload.path", config.workload.path, f"{which} has no tokens", "Remove it.")
        if prompt.seed is not None and params.seed is not None:
            params = dataclasses.replace(params, seed=None)
        seed = request_seed(config.seed, prompt.turn_name) if prompt.seed is None else prompt.seed
        params = pair.resolved(params)
        made = requests_of(
            prompt.turn_name, ids, params, seed, prompt.max_new_tokens or config.max_new_tokens, prompt.gamma
        )
        if len(made[0].prompt) + made[0].max_new_tokens > pair.context:
            key = "sampler.max_tokens" if params.max_tokens else "max_new_tokens"
            raise ConfigError(
                key,
                made[0].max_new_tokens,
                f"{which} has {len(made[0].prompt)} tokens, and the pair's context is {pair.context}",
                f"Shorten the prompt (sampler.truncate_prompt_tokens) or lower {key}.",
            )
        labels = {"category": prompt.category, "conversation": prompt.name, "turn": prompt.turn}
        requests += [dataclasses.replace(request, **labels) for request in made]
    return requests
