"""The probability, given the text, that a block which starts at a token accepts at least i tokens.

With rho_j = p(x_j) / q(x_j) for the block's tokens x_1, x_2, ... (the text's own) and R_i = rho_1 ... rho_i:

    token    prod_(j <= i) min(1, 1 / rho_j)
    block    pi_i / R_i = min(1, min_(j <= i) 1 / R_j), where pi_i = min(1, pi_(i-1) rho_i)
    argmax   1 if x_1 ... x_i are the draft's most likely tokens, else 0: greedy drafting, whose q is one-hot; both
             rules then accept alike
    bound    min(1, 1 / R_i): no lossless rule accepts x_1 ... x_i more often, since at most min(p, q) of the draft's
             mass on that sequence can stand

token <= block <= bound. Why: a rule drafts and accepts x_1 ... x_i with probability q(x_1..i) P(tau >= i | drafted
x_1..i), and the text begins so with probability p(x_1..i); the quotient is what is given here. For the block rule
P(tau >= i | drafted x_1..i) = pi_i whatever gamma is (arXiv 2403.10444), and log pi is log R reflected at 0, whence the
minimum.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from specbench.errors import ArgumentError
from specbench.replay.trace import Trace

Rule = Literal["token", "block", "argmax", "bound"]
RULES = ("token", "block", "argmax")
LARGEST_GAMMA = 64


def survival(
    trace: Trace, rule: str, gamma: int, stops: Int64[np.ndarray, " T"] | None = None
) -> Float64[np.ndarray, "T gamma1"]:
    """P(tau >= i | text) for i = 0, ..., gamma and a block that starts at each token.

    tau counts what was kept: an accepted stop token, but nothing behind it, of which the text does not tell. A text
    that ended by length has its last token emitted, never accepted, since decoding drafts one token less than may still
    be emitted.

    Args:
        stops: the most tokens that a block starting at each token drafts (an adaptive policy); None: gamma.

    Raises:
        ArgumentError: an unknown rule, or gamma outside 0..64.
        ConfigError: rule argmax without the column draft_argmax.
    """
    if rule not in get_args(Rule):
        raise ArgumentError(f"rule={rule}: not one of {', '.join(get_args(Rule))}")
    if not 0 <= gamma <= LARGEST_GAMMA:
        raise ArgumentError(f"gamma={gamma}: outside 0..{LARGEST_GAMMA}")
    if rule == "argmax":
        matches = trace.column("draft_argmax", "rule argmax").astype(float)
        log_rho = np.where(matches > 0, 0.0, np.inf)
    else:
        log_rho = trace.columns["log_p"].astype(float) - trace.columns["log_q"].astype(float)
    if rule == "token":
        log_rho = np.maximum(log_rho, 0.0)  # each token answers for itself
    count = len(trace)
    limit = trace.known
    if stops is not None:
        limit = np.minimum(limit, stops)
    out = np.zeros((count, gamma + 1))
    out[:, 0] = 1.0
    log_ratio, highest = np.zeros(count), np.zeros(count)
    for i in range(1, min(gamma, count) + 1):
        # Where the block would run past its text, what is added belongs to another one, and the limit removes it.
        log_ratio[: count - i + 1] += log_rho[i - 1 :]
        highest = np.maximum(log_ratio, 0.0) if rule == "bound" else np.maximum(highest, log_ratio)
        out[:, i] = np.where(i <= limit, np.exp(-highest), 0.0)
    return out
