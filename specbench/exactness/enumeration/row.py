"""The whole law of a step for one pair of rows of a large vocabulary, located edge by edge. No Monte Carlo.

For given rows and a drafted token a step is a function of two uniforms, and the rule's closed form says where it
changes: at the accept threshold of each drafted token, and at the cumulative sums of the residual and of the bonus row.
The code is probed beside every one of these edges, on both sides. Where it does otherwise than the rule, its own edges
are bisected. Three things are taken for granted: between two probes that give the same token the code gives this token
throughout; a drafted token is accepted below one threshold; and the draw after a refusal (or an acceptance) does not
depend on the token that was refused (or accepted).
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.machine.devices import one_thread
from specbench.exactness.enumeration.injection import LARGEST, SMALLEST
from specbench.exactness.enumeration.laws import pair_distance
from specbench.exactness.enumeration.row_code import RowCode
from specbench.exactness.enumeration.row_edges import (
    ACCEPT,
    BESIDE,
    BONUS,
    RESIDUAL,
    RowLines,
    fresh_rows,
    lines_of,
)
from specbench.exactness.results import LocatedRow
from specbench.exactness.settings import deadline_of
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import Rule
from specbench.rules.verifier import Verifier

_UNIT = 2.0**-52
_RESOLUTION = 1e-13  # to which the code's own edges are bisected
_MOST_OPEN = 4  # edges that are bisected at once, for each that the rule has


@one_thread()
def locate_row(
    verifier: Verifier,
    rule: Rule,
    vocabulary: int,
    seed: int,
    device: torch.device,
    seconds: float | int,
    normalized: bool = False,
) -> LocatedRow | None:
    """Locates the law of a step with fresh rows of ``vocabulary`` tokens and drafts of one token.

    Some 6 requests a token are verified if the code has the rule's edges, and 40 more for each edge that it has
    elsewhere.

    Args:
        rule: the verifier's, whose formulas are known.
        seed: of the rows.
        seconds: after which what is not located counts as wrong; 0 is no limit.
        normalized: whether the target's rows come with their normaliser, as drafted rows always do.

    Returns:
        None if the rule's residual depends on the drafted token, or the verifier does not draw from the streams that it
        is handed.

    Raises:
        ArgumentError: the verifier refuses such requests.
        VerifierFault: the verifier did what no verifier may.
    """
    started = time.perf_counter()
    logits = fresh_rows(vocabulary, seed, device)
    p, q = (rows.double().softmax(dim=1) for rows in logits)
    lines = lines_of(rule, p, q, seed)
    if lines is None:
        return None
    code = RowCode(verifier, *logits, normalized, deadline_of(seconds))
    if not code.draws_from_streams():
        return None
    search = _RowSearch(code, p, q[0], lines)
    search.run()
    tv, slack = search.distance()
    return LocatedRow(
        vocabulary=vocabulary,
        rule=rule.name,
        normalized=normalized,
        tv=tv,
        slack=slack,
        edges=search.edges,
        displaced=search.displaced,
        largest=float(search.wrong_length.max()),
        structural=search.structural,
        requests=code.requests,
        cut=search.cut,
        seconds=time.perf_counter() - started,
    )


class _RowSearch:
    """Probes lines and adds up what the code emits on them.

    Attributes:
        by_token, by_outcome: length of each outcome: of the accept lines by drafted token (refused, accepted, neither),
            of the others by kind and outcome.
        unknown: length by kind that was not located, that of the accept lines times q.
        wrong_length: of each line, where the code does otherwise than the rule.
    """

    def __init__(self, code: RowCode, p: Float64[Tensor, "2 V"], q: Float64[Tensor, " V"], lines: RowLines):
        self.code, self.p, self.q, self.lines, self.vocabulary = code, p, q, lines, code.vocabulary
        device = lines.low.device
        self.by_token = torch.zeros(3 * self.vocabulary, dtype=torch.float64, device=device)
        self.by_outcome = torch.zeros(3 * (2 * self.vocabulary + 1), dtype=torch.float64, device=device)
        self.unknown = torch.zeros(3, dtype=torch.float64, device=device)
        self.wrong_length = torch.zeros_like(lines.low)
        self.unit = torch.where(lines.kind == ACCEPT, q[lines.token], 1.0)  # what a length is worth
        self.cut, self.displaced, self.edges = False, 0, 0

    def outcomes(self, line: Int64[Tensor, " n"], u: Float64[Tensor, " n"]) -> Int64[Tensor, " m"]:
        """The outcomes at places of some lines; on accept lines only whether the token is accepted."""
        own = self.lines.select(line)
        on_accept = own.kind == ACCEPT
        u = u.clamp(SMALLEST, LARGEST)
        outcome = self.code(own.token, torch.where(on_accept, u, own.fixed), torch.where(on_accept, own.fixed, u))
        self.cut |= len(outcome) < len(line)
        whether = outcome // self.vocabulary * self.vocabulary
        return torch.where(on_accept[: len(outcome)], whether, outcome)

    def run(self) -> None:
        """Probes beside every edge, then divides the lines whose two ends differ."""
        lines = self.lines
        beside = torch.minimum(lines.width / 4, torch.full_like(lines.width, BESIDE))
        places = torch.stack([lines.low + beside, lines.high - beside], 1)
        edges = torch.stack([lines.low_edge, lines.high_edge], 1)
        self.edges = len(edges[edges >= 0].unique())
        wide = (lines.width >= 8 * _UNIT)[:, None]
        outcomes = torch.full_like(edges, -1)
        line, side = ((edges >= 0) & wide).nonzero().unbind(1)
        self._probe(outcomes, places, line, side)
        self._choose_other_tokens(outcomes, places)
        wrong = (outcomes >= 0) & (outcomes != lines.wanted[:, None])
        self.displaced = len(edges[wrong & (edges >= 0)].unique())
        # The far end of an accept line is probed if the near one is wrong, and else taken to be as the near one.
        far = edges < 0
        outcomes = torch.where(far & (outcomes.flip(1) == lines.wanted[:, None]), lines.wanted[:, None], outcomes)
        line, side = (far & wrong.flip(1)).nonzero().unbind(1)
        self._probe(outcomes, places, line, side)
        known = (outcomes >= 0).all(dim=1)
        number = torch.arange(len(lines), device=lines.low.device)
        self._leave(number[~known], lines.width[~known])
        self._count_unknown(number[known], ((edges >= 0).sum(dim=1) * beside)[known])
        same = known & (outcomes[:, 0] == outcomes[:, 1])
        self._add(number[same], outcomes[same, 0], lines.width[same])
        differ = known & ~same
        self._bisect(number[differ], lines.low[differ], lines.high[differ], outcomes[differ])

    def _probe(self, results: Tensor, places: Tensor, line: Tensor, side: Tensor) -> None:
        outcomes = self.outcomes(line, places[line, side])
        results[line[: len(outcomes)], side[: len(outcomes)]] = outcomes

    def _choose_other_tokens(self, results: Tensor, places: Tensor) -> None:
        """Probes draws again on which the code refused what the rule accepts, or the reverse, with another token.

        That is what the accept lines of the token measure; what is drawn then belongs to another line.
        """
        lines, rule_refuses = self.lines, (self.lines.wanted < self.vocabulary)[:, None]
        decided = (results >= 0) & (results < 2 * self.vocabulary)
        other = (decided & ((results < self.vocabulary) != rule_refuses)).any(dim=1)
        token, fixed = lines.token.clone(), lines.fixed.clone()
        for kind in (RESIDUAL, BONUS):
            good, bad = (((lines.kind == kind) & which).nonzero()[:, 0] for which in (~other, other))
            if len(good):
                instead = good[torch.arange(len(bad), device=good.device) % len(good)]
                token[bad], fixed[bad] = lines.token[instead], lines.fixed[instead]
        self.lines = replace(lines, token=token, fixed=fixed)
        line, side = ((other & (lines.kind != ACCEPT))[:, None] & (results >= 0)).nonzero().unbind(1)
        self._probe(results, places, line, side)

    def _bisect(self, line: Tensor, low: Tensor, high: Tensor, ends: Tensor) -> None:
        """Halves intervals whose ends differ, all at once, until they are as narrow as the resolution."""
        while len(line):
            tiny = high - low <= _RESOLUTION
            for outcome in ends[tiny].unbind(1):
                self._add(line[tiny], outcome, (high - low)[tiny] / 2)
            self._count_unknown(line[tiny], (high - low)[tiny])
            line, low, high, ends = (part[~tiny] for part in (line, low, high, ends))
            worth = (high - low) * self.unit[line]
            order = worth.argsort(descending=True)
            left_out = order[_MOST_OPEN * self.edges :]  # code with noise of its own would double them at every step
            self.cut |= len(left_out) > 0
            kept = order[: _MOST_OPEN * self.edges]
            middle = self.lines.middle(line, low, high)
            outcome = self.outcomes(line[kept], middle[kept])
            left_out = torch.cat([left_out, kept[len(outcome) :]])
            self._leave(line[left_out], (high - low)[left_out])
            kept = kept[: len(outcome)]
            line = line[kept].repeat(2)
            low, high = torch.cat([low[kept], middle[kept]]), torch.cat([middle[kept], high[kept]])
            first, last = ends[kept].unbind(1)
            ends = torch.stack([torch.cat([first, outcome]), torch.cat([outcome, last])], 1)
            same = ends[:, 0] == ends[:, 1]
            self._add(line[same], ends[same, 0], (high - low)[same])
            line, low, high, ends = (part[~same] for part in (line, low, high, ends))

    def _leave(self, line: Tensor, length: Tensor) -> None:
        """Takes what was not located for the rule's, and counts it."""
        self._add(line, self.lines.wanted[line], length)
        self._count_unknown(line, length)

    def _count_unknown(self, line: Tensor, length: Tensor) -> None:
        self.unknown.index_add_(0, self.lines.kind[line], length * self.unit[line])

    def _add(self, line: Tensor, outcome: Tensor, length: Tensor) -> None:
        kind, vocabulary = self.lines.kind[line], self.vocabulary
        on_accept = kind == ACCEPT
        self.by_token.index_add_(
            0, 3 * self.lines.token[line[on_accept]] + outcome[on_accept] // vocabulary, length[on_accept]
        )
        drawn = (kind * (2 * vocabulary + 1) + outcome)[~on_accept]
        self.by_outcome.index_add_(0, drawn, length[~on_accept])
        self.wrong_length.index_add_(0, line, length * (outcome != self.lines.wanted[line]))

    @property
    def structural(self) -> int:
        """Lines on which the code does otherwise than the rule, beyond errors of TOLERANCE of p and q at both ends."""
        lines = self.lines
        residual = (self.p[0] - self.q).clamp(min=0).sum()  # p and q sum to 2, of which so much is left
        scale = torch.where(lines.kind == RESIDUAL, 2 / residual, 1.0)
        return int((self.wrong_length > 2 * TOLERANCE * scale).sum())

    def distance(self) -> tuple[float, float]:
        """Total variation of the located law of a step from the target's, and what it may be too small by."""
        vocabulary, p, q = self.vocabulary, self.p, self.q
        refused, accepted, neither = (q * part for part in self.by_token.view(vocabulary, 3).unbind(1))
        by_outcome = self.by_outcome.view(3, 2 * vocabulary + 1)
        refusal, acceptance = refused.sum(), accepted.sum()
        residual, bonus = by_outcome[RESIDUAL, :vocabulary], by_outcome[BONUS, vocabulary : 2 * vocabulary]
        # What no rule can give is no sequence of the target's, and counts as mass outside of them.
        lost = neither.sum() + refusal * by_outcome[RESIDUAL, vocabulary:].sum()
        lost = lost + acceptance * (by_outcome[BONUS].sum() - bonus.sum())
        excess = refusal * residual - p[0]
        tv = (pair_distance(accepted, excess, bonus, p[1]) + lost) / 2
        worth = torch.stack([torch.ones_like(refusal), refusal, acceptance])
        never = by_outcome.sum(dim=1) == 0  # no line of the kind: the rule never gets there
        never[ACCEPT] = False
        slack = (worth * torch.where(never, torch.ones_like(worth), self.unknown)).sum()
        return float(tv), float(slack)
