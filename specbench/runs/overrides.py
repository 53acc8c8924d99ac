"""Overrides of a command line, ``key=value`` each: what they are of, and what tells two jobs apart."""

from __future__ import annotations

from collections.abc import Sequence


def key_of(override: str) -> str:
    """What an override is of: ``gamma`` of ``++gamma=3``."""
    return override.lstrip("+~").partition("=")[0]


def labels_of(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What tells jobs of one sweep apart, by the overrides of each: those that not all of them have."""
    alone = {each for each in jobs[0] if key_of(each) == "exp"}
    shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else alone
    return [",".join(each for each in overrides if each not in shared) or "defaults" for overrides in jobs]
