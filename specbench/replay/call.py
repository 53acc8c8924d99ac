"""``specbench.replay``: what every gamma would have accepted, from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specbench.replay import renewal
from specbench.replay.imports import read_any
from specbench.replay.renewal import Replayed
from specbench.replay.trace import Trace


def replay(trace: Trace | str | Path, rule: str, gammas: Sequence[int]) -> list[Replayed]:
    """What each gamma would have accepted of a trace's texts, in expectation and without a model.

    Args:
        trace: of :func:`specbench.record`; or the path of a trace.parquet, or of a serving engine's JSON lines
            (replay/imports.py).
        rule: "token", "block", or "argmax" (drafts that are the draft model's most likely tokens).
        gammas: tokens drafted a step, 0 to 64 each.

    Returns:
        One Replayed a gamma, in their order: ``acceptance_length``, ``histogram``, ``steps``, ``drafted``,
        ``accepted``.

    Raises:
        ArgumentError: an unknown rule, or a gamma outside 0 to 64.
        ConfigError: a file that is no trace.

    Example:
        >>> import specbench
        >>> for each in specbench.replay("trace.parquet", "block", [1, 2, 4, 8]):  # doctest: +SKIP
        ...     print(each.gamma, each.acceptance_length)
    """
    if not isinstance(trace, Trace):
        trace = read_any(Path(trace))
    return renewal.replay(trace, rule, gammas)
