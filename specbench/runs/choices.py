"""The choices of conf as objects: what a configuration names, and what ``verifier=block`` stands for by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from specbench.core.conf import CONF
from specbench.core.errors import ArgumentError, ConfigError, SpecbenchError
from specbench.runs.overrides import choice_of
from specbench.sources import Source

# What an object of each group has, and what tells of it.
_MEMBERS = {
    "source": (("engine", "modes", "unsupported", "takes_seeds", "open", "complete", "close"), "docs/sources.md"),
    "verifier": (("verify",), "docs/verifier.md"),
    "protocol": (("needs_models", "run"), "CONTRIBUTING.md"),
}


def names(group: str, conf: Path = CONF) -> list[str]:
    """The choices of a group of conf, such as ``block`` and ``external/transformers`` of ``verifier``."""
    folder = conf / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def keys(group: str, name: str) -> list[str]:
    """The keys of a choice, such as ``layers`` of drafter=layer_skip."""
    node = OmegaConf.load(CONF / group / f"{name}.yaml")
    return [str(key) for key in node if not str(key).startswith("_")]


def chosen(group: str, name: str) -> Any:
    """The object that a choice of conf names.

    Args:
        group: a folder of conf whose yamls need nothing of a run, such as ``verifier``.
        name: as in results and on the command line.

    Raises:
        ArgumentError: no such choice; the message lists those that there are.
        NotInstalledError: a choice that needs an optional package.
        ConfigError: a choice that cannot be built.
    """
    (choice, settings), choices = choice_of(group, name), names(group)
    if choice not in choices:
        raise ArgumentError(f"{group}={name!r}: not one of conf/{group}. Use {', '.join(choices)}, or give an object.")
    node = OmegaConf.merge(OmegaConf.load(CONF / group / f"{choice}.yaml"), settings)
    if missing := OmegaConf.missing_keys(node):
        raise ArgumentError(f"{group}={name!r}: one of many; say which, as {group}='{name}/{min(missing).upper()}'.")
    return build(group, node)


def build(key: str, node: Any, **settings: Any) -> Any:
    """What a configuration group names (``_target_``), made of its arguments, by Hydra's ``instantiate`` and its
    settings. Raises ConfigError."""
    return explained(key, instantiate, node, **settings)


def build_part(group: str, node: Any, **settings: Any) -> Any:
    """The source, verifier or protocol that a configuration names. Raises ConfigError if it is none."""
    part, (members, guide) = build(group, node, **settings), _MEMBERS[group]
    if missing := [name for name in members if isinstance(part, type) or not hasattr(part, name)]:
        problem = f"no {group}: it has no {', '.join(missing)}"
        remedy = f"See {guide} for what a {group} of your own has."
        raise ConfigError(group, type(part).__name__, problem, remedy)
    return part


def build_source(node: Any) -> Source | None:
    """The engine under test that a configuration names; None if it names none. Raises ConfigError."""
    return None if node is None else build_part("source", node, _convert_="all")


def explained(key: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Turns errors of a component's constructor into ones that name the configuration group."""
    try:
        return call(*args, **kwargs)
    except (InstantiationException, TypeError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, SpecbenchError):
            raise cause from None
        group = key.partition(".")[0]
        remedy = f"Compare its arguments with conf/{group}/*.yaml."
        if "ModuleNotFoundError" in str(cause):
            remedy = f"Start python -m specbench where the module lies, or set PYTHONPATH; see conf/{group}/*.yaml."
        raise ConfigError(key, "...", f"cannot be built ({cause})", remedy) from error
