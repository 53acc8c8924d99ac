"""``specbench.replay``: what every gamma would have accepted, from a trace."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from specbench.core.checks import check_count
from specbench.core.errors import ArgumentError
from specbench.core.naming import names_arguments
from specbench.replay import renewal
from specbench.replay.imports import read_any
from specbench.replay.plausible import warning
from specbench.replay.renewal import Replayed
from specbench.replay.survival import LARGEST_GAMMA
from specbench.replay.trace import Trace
from specbench.rules import RuleInfo


@names_arguments({"protocol.": ""})
def replay(trace: Trace | str | Path, rule: RuleInfo | str, gammas: Sequence[int]) -> list[Replayed]:
    """What each gamma would have accepted of a trace's texts, in expectation and without a model.

    Args:
        trace: of :func:`specbench.record`; or the path of a trace.parquet, or of a serving engine's JSON lines
            (replay/imports.py).
        rule: "token", "block", "argmax" (drafts that are the draft model's most likely tokens), or a Rule of your own
            with a token_cost.
        gammas: tokens drafted a step, 0 to 64 each.

    Returns:
        One Replayed a gamma, in their order: ``acceptance_length``, ``histogram``, ``steps``, ``drafted``,
        ``accepted``.

    Warns:
        UserWarning: the texts are hardly the target's own (replay/plausible.py).

    Raises:
        ArgumentError: what is no trace, an unknown rule, no gamma at all, a number in place of several, or one outside
            0 to 64.
        ConfigError: a file that is no trace, or a gamma that is no whole number from 0.

    Example:
        >>> import specbench
        >>> for replayed in specbench.replay("trace.parquet", "block", [1, 2, 4, 8]):  # doctest: +SKIP
        ...     print(replayed.gamma, replayed.acceptance_length)
    """
    if not isinstance(gammas, Iterable):
        raise ArgumentError(f"gammas: {gammas!r} is one number; give several, or [{gammas!r}]")
    gammas = [check_count("gammas", gamma, 0) for gamma in gammas]
    if not gammas:
        raise ArgumentError("gammas: empty; give numbers from 0 to 64, such as [1, 2, 4]")
    if max(gammas) > LARGEST_GAMMA:
        raise ArgumentError(f"gammas: {max(gammas)} is outside 0..{LARGEST_GAMMA}")
    if not isinstance(trace, Trace | str | Path):
        problem = "give what specbench.record returns, or the path of a file"
        raise ArgumentError(f"trace: a {type(trace).__name__}; {problem}")
    if not isinstance(trace, Trace):
        trace = read_any(Path(trace))
    if doubt := warning(trace):
        warnings.warn(f"{trace.path or trace.identity.source}: {doubt}", stacklevel=4)  # the line of the caller
    return renewal.replay(trace, rule, gammas)
