"""The choices of conf by name, without composing a whole run: what ``verifier=block`` stands for."""

from __future__ import annotations

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from specbench.config import CONF
from specbench.errors import ArgumentError, SpecbenchError


def names(group: str) -> list[str]:
    """The choices of a group of conf, such as ``block`` and ``external/transformers`` of ``verifier``."""
    folder = CONF / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def chosen(group: str, name: str) -> Any:
    """The object that a choice of conf names.

    Args:
        group: a folder of conf whose yamls need nothing of a run, such as ``verifier``.
        name: as on the command line.

    Raises:
        ArgumentError: no such choice; the message lists those that there are.
        NotInstalledError: a choice that needs an optional package.
        ConfigError: a choice that cannot be built.
    """
    known = names(group)
    if name not in known:
        listed = ", ".join(each for each in known if not each.startswith("flawed/"))
        raise ArgumentError(f"{group}={name!r}: not one of conf/{group}. Use {listed}, or give an object.")
    try:
        return instantiate(OmegaConf.load(CONF / group / f"{name}.yaml"))
    except InstantiationException as error:
        if isinstance(error.__cause__, SpecbenchError):
            raise error.__cause__ from None
        raise ArgumentError(f"{group}={name!r}: cannot be built ({error.__cause__ or error})") from error
