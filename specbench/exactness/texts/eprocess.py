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
  infinite evidence, since its probability under p' is 0 (checkpoint.py asks for several of other engines).
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
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from specbench.core.types import LogitRows
from specbench.exactness.statistics.bets import log_mean_wealth
from specbench.exactness.texts.support import default_tolerance, support_edge
from specbench.sampling import RowParams, SamplingParams

MIXED = (0.01, 0.03, 0.1, 0.3)  # shares of the other distribution
TEMPERED = tuple(float(np.float32(exponent)) for exponent in (0.7, 0.85, 0.95, 1.05, 1.15, 1.4))
# Of the draft's odds, log q - log p. Noise that draft and residual share (zoo/rng.py, SharedGumbel) keeps the share of
# tokens with q > p, and shows in the shares of further classes alone.
EDGES = (-3.0, -1.5, -0.7, -0.2, 0.2, 0.7, 1.5, 3.0)
SIDES = (-0.2, -0.05, 0.05, 0.2)  # stakes against and for the tokens between two edges
BETS = (
    *(f"draft {share:g}" for share in MIXED),
    *(f"argmax {share:g}" for share in MIXED),
    *(f"odds {place} {stake:+g}" for stake in SIDES for place in range(len(EDGES) + 1)),
    *(f"power {exponent:g}" for exponent in TEMPERED),
)


def log_factors(
    p: LogitRows,
    q: LogitRows | None,
    token_ids: Sequence[int],
    sampling: SamplingParams,
    tolerance: float | None,
    dense: Sequence[Float64[Tensor, "n V"]] = (),
) -> Float64[np.ndarray, "n bets"]:
    """log f(y)/p(y) of every bet on n tokens; +inf where the target cannot have emitted the token, 0 where it is in
    doubt, so that no bet is placed.

    Args:
        p, q: the distributions of target and draft at each token; q is None where drafts have no probabilities.
        sampling: of the text, by which p is made of logits.
        tolerance: by how much a logit may differ from the logit that the verifier saw, in logit units; None takes it
            from the logits' dtype and size.
        dense: the probabilities of p, and of q if there is one, if they are known already.
    """
    logits, ids = p.logits, torch.tensor(list(token_ids), device=p.logits.device)
    params = RowParams.of([sampling] * len(ids), logits.device)
    tolerances = default_tolerance(logits) if tolerance is None else torch.full_like(params.temperature, tolerance)
    edge = support_edge(logits, params, tolerances)
    logit = logits.gather(1, ids[:, None])[:, 0].double()
    doubtful = (logit < edge.surely) & (logit >= edge.lowest)
    probs, log_p = dense[0] if dense else p.probs(), p.prob(ids).log()
    drafted = probs if q is None else dense[1] if dense else q.probs()  # no bet on a draft that is the target
    log_q = log_p if q is None else q.prob(ids).log()
    if params.truncates:
        sure = logits.double() >= edge.surely[:, None]
        probs, mass = _conditioned(probs, sure)
        log_p = torch.where(mass > 0, log_p - mass.log(), log_p)  # without any, each token is at the edge or outside
        drafted, mass = _conditioned(drafted, sure)
        drafted = torch.where(mass[:, None] > 0, drafted, probs)  # likewise for a draft without any
        log_q = torch.where(mass > 0, log_q - mass.log(), log_p)
    ratio = (log_q - log_p).clamp(max=700).exp()
    argmax = torch.where(p.argmax == ids, (-log_p).exp(), 0)
    towards = [torch.log1p(share * (other - 1)) for other in (ratio, argmax) for share in MIXED]
    classes = odds_class(probs, drafted)
    of_token = torch.nn.functional.one_hot(classes.gather(1, ids[:, None])[:, 0], len(EDGES) + 1)
    expected = torch.zeros_like(of_token, dtype=torch.float64).scatter_add_(1, classes, probs.double())
    odds = torch.cat([torch.log1p(stake * (of_token - expected)) for stake in SIDES], dim=1)
    log_probs = probs.log().float()  # powers in float32 take a quarter of the time, and move a sum by 1e-7 of itself
    sums = [(log_probs * exponent).exp_().sum(dim=-1, dtype=torch.float64) for exponent in TEMPERED]
    tempered = [(exponent - 1) * log_p - total.log() for exponent, total in zip(TEMPERED, sums, strict=True)]
    factors = torch.cat([torch.stack(towards, dim=1), odds, torch.stack(tempered, dim=1)], dim=1)
    factors = torch.where(log_p.isneginf()[:, None], math.inf, factors)
    return torch.where(doubtful[:, None], 0.0, factors).cpu().numpy()


def odds_class(p: Float[Tensor, "*shape"], q: Float[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Between which of EDGES the draft's odds of a token lie, 0 to 8, by its probabilities."""
    edges = torch.tensor(EDGES, dtype=torch.float64, device=p.device).exp()
    return torch.bucketize((q.double() / p.double()).nan_to_num(nan=1.0), edges)  # 0 / 0 where neither has the token


def _conditioned(
    probs: Float[Tensor, "n V"], inside: Bool[Tensor, "n V"]
) -> tuple[Float[Tensor, "n V"], Float[Tensor, " n"]]:
    """Distributions given that the token is inside, and how likely that is."""
    within = torch.where(inside, probs, 0)
    mass = within.sum(dim=-1)
    return within / mass[:, None], mass


def log_wealth(factors: Float64[np.ndarray, "n bets"]) -> Float64[np.ndarray, " n"]:
    """log M after every token, of all bets with equal stakes."""
    return log_mean_wealth(np.cumsum(factors, axis=0), axis=1)


def e_value(log_path: np.ndarray) -> float:
    """The largest value of M, log10; 1/M is a valid p-value however often one looked."""
    return float(max(log_path.max(initial=0.0), 0.0) / math.log(10))
