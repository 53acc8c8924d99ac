"""The probability, given the text, that a block which starts at a token accepts at least i tokens.

rules/info.py derives it for each rule, from rho_j = p(x_j) / q(x_j) of the text's own tokens x_1, x_2, ... No lossless
rule accepts x_1 ... x_i more often than min(1, 1 / (rho_1 ... rho_i)), since at most min(p, q) of the draft's mass on
that sequence can stand. "argmax", no rule of its own, may stand in a rule's place: greedy drafting, whose q is one-hot,
accepts x_1 ... x_i if they are the draft's most likely tokens, whatever the rule.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from specbench.core.errors import ArgumentError
from specbench.replay.trace import Trace
from specbench.rules import RULES, RuleInfo, info_of

ARGMAX = RuleInfo(name="argmax", title="greedy drafting", token_cost=lambda log_rho: log_rho)
LARGEST_GAMMA = 64


def replayed(rule: RuleInfo | str) -> RuleInfo:
    """The RuleInfo of what is replayed.

    Raises:
        ArgumentError: a name that is not known, or a rule whose survival is not known.
    """
    names = {**RULES, ARGMAX.name: ARGMAX}
    if isinstance(rule, str) and rule not in names:
        raise ArgumentError(f"rule={rule}: not one of {', '.join(names)}")
    info = names[rule] if isinstance(rule, str) else info_of(rule)
    if info.token_cost is None:
        raise ArgumentError(f"rule={info.name}: its survival in texts is not known. Give the rule a token_cost.")
    return info


def survival(
    trace: Trace, rule: RuleInfo | str, gamma: int, stops: Int64[np.ndarray, " T"] | None = None
) -> Float64[np.ndarray, "T gamma1"]:
    """P(tau >= i | text) for i = 0, ..., gamma and a block that starts at each token.

    tau counts what was kept: an accepted stop token, but nothing behind it, of which the text does not tell. A text
    that ended by length has its last token emitted, never accepted, since decoding drafts one token less than may still
    be emitted.

    Args:
        rule: its RuleInfo, its name, or "argmax".
        stops: the most tokens that a block starting at each token drafts (an adaptive policy); None: gamma.

    Raises:
        ArgumentError: a rule whose survival is not known, or gamma outside 0..64.
        ConfigError: rule argmax without the column draft_argmax.
    """
    info = replayed(rule)
    assert info.token_cost is not None
    if not 0 <= gamma <= LARGEST_GAMMA:
        raise ArgumentError(f"gamma={gamma}: outside 0..{LARGEST_GAMMA}")
    if info is ARGMAX:
        matches = trace.column("draft_argmax", "rule argmax").astype(float)
        log_rho = np.where(matches > 0, 0.0, np.inf)
    else:
        log_rho = trace.columns["log_p"].astype(float) - trace.columns["log_q"].astype(float)
    cost, count = info.token_cost(log_rho), len(trace)
    limit = trace.acceptance_limits
    if stops is not None:
        limit = np.minimum(limit, stops)
    out = np.zeros((count, gamma + 1))
    out[:, 0] = 1.0
    total, highest = np.zeros(count), np.zeros(count)
    for i in range(1, min(gamma, count) + 1):
        # Where the block would run past its text, what is added belongs to another one, and the limit removes it.
        total[: count - i + 1] += cost[i - 1 :]
        highest = np.maximum(total, highest)
        out[:, i] = np.where(i <= limit, np.exp(-highest), 0.0)
    return out
