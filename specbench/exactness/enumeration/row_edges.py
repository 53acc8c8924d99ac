"""The edges of a rule in the two uniforms of a step with one drafted token, for one pair of rows (row.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from specbench.rules.draft_path import DraftPathTables
from specbench.rules.rule import Rule

ACCEPT, RESIDUAL, BONUS = range(3)  # kinds of lines: along the accept uniform, or along the emit uniform
BESIDE = 1e-12  # distance of a probe from an edge, in the uniform
_CELLS = 2**25  # probabilities held side by side
_LEAST_REFUSAL = 1e-6  # probability of refusing a token with which refusals are probed
_LIKELY, _STANDS_OUT, _SPREAD, _NOISE = 50, 4.0, 2.2, 0.7  # one token in _LIKELY is a likely one; the others are logits


@dataclass(frozen=True)
class RowLines:
    """Intervals of one uniform, between two neighbouring edges of the rule, while all else of a request stays.

    Attributes:
        kind: ACCEPT, RESIDUAL or BONUS.
        token: drafted.
        fixed: the other uniform.
        low, high, width: the ends, and the length without the rounding of their difference.
        wanted: the rule's outcome (see Code).
        low_edge, high_edge: numbers of the edges at the ends; -1 at an end of an accept line that is not probed first.
    """

    kind: Int64[Tensor, " n"]
    token: Int64[Tensor, " n"]
    fixed: Float64[Tensor, " n"]
    low: Float64[Tensor, " n"]
    high: Float64[Tensor, " n"]
    width: Float64[Tensor, " n"]
    wanted: Int64[Tensor, " n"]
    low_edge: Int64[Tensor, " n"]
    high_edge: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.kind)

    def select(self, chosen: Tensor) -> RowLines:
        return RowLines(*(value[chosen] for value in vars(self).values()))

    def middle(self, line: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Where intervals are divided: by the logarithm of their distance from the rule's edge, which may be small."""
        start, end = self.low[line], self.high[line]
        half = (start + end) / 2
        below, above = high <= half, low >= half
        near = torch.where(below, low - start, end - high)
        far = torch.where(below, high - start, end - low)
        least = near.clamp(min=BESIDE)
        step = torch.where(far > 4 * least, (least * far).sqrt(), (near + far) / 2)
        return torch.where(below, start + step, torch.where(above, end - step, (low + high) / 2))

    @staticmethod
    def join(parts: list[RowLines]) -> RowLines:
        return RowLines(*(torch.cat(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))


def fresh_rows(
    vocabulary: int, seed: int, device: torch.device
) -> tuple[Float32[Tensor, "2 V"], Float32[Tensor, "1 V"]]:
    """Logits of the target's two rows and of the draft's, with few likely tokens and a long tail.

    The draft's are noisy copies of the target's.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = _SPREAD * torch.randn(2, vocabulary, generator=generator)
    likely = torch.rand(2, vocabulary, generator=generator).argsort(dim=1)[:, : max(2, vocabulary // _LIKELY)]
    logits.scatter_add_(1, likely, torch.full(likely.shape, _STANDS_OUT))
    draft = logits[:1] + _NOISE * torch.randn(1, vocabulary, generator=generator)
    return logits.to(device), draft.to(device)


def lines_of(rule: Rule, p: Float64[Tensor, "2 V"], q: Float64[Tensor, "1 V"], seed: int) -> RowLines | None:
    """All intervals between neighbouring edges, by falling probability; None where they depend on the drafted token."""
    vocabulary, device = p.shape[1], p.device
    number = torch.arange(vocabulary, device=device)

    def along(tokens: Int64[Tensor, " m"]) -> DraftPathTables:
        at = torch.tensor([[0, 1]], device=device).expand(len(tokens), 2)
        return DraftPathTables(p, q, at, at[:, :1], tokens[:, None], torch.ones_like(tokens))

    size = max(1, _CELLS // vocabulary)
    accept = torch.cat([rule.limits(along(part))[:, 0] for part in number.split(size)]).clamp(0, 1)
    refusing, accepting = q[0] * (1 - accept), q[0] * accept
    likely = refusing.topk(min(2, vocabulary)).indices
    residuals = rule.weights_after(along(likely), torch.zeros_like(likely))
    if not torch.equal(residuals[0], residuals[-1]):
        return None
    certain = accept >= 1
    parts, weights = [], []
    # Below a threshold the token is accepted, above it is refused.
    for wanted, tokens in ((vocabulary, number[accept > 0]), (0, number[~certain])):
        limit = accept[tokens]
        zero, one, edge = torch.zeros_like(limit), torch.ones_like(limit), torch.full_like(tokens, -1)
        low, high = (zero, limit) if wanted else (limit, one)
        low_edge = edge if wanted else tokens
        high_edge = tokens if wanted else edge
        wanted_code, kind = torch.full_like(tokens, wanted), torch.full_like(tokens, ACCEPT)
        parts.append(RowLines(kind, tokens, one / 2, low, high, high - low, wanted_code, low_edge, high_edge))
        weights.append(q[0, tokens] * (high - low))
    generator, next_edge = torch.Generator().manual_seed(seed + 1), vocabulary
    draws = ((RESIDUAL, residuals[0], refusing * (1 - accept > _LEAST_REFUSAL)), (BONUS, p[1], accepting))
    for kind_number, row, chance in draws:
        if not chance.sum() > 0:
            continue
        sums = row.cumsum(0)
        ids = (row > 0).nonzero()[:, 0]
        high = (sums / sums[-1])[ids]
        high[-1] = 1.0
        low = torch.cat([torch.zeros_like(high[:1]), high[:-1]])
        tokens = torch.multinomial(chance.cpu(), len(ids), replacement=True, generator=generator).to(device)
        refused = kind_number == RESIDUAL
        fixed = (1 + accept[tokens]) / 2 if refused else accept[tokens] / 2
        edges = torch.arange(len(ids), device=device) + next_edge
        wanted_code = ids if refused else vocabulary + ids
        width = row[ids] / sums[-1]
        kind = torch.full_like(ids, kind_number)
        parts.append(RowLines(kind, tokens, fixed, low, high, width, wanted_code, edges, edges + 1))
        weights.append(width * (refusing if refused else accepting).sum())
        next_edge += len(ids) + 1
    return RowLines.join(parts).select(torch.cat(weights).argsort(descending=True))
