"""Is what was timed right? A benchmark that would not notice a wrong result measures nothing.

A verifier whose rule has a reference in plain PyTorch must emit the reference's tokens; every difference must be
explained by rounding (rules/agreement.py). A verifier with randomness of its own is held to the form of its output, to
the target's support, and, if it is declared lossless, to the acceptance that the token rule gives these drafts. Rows
that were penalised or banned are those of the plain twin, but for one rounding to the logits' dtype; tokens alone would
not tell, since a penalty on a token that would not be drawn anyway changes none.
"""

from dataclasses import dataclass

import torch

from specbench.benchmark.synthetic import Case
from specbench.core.errors import SpecbenchError
from specbench.core.rng import Streams
from specbench.core.sampling_params import NUMBERS
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.rules.agreement import TOLERANCE, classify, well_formed
from specbench.rules.rule import Rule, rule_of
from specbench.rules.verifier import Verifier
from specbench.sampling import RowParams, logit_rows

_SIGMAS = 7.0  # of the number of accepted tokens: false alarm 3e-12 a case
_SLACK = 0.02  # of the drafted tokens: libraries that round to bf16 on their way accept a little more or less
_CUTOFF_ROWS = 8
_ROWS_AT_ONCE = 256


class WrongResultError(SpecbenchError):
    """A verifier emitted what its rule does not allow; its times mean nothing."""


@dataclass(frozen=True)
class CheckResult:
    """The check of one outcome, if nothing is wrong.

    Attributes:
        outcome: a copy, to compare replays with; None where the verifier's randomness is its own.
        num_accepted: drafted tokens accepted by each request.
        rounding: requests that differ from the reference by rounding.
    """

    outcome: Verification | None
    num_accepted: list[int]
    rounding: int


def check(verifier: Verifier, case: Case, outcome: Verification) -> CheckResult:
    """Checks one outcome of ``verifier.verify(*case.inputs())``. Waits for the device.

    Raises:
        WrongResultError: naming the first request that is wrong.
    """
    case.restore()
    check_shaped(case, case.target().logits)
    draft, target, streams = case.shaped_before.inputs()
    if case.target_params.truncates:
        check_cutoffs(case, target)
    rule = rule_of(verifier)
    if rule.reference is not None:
        rounding = _against_reference(rule, rule.reference, draft, target, streams, outcome)
        copy = Verification(outcome.token_ids.clone(), outcome.num_accepted.clone())
        return CheckResult(copy, outcome.num_accepted.tolist(), rounding)
    _on_its_own(verifier, draft, target, outcome)
    return CheckResult(None, outcome.num_accepted.tolist(), 0)


def check_again(verifier: Verifier, case: Case, outcome: Verification, checked: CheckResult) -> None:
    """Checks the outcome of the last replay: the tokens that were checked before or, of own randomness, a valid one.

    Raises:
        WrongResultError: naming the first request that is wrong.
    """
    if checked.outcome is None:
        draft, target, _ = case.shaped_before.inputs()
        _on_its_own(verifier, draft, target, outcome)
        return
    different = outcome.differs(checked.outcome)
    if different.any():
        b = int(different.nonzero()[0])
        raise WrongResultError(
            f"verifier: request {b} of {case.spec}: the first call emitted {checked.outcome.token_ids[b].tolist()}, "
            f"the last timed one {outcome.token_ids[b].tolist()}, from the same logits and streams"
        )


def _against_reference(
    rule: Rule, reference: Verifier, draft: Draft, target: LogitRows, streams: Streams, outcome: Verification
) -> int:
    expected = reference.verify(draft, target, streams)
    differences = classify(rule, draft, target, streams, expected, outcome)
    if len(differences.wrong):
        b = int(differences.wrong[0])
        needed = float(differences.excess[differences.requests == b][0])
        raise WrongResultError(
            f"verifier: request {b} emits {_shown(outcome, b)}, by the {rule.title} it is {_shown(expected, b)}; "
            f"errors of p and q would have to be {needed:.1e} to explain it, and {TOLERANCE:g} is allowed. "
            f"{len(differences.wrong)} of {len(draft.num_draft_tokens)} requests are wrong"
        )
    return len(differences.requests)


def _on_its_own(verifier: Verifier, draft: Draft, target: LogitRows, outcome: Verification) -> None:
    formed = well_formed(draft, target, outcome)
    if not formed.all():
        b = int((~formed).nonzero()[0])
        raise WrongResultError(
            f"verifier: request {b}: {_shown(outcome, b)} is not a prefix of its draft, one token of the "
            "vocabulary, and padding"
        )
    emitted = outcome.token_ids.gather(1, outcome.num_accepted[:, None])[:, 0]
    possible = target.select(batched.target_row_after(draft, outcome.num_accepted)).prob(emitted) > 0
    if not possible.all():
        b = int((~possible).nonzero()[0])
        raise WrongResultError(f"verifier: request {b} emits token {int(emitted[b])}, which the target forbids")
    if not verifier.lossless:
        return
    mean, variance = expected_accepted(draft, target)
    got, drafted = float(outcome.num_accepted.sum()), len(draft.token_ids)
    allowed = _SIGMAS * variance**0.5 + _SLACK * drafted + 1
    if abs(got - mean) > allowed:
        raise WrongResultError(
            f"verifier: {got:.0f} of {drafted} drafted tokens accepted in all, where the token rule accepts {mean:.1f} "
            f"on average; {allowed:.1f} more or fewer are allowed"
        )


