"""One job: configuration -> objects -> protocol -> rows -> tracking. And what a whole sweep remembers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench import results, tracking
from specbench.config import Config, check_keys, check_numbers
from specbench.decoding import Request
from specbench.errors import ConfigError, NotInstalledError, SpecbenchError
from specbench.folders import begin_sweep, draw_figures, write_tables
from specbench.job import JobInfo, component_name
from specbench.models import Engine, Pair, load_pair
from specbench.models.loading import choose_device, choose_dtype, locate
from specbench.progress import say
from specbench.protocols import MeasurementProtocol, ModelContext, Outcome, OwnConditions, Prechecked, RunContext
from specbench.protocols.settings import check_conditions
from specbench.provenance import environment, request_seed
from specbench.sampling import SamplingParams
from specbench.workloads import Prompt, load_prompts

PYTORCH_THREADS = torch.get_num_threads()
SMALL_MODEL = 50_000_000  # parameters


@dataclass
class Session:
    """What outlives a job: the loaded pair, the sweep's folder, and how each job ended."""

    folder: Path | None = None
    exp: str = "adhoc"
    begun: bool = False
    jobs: int = 0
    finished: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    _pairs: dict[tuple[Any, ...], Pair] = field(default_factory=dict)

    def pair(self, config: Config) -> Pair:
        """Loads a pair once for all the jobs that use it; another pair takes its place in memory."""
        wanted = config.pair
        key = (wanted.target, wanted.draft, wanted.chat, wanted.download, config.device, config.dtype)
        if key not in self._pairs:
            self._pairs.clear()
            self._pairs[key] = load_pair(
                wanted.target,
                wanted.draft,
                device=config.device,
                dtype=config.dtype,
                chat=wanted.chat,
                download=wanted.download,
            )
        return self._pairs[key]


def run_job(config: Config, session: Session) -> None:
    """Runs one job; a failure is remembered in the session and written to the job's folder, so that a sweep goes on.

    A job that needs an optional package which is not there is skipped: it fails nothing but itself.
    """
    job = JobInfo.current()
    session.jobs += 1
    session.folder, session.exp = job.folder.parent, job.exp
    try:
        if not session.begun:
            begin_sweep(session.folder)
            session.begun = True
        headline = _run(config, job, session)
    except NotInstalledError as error:
        (job.folder / "error.txt").write_text(str(error))
        session.skipped[job.label] = str(error)
        say(f"job {job.number} ({job.label}) skipped: {error}", style="yellow")
        return
    except Exception as error:  # a bug in one verifier must not cost the sweep its other jobs
        known = isinstance(error, SpecbenchError)
        (job.folder / "error.txt").write_text(str(error) if known else traceback.format_exc())
        session.failures[job.label] = (
            str(error) if known else f"{type(error).__name__}: {error} (see {job.folder}/error.txt)"
        )
        say(f"job {job.number} ({job.label}) failed: {session.failures[job.label]}", style="red")
        return
    say(f"job {job.number} ({job.label}): {headline}")
    if job.label in session.failures:  # all was measured; what follows is why the exit status is not 0
        say(f"job {job.number} failed: {session.failures[job.label]}", style="red")


def _run(config: Config, job: JobInfo, session: Session) -> str:
    resolved = _resolved(config)
    OmegaConf.save(OmegaConf.create(resolved), job.folder / "config.yaml")
    # All that can be known without a model is checked first.
    check_keys(resolved)
    check_numbers(config)
    sampling = SamplingParams(
        config.sampler.temperature, config.sampler.top_k, config.sampler.top_p, config.sampler.min_p
    )
    tracking.check_settings(config.tracking.mode, config.tracking.project)
    device = choose_device(config.device)
    protocol, verifier = (_build(key, getattr(config, key)) for key in ("protocol", "verifier"))
    own = protocol.own_conditions if isinstance(protocol, OwnConditions) else ()
    check_conditions(job.asked, own, job.choices["protocol"])
    torch.set_num_threads(config.threads or PYTORCH_THREADS)
    if getattr(verifier, "interpreted", False):
        say(f"verifier={job.choices['verifier']} runs through Triton's interpreter: exact, but its times say nothing.")
    context = RunContext(
        verifier=verifier,
        verifier_name=component_name("verifier", job.choices["verifier"], resolved["verifier"], job.overrides),
        sampling=sampling,
        gamma=config.gamma,
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
        dtype=choose_dtype(config.dtype, device),
        title=job.label,
        command=job.command,
        asked_pair=(config.pair.target, config.pair.draft) if job.names_pair else None,
        folder=job.folder,
        asked=job.asked,
    )
    if protocol.needs_models:
        context = with_models(context, config, session, protocol)
    outcome: Outcome = protocol.run(context)

    known: dict[str, Any] = {
        **environment(device),
        **_identity(config, job, context, own),
        "dtype": None if "dtype" in own else str(context.dtype).removeprefix("torch."),
        "lossless": bool(getattr(verifier, "lossless", False)),
    }
    row = results.RunRow(**{**known, **outcome.measured})  # a replay's dtype is its trace's
    write_tables(job.folder, row, outcome)
    draw_figures(job.folder, outcome)
    results.collect(job.folder.parent)
    session.finished += 1  # its rows are written, whatever becomes of the tracking
    tracking.log_run(
        config.tracking.mode,
        project=config.tracking.project,
        entity=config.tracking.entity,
        group=f"{job.exp}/{job.folder.parent.name}",
        name=job.label,
        folder=job.folder,
        config=resolved,
        row=vars(row),
        outcome=outcome,
        texts=config.tracking.texts,
    )
    if outcome.failure is not None:
        session.failures[job.label] = outcome.failure
    return outcome.headline


