"""Configuration -> the sampling parameters of a run and of each prompt, which need no model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specbench.core import extensions
from specbench.core.errors import ConfigError
from specbench.core.machine.provenance import sample_name
from specbench.core.sampling_params import processors_named
from specbench.replay.trace import first_turn
from specbench.runs.choices import build
from specbench.runs.config import Config
from specbench.runs.workloads import Prompt
from specbench.sampling import SamplingParams


def all_samplings(prompts: list[Prompt], config: Config, sampling: SamplingParams, mixed: bool) -> list[SamplingParams]:
    """The sampling parameters of each prompt, checked.

    Args:
        mixed: whether the protocol goes by each request's own.

    Raises:
        ConfigError: a parameter that is unknown or outside its range, a protocol that takes one sampler for all, or a
            prompt with the name of another one's continuation or turn.
    """
    samplings = [own_sampling(prompt, sampling, config) for prompt in prompts]
    for prompt, of_prompt in zip(prompts, samplings, strict=True):
        # A length of its own is no other sampler; building.check_own has it.
        of_run, own = (dataclasses.replace(params, max_tokens=None) for params in (sampling, of_prompt))
        if own != of_run and not mixed:
            problem = f"{prompt.place}: prompt {prompt.name!r} has sampling parameters of its own, and the protocol "
            problem += "takes one sampler for all"
            remedy = "Use protocol=decode, or workload.parameters=false to sample all by the run's."
            raise ConfigError("workload.path", config.workload.path, problem, remedy)
    _check_names(prompts, samplings, config)
    return samplings


def _check_names(prompts: list[Prompt], samplings: list[SamplingParams], config: Config) -> None:
    """Raises ConfigError for a prompt with the name that logs and traces give another one's continuation or turn."""
    names = {name: prompt for prompt in prompts for name in prompt.turn_names}

    def taken(other: Prompt, words: str) -> ConfigError:
        remedy = "Rename one of them; workload.columns.id=null numbers the rows."
        return ConfigError("workload.path", config.workload.path, f"{other.place}: {words}", remedy)

    for prompt, sampling in zip(prompts, samplings, strict=True):
        first = names.get(first_turn(prompt.name), prompt)
        if first is not prompt:
            raise taken(prompt, f"{prompt.name!r} is what a later turn of prompt {first.name!r} is called")
        for name in prompt.turn_names:
            for sample in range(1, sampling.n):
                if other := names.get(sample_name(name, sample)):
                    which = f"what continuation {sample} of prompt {name!r} is called (sampler.n={sampling.n})"
                    raise taken(other, f"{sample_name(name, sample)!r} is {which}")


def own_sampling(prompt: Prompt, sampling: SamplingParams, config: Config) -> SamplingParams:
    """The run's sampling parameters, with those of the prompt's line in their places.

    Returns:
        The parameters, whose ``max_tokens`` is None if the line has a length of its own.

    Raises:
        ConfigError: one that is unknown or outside its range, or at odds with the text's length; names file, line,
            prompt and parameter.
    """
    if not prompt.sampling and prompt.max_new_tokens is None:
        return sampling
    run = {field.name: getattr(sampling, field.name) for field in dataclasses.fields(sampling)}
    longest = prompt.max_new_tokens or sampling.max_tokens or config.max_new_tokens
    try:
        made = _compiled(SamplingParams.from_mapping({**prompt.sampling, "max_tokens": longest}, **run))
        of_run = sampling.max_tokens if prompt.max_new_tokens is None else None
        return dataclasses.replace(made, max_tokens=of_run)  # a request has its length beside them
    except ConfigError as error:
        problem = f"{prompt.place}: prompt {prompt.name!r}: {str(error).removeprefix('sampler.').removesuffix('.')}"
        remedy = "Mend the line, or ignore what lines say of sampling: workload.parameters=false."
        raise ConfigError("workload.path", config.workload.path, problem, remedy) from error


def sampling_params(sampler: Mapping[str, Any]) -> SamplingParams:
    """The run's sampling parameters, with its processors built. Raises ConfigError."""
    made = tuple(build("sampler.processors", node) for node in sampler["processors"])
    return _compiled(SamplingParams.from_mapping({**sampler, "processors": made}))


def _compiled(params: SamplingParams) -> SamplingParams:
    """The same, if what a text has to be can be compiled, which is known before any model. Raises ConfigError."""
    if params.structure is not None:
        extensions.provider("structured_outputs").check(*params.structure)
    return params


def processors_text(sampler: Mapping[str, Any]) -> str:
    """What sampler.processors says, as JSON, with what the text has to be at its end; empty for none."""
    return processors_named(sampler["processors"], SamplingParams.from_mapping({**sampler, "processors": ()}))
