"""Anytime-valid evidence: a bet against the target that can be watched token by token.

If every emitted token follows the target given the text before it, M = prod f(y)/p(y) is a nonnegative martingale from
1 for any f that is fixed before the token is seen, and by Ville's inequality it ever reaches 1/a with probability at
most a. No binning, no sample size, and the prefixes of real texts pool although no two have the same distribution
(Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference", arXiv 2210.01948).

Rounding. The bets read p from a pass over the finished text; the verifier drew from p' of a pass in blocks, whose
logits differ by rounding. That matters in two places:

- At the edge of a truncated support (support.py) a token may have p = 0 and p' > 0, and its evidence would be infinite.
  Bets are therefore placed on which token it is of those that are in every support within the tolerance: p, q and the
  powers are conditioned on these, and the factor of a token at the edge is 1. On these tokens p' is proportional to p
  wherever the edge fell, so M stays a martingale; and a token that lies outside every support within the tolerance is
  infinite evidence, since its probability under p' is 0.
- Elsewhere p' = p exp(h) with h the difference of the log-probabilities, and the mean of a factor is
  sum f p'/p = 1 + sum (f - p) h + ..., since sum p h is 0 up to h squared. To first order that averages out over
  positions, because f knows nothing of the errors of p'. What is left is of the size of v = Var_p(h): the errors of p
  are in f as well, so that a flatter f gains about (1 - exponent) v/2 a token and a share s towards the draft about
  s v/2, while betting costs (1 - exponent)^2 Var_p(log p)/2 and s^2 chi2(q, p)/2 a token. Two bounds hold for every
  bet: log M grows by at most KL(p', p), about v/2, a token in the mean; and with all |h| <= d, the false alarm within n
  tokens is at most a exp(n d). On the embedded pair v is 2e-12 and d 5e-5 in float32: the growth is nothing, 20,000
  tokens raise a at most threefold, and a false alarm is not to be feared. In bfloat16 v is 6e-4 and d 0.8. The second
  bound says nothing there. By the first, the best bet, one that knew the rounding itself, would need 2 log(1/a)/v =
  46,000 tokens at a = 1e-6; these bets do not know it, and what they gain is below what betting costs but for the
  smallest shares, which gain s v/2 - s^2 chi2/2, at most v^2/(8 chi2), 5e-8 a token at chi2 = 1. Evidence that
  creeps up over millions of tokens in bfloat16 is no proof against a verifier; run it again in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MIXED = (0.01, 0.03, 0.1, 0.3)  # shares of the other distribution
TEMPERED = (0.7, 0.85, 0.95, 1.05, 1.15, 1.4)  # exponents


@dataclass(frozen=True)
class TokenEvidence:
    """What the bets need to know about one emitted token.

    Attributes:
        log_p, log_q: its log-probability under target and draft, of the tokens that are in the support whatever the
            rounding; log_q is None where the draft had no rows.
        top: whether it is the target's argmax.
        log_tempered: log of sum over x of p(x)^a for a in TEMPERED, over these tokens.
        bonus: whether it came after a block that was accepted whole; known before it is drawn.
        doubtful: whether rounding may move it over the edge of the support.
    """

    log_p: float
    log_q: float | None
    top: bool
    log_tempered: tuple[float, ...]
    bonus: bool
    doubtful: bool = False

    @property
    def impossible(self) -> bool:
        """Whether the target cannot have emitted it."""
        return self.log_p == -math.inf and not self.doubtful


def bets() -> list[str]:
    """The names of the bets, in the order of :func:`log_factors`."""
    names = [f"draft {share:g}" for share in MIXED]
    names += [f"argmax {share:g}" for share in MIXED]
    names += [f"bonus argmax {share:g}" for share in MIXED]
    names += [f"power {exponent:g}" for exponent in TEMPERED]
    return [*names, *(f"bonus power {exponent:g}" for exponent in TEMPERED)]


def log_factors(token: TokenEvidence) -> list[float]:
    """log f(y)/p(y) of every bet; +inf where the target cannot have emitted the token, 0 where no bet is placed."""
    if token.impossible:
        return [math.inf] * len(bets())
    if token.doubtful:
        return [0.0] * len(bets())
    ratio = 1.0 if token.log_q is None else math.exp(min(token.log_q - token.log_p, 700.0))
    argmax = math.exp(-token.log_p) if token.top else 0.0
    towards_draft = [math.log1p(share * (ratio - 1)) for share in MIXED]
    towards_argmax = [math.log1p(share * (argmax - 1)) for share in MIXED]
    tempered = [
        (exponent - 1) * token.log_p - log_sum for exponent, log_sum in zip(TEMPERED, token.log_tempered, strict=True)
    ]
    only_bonus = float(token.bonus)
    return [
        *towards_draft,
        *towards_argmax,
        *(only_bonus * bet for bet in towards_argmax),
        *tempered,
        *(only_bonus * bet for bet in tempered),
    ]


def paths(factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log M after every token, [n], of all bets with equal stakes, and of each alone, [n, bets]."""
    by_bet = np.cumsum(factors, axis=0)
    return np.logaddexp.reduce(by_bet, axis=1) - math.log(by_bet.shape[1]), by_bet


def e_value(log_path: np.ndarray) -> float:
    """The largest value of M, log10; 1/M is a valid p-value however often one looked."""
    return float(max(log_path.max(initial=0.0), 0.0) / math.log(10))


def rejected_at(log_path: np.ndarray, false_alarm: float) -> int | None:
    """Tokens after which M first reached 1 / false_alarm; None where it never did."""
    reached = np.flatnonzero(log_path >= -math.log(false_alarm))
    return int(reached[0]) + 1 if len(reached) else None