def with_models(context: RunContext, config: Config, session: Session, protocol: MeasurementProtocol) -> ModelContext:
    """Adds the pair, the drafter and the requests. All that can be known without a model is checked first."""
    prompts = load_prompts(config.workload.path, config.workload.limit)
    for name in ("target", "draft"):
        locate(f"pair.{name}", getattr(config.pair, name))
    drafter = _build("drafter", config.drafter)
    context = dataclasses.replace(context, drafter_class=getattr(drafter, "func", None))
    if isinstance(protocol, Prechecked):
        protocol.precheck(context)
    pair = session.pair(config)
    torch.set_num_threads(config.threads or default_threads(pair))
    return ModelContext(
        **vars(context),
        names=(config.pair.target, config.pair.draft),
        pair=pair,
        target=Engine(pair.target, pair.vocab_size, "target"),
        drafter=_explained("drafter", drafter, pair=pair),
        requests=make_requests(prompts, pair, context.sampling, config),
    )


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
        if len(ids) + config.max_new_tokens > pair.context:
            raise ConfigError(
                "max_new_tokens",
                config.max_new_tokens,
                f"line {prompt.line}: prompt {prompt.name!r} has {len(ids)} tokens, and the pair's context is "
                f"{pair.context}",
                "Shorten the prompt or lower max_new_tokens.",
            )
        seed = request_seed(config.seed, prompt.name)
        requests.append(Request(prompt.name, ids, seed, sampling, config.max_new_tokens))
    return requests


def default_threads(pair: Pair) -> int:
    """CPU threads for a pair: PyTorch's default, but at most two for a small target, whose matrices occupy no more."""
    return min(2, PYTORCH_THREADS) if pair.target.num_parameters() < SMALL_MODEL else PYTORCH_THREADS


def _resolved(config: Config) -> dict[str, Any]:
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # ty: ignore
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(key, "???", "no value given", f"Add {key}=... to the command.") from error
    except OmegaConfBaseException as error:  # ${...} that leads nowhere
        raise ConfigError(
            str(error.full_key), "${...}", str(error).splitlines()[0], "Check the interpolation."
        ) from error


def _build(key: str, node: Any) -> Any:
    if "_target_" not in node:
        raise ConfigError(key, dict(node), "no _target_", f"Choose one of conf/{key}/*.yaml.")
    built = _explained(key, instantiate, node)
    if isinstance(built, functools.partial):  # drafters, which need the pair: what can be known without it
        _explained(key, inspect.signature(built.func).bind, pair=None, **built.keywords)
    return built


def _explained(key: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    """Turns errors of a component's constructor into ones that name the configuration group."""
    try:
        return call(*args, **kwargs)
    except (InstantiationException, TypeError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, SpecbenchError):
            raise cause from None
        remedy = f"Compare its arguments with conf/{key}/*.yaml."
        if "ModuleNotFoundError" in str(cause):
            remedy = f"Start python -m specbench where the module lies, or set PYTHONPATH; see conf/{key}/*.yaml."
        raise ConfigError(key, "...", f"cannot be built ({cause})", remedy) from error


def _sampler(name: str, sampling: SamplingParams) -> dict[str, Any]:
    parameters = {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p)}
    return {"sampler": name, **parameters, "top_k": sampling.top_k, "min_p": float(sampling.min_p)}


def _identity(config: Config, job: JobInfo, context: RunContext, own: Collection[str]) -> dict[str, Any]:
    with_models = isinstance(context, ModelContext)
    return {
        "exp": job.exp,
        "job": job.number,
        "protocol": job.choices["protocol"],
        "verifier": context.verifier_name,
        "pair": config.pair.name if with_models else None,
        "target": config.pair.target if with_models else None,
        "draft": config.pair.draft if with_models else None,
        "drafter": job.choices["drafter"] if with_models else None,
        **({} if "sampler" in own else _sampler(job.choices["sampler"], context.sampling)),
        "workload": config.workload.name if with_models else None,
        "prompts": len(context.requests) if with_models else None,
        "gamma": None if "gamma" in own else config.gamma,
        "batch_size": None if "batch_size" in own else config.batch_size,
        "max_new_tokens": config.max_new_tokens if with_models else None,
        "seed": config.seed,
    }
