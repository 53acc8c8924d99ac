"""Over how many draws does a verifier emit the tokens of another one? Counted on synthetic logits (synthetic.py).

Both verify the same steps from the same streams, and the first one's rule explains every difference: rounding at a
threshold, or wrong. Logits are made anew every so often; between, the same logits are drafted from and verified again
with other seeds, so that their normalisers are computed once for the other verifier. The one under test gets them as an
engine would have them: the target's rows raw, the draft's with the normaliser known.

A draw is one decision that a uniform made: each drafted token that was accepted or rejected (those behind the first
rejection were not decided by the token rule, and are not counted), and each emitted token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.benchmark.grid import CaseSpec
from specbench.benchmark.synthetic import POSITIONS, Case, make_case
from specbench.benchmark.tables import DifferenceRow
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules.agreement import classify
from specbench.rules.rule import Rule, rule_of
from specbench.rules.verifier import Verifier
from specbench.sampling import logit_rows

_AT_ONCE = 128  # draft rows whose dense cumulative sums are held side by side


@dataclass
class DrawCounts:
    """What two verifiers emitted.

    Attributes:
        logits: batches of logits, each drawn from many times.
        verifications: of one request.
        draws, drafted, accepted: see the module; of the other verifier, where the two differ.
    """

    logits: int = 0
    verifications: int = 0
    draws: int = 0
    drafted: int = 0
    accepted: int = 0
    differences: list[DifferenceRow] = field(default_factory=list)


def count_draws(
    verifier: Verifier,
    other: Verifier,
    spec: CaseSpec,
    *,
    draws: int,
    steps: int,
    seed: int,
    device: torch.device,
    advance: Callable[[int], None],
) -> DrawCounts:
    """Lets both verify until at least ``draws`` decisions were made.

    Args:
        steps: verifications of each request from the same logits.
        advance: receives the draws since its last call.
    """
    rule, counts = rule_of(verifier), DrawCounts()
    while counts.draws < draws:
        before = counts.draws
        case = make_case(spec, seed, counts.logits, device)
        normalised = logit_rows(case.target_logits, case.target_params)
        target = normalised if case.target_params.truncates else case.target()
        rows, token_ids = case.inputs()[0].rows, drafts(case, steps)
        for step in range(steps):
            if counts.draws >= draws:
                break
            streams = streams_of(case, step)
            draft = Draft(token_ids[step], rows, case.num_draft_tokens, spec.gamma)
            expected = other.verify(draft, normalised, streams)
            got = verifier.verify(draft, target, streams)
            if not _count(rule, draft, expected, got, counts):
                counts.differences += _explained(rule, draft, normalised, streams, expected, got, counts.logits, step)
        counts.logits += 1
        advance(counts.draws - before)
    return counts


def _count(rule: Rule, draft: Draft, expected: Verification, got: Verification, counts: DrawCounts) -> bool:
    """Adds a step to the counts; whether both emitted the same."""
    decided = rule.num_decided(expected.num_accepted, draft.num_draft_tokens).sum()
    seen = torch.stack([expected.num_accepted.sum(), decided, (~got.differs(expected)).all().long()])
    accepted, decisions, all_same = seen.tolist()  # the only wait for the device
    counts.verifications += len(draft.num_draft_tokens)
    counts.drafted += len(draft.token_ids)
    counts.accepted += accepted
    counts.draws += decisions + len(draft.num_draft_tokens)
    return bool(all_same)


def _explained(
    rule: Rule,
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    expected: Verification,
    got: Verification,
    logits: int,
    step: int,
) -> list[DifferenceRow]:
    """The requests of a step that came out differently; unexplained if the rule has no formulas."""
    if rule.has_law:
        classes = classify(rule, draft, target, streams, expected, got)
        requests = classes.requests.tolist()
        reasons: list[tuple[float | None, bool | None]] = list(
            zip(classes.excess.tolist(), classes.rounding.tolist(), strict=True)
        )
    else:
        requests = got.differs(expected).nonzero()[:, 0].tolist()
        reasons = [(None, None)] * len(requests)
    return [
        DifferenceRow(
            logits=logits,
            step=step,
            request=b,
            twin_accepted=int(expected.num_accepted[b]),
            twin_emitted=int(expected.token_ids[b, expected.num_accepted[b]]),
            accepted=int(got.num_accepted[b]),
            emitted=_emitted(got, b),
            excess=excess,
            rounding=rounding,
        )
        for b, (excess, rounding) in zip(requests, reasons, strict=True)
    ]


def _emitted(outcome: Verification, b: int) -> int:
    """The token after the accepted ones; -1 where a wrong num_accepted points at none."""
    row, place = outcome.token_ids[b].tolist(), int(outcome.num_accepted[b])
    return row[place] if 0 <= place < len(row) else -1


def streams_of(case: Case, step: int) -> Streams:
    """The uniforms of the case's requests at one of many steps; no two steps share a position."""
    return Streams(case.seeds, case.positions + POSITIONS * step, case.spec.gamma + 1)


def drafts(case: Case, steps: int) -> Int64[Tensor, "steps n"]:
    """Tokens drafted at each step: drawn from the draft's rows with that step's uniforms.

    The cumulative sums of a row are computed once for all steps; otherwise as sampling.sample does it.
    """
    batch, gamma = case.spec.batch_size, case.spec.gamma
    many = Streams(
        case.seeds.repeat(steps), torch.cat([streams_of(case, step).positions for step in range(steps)]), gamma + 1
    )
    u = many.uniform(Stream.DRAFT)[:, :gamma].reshape(steps, batch * gamma).T
    chunks = torch.arange(batch * gamma, device=u.device).split(_AT_ONCE)
    drawn = [_draw_many(case.draft_rows.select(chunk).probs(), u[chunk].contiguous()) for chunk in chunks]
    return torch.cat([case.token_ids.new_zeros(0, steps), *drawn]).T.contiguous()


def _draw_many(weights: Float64[Tensor, "n V"], u: Float64[Tensor, "n steps"]) -> Int64[Tensor, "n steps"]:
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, u * total, right=True)
    return torch.minimum(index, torch.searchsorted(cumulative, total, right=False))
