"""Overrides of a command line, ``key=value`` each: what they are of, and what tells two jobs apart."""

import re
import shlex
from collections.abc import Sequence

FAMILIES = {("verifier", "flawed"): "bug"}  # a choice that stands for many, and the setting that says which


def key_of(override: str) -> str:
    """What an override is of: ``gamma`` of ``++gamma=3``."""
    return override.lstrip("+~").partition("=")[0]


def values_of(overrides: Sequence[str]) -> dict[str, str]:
    """The values of a command line by key; the last one of each counts."""
    return {key_of(override): override.partition("=")[2] for override in overrides}


def typed(key: str, value: str) -> str:
    """``key=value`` as it is typed into a shell: in quotes for Hydra and for the shell, if a character needs them."""
    if re.fullmatch(r"[\w./:+-]+", value, re.ASCII):
        return f"{key}={value}"
    return shlex.quote(f"{key}={in_quotes(value)}")


def in_quotes(value: str) -> str:
    """A text in double quotes, in which Hydra reads any character."""
    from hydra.core.override_parser.types import Quote, QuotedString  # reports import this module, and need no Hydra

    return QuotedString(value, Quote.double).with_quotes()


def choice_of(group: str, name: str) -> tuple[str, dict[str, str]]:
    """The choice of conf that a name in results stands for, and its settings.

    One of a family, such as ``flawed/NAME``, is the choice ``flawed`` with ``bug=NAME``. Others are choices themselves.
    """
    choice, _, member = name.rpartition("/")
    setting = FAMILIES.get((group, choice))
    return (name, {}) if setting is None else (choice, {setting: member})


def spelled_out(override: str) -> list[str]:
    """``verifier=flawed/NAME`` as ``verifier=flawed verifier.bug=NAME``; any other override as it is."""
    group, _, name = override.partition("=")
    choice, settings = choice_of(group, name)
    if not settings or "," in name:  # the sweeper takes lists apart first
        return [override]
    return [f"{group}={choice}", *(f"{group}.{key}={value}" for key, value in settings.items())]


def labels_of(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What tells jobs of one sweep apart, by the overrides of each: those that not all of them have."""
    alone = {override for override in jobs[0] if key_of(override) == "exp"}
    shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else alone
    return [",".join(override for override in overrides if override not in shared) or "defaults" for overrides in jobs]