def _shown(outcome: Verification, b: int) -> str:
    return f"{outcome.token_ids[b].tolist()} (num_accepted {int(outcome.num_accepted[b])})"


def expected_accepted(draft: Draft, target: LogitRows) -> tuple[float, float]:
    """Mean and variance, over the uniforms, of the number of drafted tokens that the token rule accepts in all."""
    p, q = batched.drafted_probs(draft, target)
    chain = batched.padded((p / q).clamp(max=1), draft, 0.0).cumprod(dim=1)  # P(accepted > i)
    mean = chain.sum(dim=1)
    square = (chain * (2 * torch.arange(chain.shape[1], device=chain.device) + 1)).sum(dim=1)
    return float(mean.sum()), float((square - mean**2).sum())


def check_shaped(case: Case, logits: torch.Tensor) -> None:
    """Compares rows that were penalised and banned with those of the plain twin.

    Raises:
        WrongResultError: a logit that differs by more than one rounding to its dtype.
    """
    if case.raw_logits is None:
        return
    expected, step = case.shaped_before.target_logits, torch.finfo(logits.dtype).eps
    for rows in torch.arange(len(logits), device=logits.device).split(_ROWS_AT_ONCE):
        wrong = ~torch.isclose(logits[rows].float(), expected[rows].float(), rtol=step, atol=1e-6)
        if wrong.any():
            i, token = (int(index) for index in wrong.nonzero()[0])
            row = int(rows[i])
            raise WrongResultError(
                f"sampling: row {row} of {case.spec}: the logit of token {token} is {float(logits[row, token])}, "
                f"by the sampling parameters it is {float(expected[row, token])}"
            )


def check_cutoffs(case: Case, target: LogitRows) -> None:
    """Compares the cutoffs of a few rows with those found by sorting, on the CPU, where there is no other way.

    Raises:
        WrongResultError: a cutoff that differs by more than rounding of the nucleus's mass.
    """
    if target.logits.device.type == "cpu":
        return
    rows = torch.linspace(0, len(target) - 1, min(_CUTOFF_ROWS, len(target))).long().to(target.logits.device)
    params = case.shaped_before.target_params.select(rows)
    numbers = (getattr(params, name).cpu() for name in NUMBERS)
    cpu = RowParams(*numbers, truncates=True)
    expected = logit_rows(target.logits[rows].cpu(), cpu)
    wrong = cutoff_excess(expected, target.cutoff[rows].cpu().double(), cpu) > TOLERANCE
    if wrong.any():
        i = int(wrong.nonzero()[0])
        raise WrongResultError(
            f"sampling: target row {int(rows[i])} has cutoff {float(target.cutoff[rows[i]])}, a sort finds "
            f"{float(expected.cutoff[i])}"
        )


def cutoff_excess(expected: LogitRows, cutoff: torch.Tensor, params: RowParams) -> torch.Tensor:
    """The error of the nucleus's mass [n] that another cutoff than the expected one needs; 0 where it keeps the same.

    The two cutoffs keep the same tokens but for some between them; rounding explains those where the mass above each
    of them is top_p up to the error, since that is what decides whether a token is in the nucleus.
    """
    logits = expected.logits.double()
    low, high = torch.minimum(cutoff, expected.cutoff.double()), torch.maximum(cutoff, expected.cutoff.double())
    kept_low, kept_high = (logits >= bound[:, None] for bound in (low, high))
    same = (kept_low == kept_high).all(dim=1)
    # The nucleus is counted among what top-k left, which is what the smaller cutoff keeps where rounding is the cause.
    scaled = logits / torch.where(params.temperature > 0, params.temperature, 1.0)[:, None]
    k = torch.where(params.top_k > 0, params.top_k, logits.shape[1]).clamp(max=logits.shape[1])
    smallest_of_k = logits.sort(dim=1, descending=True).values.gather(1, k[:, None] - 1)
    mass = scaled.masked_fill(logits < smallest_of_k, -torch.inf).softmax(dim=1)
    above_low = (mass * (logits > logits.masked_fill(~kept_low, torch.inf).amin(dim=1, keepdim=True))).sum(dim=1)
    from_high = (mass * kept_high).sum(dim=1)
    needed = torch.maximum(above_low - params.top_p, params.top_p - from_high).clamp(min=0)
    outside = (kept_low & (logits < smallest_of_k)).any(dim=1)
    needed = needed.masked_fill(outside | (params.top_p >= 1), torch.inf)
    # Or min_p decided: every token between the two is then as likely as its bound says.
    likelihood = (scaled - scaled.amax(dim=1, keepdim=True)).exp() / params.min_p[:, None]
    by_min_p = torch.where(kept_low & ~kept_high, (likelihood - 1).abs(), 0.0).amax(dim=1)
    return torch.where(same, 0.0, torch.minimum(needed, by_min_p))
