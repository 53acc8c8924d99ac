"""What Hydra knows of the job that runs, and what a job is called in its rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from specbench.core.machine import ranks
from specbench.core.machine.files import clipped
from specbench.runs.checks import choices_of, launcher_of, shares_machine
from specbench.runs.config import PairConfig, WorkloadConfig
from specbench.runs.overrides import FAMILIES, key_of
from specbench.runs.plan import Plan, read_plan
from specbench.runs.repeat import command_line

HF = "hf"  # of conf/pair: any two models of a user's own
FILE = "file"  # of conf/workload: any file of a user's own
LONGEST_SYSTEM = 40  # characters of a system prompt that a name shows


@dataclass(frozen=True)
class JobInfo:
    """What Hydra knows of a job."""

    number: int
    label: str
    folder: Path
    exp: str
    choices: dict[str, str]
    command: str
    overrides: tuple[str, ...]  # of the command line
    plan: Plan | None  # of its sweep; None if it was moved away
    beside: bool  # whether others of its sweep may run on this machine at the same time
    in_turn: bool  # whether its sweep's jobs run one after the other in this process alone

    @staticmethod
    def current() -> JobInfo:
        hydra = HydraConfig.get()
        choices = choices_of(hydra)
        overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        folder = Path(hydra.runtime.output_dir)
        plan = read_plan(folder.parent)
        return JobInfo(
            int(folder.name),
            next((job.label for job in plan.jobs if str(job.number) == folder.name), "") if plan else "",
            folder,
            choices.get("exp", "adhoc"),
            choices,
            command_line(overrides, plan.config_dir if plan else None, os.getcwd(), os.environ.get("PYTHONPATH", "")),
            tuple(overrides),
            plan,
            shares_machine(hydra),
            launcher_of(hydra) == "basic" and ranks.size() == 1,
        )


def component_name(group: str, choice: str, node: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """The name of a component: its choice in conf, or what the command line made of it.

    ``verifier._target_=mine.Mine`` is named mine.Mine, whatever yaml it started from; ``verifier.bits=8`` stands in
    brackets behind the choice. One of a family is named by the setting that says which: ``flawed/NAME``.

    Args:
        group: of conf, such as "verifier".
        node: its resolved configuration.
        overrides: of the command line.
    """
    prefix = f"{group}."
    changed = {key_of(override).removeprefix(prefix) for override in overrides if key_of(override).startswith(prefix)}
    name, member = choice, FAMILIES.get((group, choice))
    if "_target_" in changed:
        name = str(node.get("_target_", choice))
    elif member is not None:
        name = f"{choice}/{node[member]}"
        changed.discard(member)
    return _with(name, {key: node.get(key) for key in sorted(changed - {"_target_"})})


def pair_name(pair: PairConfig) -> str:
    """The name of a pair in rows: its yaml's, and how its prompts are made, ``qwen3[system=Be brief.,thinking=true]``.

    A pair of ``pair=hf`` is called by its target, ``SmolLM2-1.7B-Instruct``, since its yaml's name says nothing. The
    models and number formats have columns. A long text is cut, and a digest tells it from others that begin alike.
    """
    named = {
        field.name: getattr(pair, field.name) for field in dataclasses.fields(PairConfig) if "named" in field.metadata
    }
    if pair.system is not None:
        short = clipped(" ".join(pair.system.split()), LONGEST_SYSTEM)
        digest = hashlib.sha256(pair.system.encode(errors="replace")).hexdigest()[:8]
        named["system"] = short if short == pair.system else f"{short} {digest}"
    name = model_name(pair.target) if pair.name == HF else pair.name
    return _with(name, {key: value for key, value in named.items() if value is not None})


def model_name(target: str) -> str:
    """The last part of a folder or hub id; of a folder in the hub's cache the model's, not its commit's."""
    path = Path(target)
    cached = [part.rpartition("--")[2] for part in path.parts if part.startswith("models--")]
    return cached[-1] if cached else path.name or path.resolve().name


def workload_name(workload: WorkloadConfig) -> str:
    """The name of a workload in rows: its yaml's; of ``workload=file`` the path too, which alone says what was read.

    ``file:prompts.jsonl``; a set of the field has a name of its own, wherever its file lies. Behind it stand the rows
    that were chosen, ``gsm8k[split=test,shuffle=1]``; their number has a column.
    """
    name = f"{workload.name}:{workload.path}" if workload.name == FILE else workload.name
    chosen = {"split": workload.split, "where": " ".join(workload.where) or None, "shuffle": workload.shuffle}
    chosen["per_category"] = workload.per_category or None
    return _with(name, {key: value for key, value in chosen.items() if value is not None})


def _with(name: str, settings: Mapping[str, Any]) -> str:
    """A name, and in brackets the settings, as a command line gives them: ``true`` and ``null``, not Python's words."""
    words = [f"{key}={json.dumps(v) if v is None or isinstance(v, bool) else v}" for key, v in settings.items()]
    return f"{name}[{','.join(words)}]" if words else name
