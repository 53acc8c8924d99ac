"""Which tokens are in the support of truncated sampling, if every logit may be off by a tolerance?

Top-k, top-p and min-p draw an edge: below it a token has probability 0. Scoring a text again rounds its logits
differently than decoding did, so that a token beside the edge may be in the support in one pass and not in the other.
Let each of the two logits of a token differ by at most e. Then a token with logit z

- is in the top k of the other pass, surely, where z is more than 2e above the (k + 1)-th largest logit, and surely not,
  where it is more than 2e below the k-th;
- passes min-p, surely or surely not, where z is 2e above or below the largest logit plus T log(min_p);
- for top-p: the odds m / (1 - m) of a set's mass m change by a factor of at most exp(2e / T). So the cut falls between
  those of two nuclei, whose top_p has its odds changed by that factor down and up, again give or take 2e in the order
  of the logits. (The distance of logits alone would not do: with probabilities 0.6, 0.3, 0.1 and top_p 0.9 the third
  token is in or out by a rounding of the sum, however far it lies from the second.)

What holds of one of the three conditions for "out", or of all for "in", holds of the support. Top-p takes its share of
what top-k left, which is at most the tokens that may be in the top k, and at least those that surely are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from specbench.sampling import RowParams

# By how many units in the last place of the largest logit (dtype's eps times its size) a logit may differ. On the
# embedded pair the largest of 8 million was off by 11 in float32 and by 3.5 in bfloat16, whose logits have no room for
# more digits; an engine of other arithmetic needs a tolerance of its own.
ROUNDING = {torch.float32: 64.0, torch.bfloat16: 8.0, torch.float16: 8.0}


@dataclass(frozen=True)
class SupportEdge:
    """What is sure about the supports of n rows.

    A row without a token that may be in the support or outside has the same number twice.

    Attributes:
        lowest: tokens with a lower logit are outside, whatever the rounding.
        surely: tokens with this logit or a higher one are inside, whatever the rounding; inf if no token is.
    """

    lowest: Float64[Tensor, " n"]
    surely: Float64[Tensor, " n"]


def default_tolerance(logits: Shaped[Tensor, "n V"]) -> Float64[Tensor, " n"]:
    """ROUNDING units in the last place of each row's largest finite logit, in logit units."""
    units = ROUNDING.get(logits.dtype, ROUNDING[torch.float32])
    size = torch.where(logits.isfinite(), logits, 0).abs().amax(dim=-1).double()
    return units * torch.finfo(logits.dtype).eps * size


def support_edge(logits: Shaped[Tensor, "n V"], params: RowParams, tolerance: Float64[Tensor, " n"]) -> SupportEdge:
    """What holds for every support of logits that differ from these by at most the tolerance.

    Args:
        params: temperature above 0.
        tolerance: logit units, a row.
    """
    if not params.truncates:
        everything = logits.new_full((len(logits),), -math.inf, dtype=torch.float64)
        return SupportEdge(everything, everything)
    ordered = logits.double().sort(dim=-1, descending=True).values
    vocabulary = ordered.shape[1]
    after = torch.cat([ordered, ordered.new_full((len(ordered), 1), -math.inf)], dim=1)  # nothing follows the last
    reach, temperature = 2 * tolerance[:, None], params.temperature[:, None]

    def within(count: Int64[Tensor, "n 1"]) -> Bool[Tensor, "n V"]:
        """Tokens that may be among the first ``count``."""
        return ordered >= ordered.gather(1, count - 1) - reach

    def surely(count: Int64[Tensor, "n 1"]) -> Bool[Tensor, "n V"]:
        """Tokens that are among the first ``count``: whatever comes after those stays behind them."""
        return ordered > after.gather(1, count) + reach

    def nucleus(left: Bool[Tensor, "n V"], sign: int) -> Int64[Tensor, "n 1"]:
        """Sizes of the largest (sign 1) or the smallest (-1) nucleus of the tokens that top-k left."""
        mass = ordered.masked_fill(~left, -math.inf).div(temperature).softmax(dim=-1)
        before, given = mass.cumsum(dim=-1) - mass, params.top_p[:, None]
        top_p = torch.sigmoid(given.logit() + sign * reach / temperature)
        return ((before < top_p) | (given >= 1)).sum(dim=1, keepdim=True).clamp(min=1)

    k = torch.where(params.top_k > 0, params.top_k, vocabulary).clamp(max=vocabulary)[:, None]
    may, must = within(k) & (ordered > -math.inf), surely(k)
    may, must = may & within(nucleus(may, 1)), must & surely(nucleus(must, -1))
    floor = ordered[:, :1] + temperature * params.min_p.log()[:, None]
    may, must = may & (ordered >= floor - reach), must & (ordered > floor + reach)
    return SupportEdge(*(ordered.masked_fill(~inside, math.inf).amin(dim=1) for inside in (may, must)))
