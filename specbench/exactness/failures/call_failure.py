"""The simplest request of D that shows what is wrong, shrunk and in words."""

import contextlib

import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream
from specbench.core.types import PADDING, Verification
from specbench.exactness import guard
from specbench.exactness.failures.likely_cause import padding_cause
from specbench.exactness.inputs import Call
from specbench.exactness.inputs.law import LawError
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.reference import held_against
from specbench.exactness.results import DRAWN, Failure
from specbench.exactness.trials.judge import CONFIGURED_FIRST, impossible
from specbench.exactness.trials.run import Trials
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import Rule

_SHOWN = 8  # draft tokens of a request


def failure_of(subject: Subject, trials: Trials) -> Failure | None:
    """A request on which the rule's formulas are wrong, or the code's tokens are not the rule's; None without one."""
    rule = held_against(subject.verifier)
    if trials.unfit is not None and rule is not None:
        return _of_rule(rule, *trials.unfit)
    if trials.example is None:
        return None
    return _of_code(subject, rule, *trials.example)


def _of_code(subject: Subject, rule: Rule | None, call: Call, request: int, seen: tuple[int, ...]) -> Failure:
    """The request with the fewest draft tokens with which it fails alone, put before a new object; else in its call."""
    shown, b, tokens, kept = call, request, list(seen), None
    company = [
        f"as request {request} of its call of {len(call.counts)}; a new object gets it right alone, so that other "
        "requests, earlier calls or noise of its own decide"
    ]
    for count in range(int(call.counts[request]) + 1):
        one = call.alone(request, count)
        with contextlib.suppress(ArgumentError):  # it may take no draft so short
            result = guard.verify(subject.new_object(), one)
            if _wrong(rule, one, result, 0):
                shown, b, tokens, kept, company = one, 0, result.token_ids[0].tolist(), count, []
                break
    cause = ""
    with contextlib.suppress(ArgumentError, guard.VerifierFault):
        cause = padding_cause(shown, guard.verify(subject.new_object(), shown), b)
    lines = [_conditions(shown, b), *_draft(shown, b), f"emitted: {_tokens(tokens)}"]
    if rule is not None:
        lines.append(f"by the {rule.title}: {_tokens(shown.expected(rule).token_ids[b].tolist())}")
    lines += [*company, _again(call, request, kept)]
    return Failure(f"{DRAWN}, stratum {call.stratum.name!r}", call.stratum.reason, tuple(lines), cause)


def _wrong(rule: Rule | None, call: Call, result: Verification, b: int) -> bool:
    """Whether a request's result is not the rule's; without a rule, whether it is one that the target cannot give."""
    if rule is None:
        return bool(impossible(call, result)[b])
    return not torch.equal(result.token_ids[b], call.expected(rule).token_ids[b])


def _of_rule(rule: Rule, call: Call, request: int, error: LawError) -> Failure:
    one = call.alone(request)
    lines = [_conditions(one, 0), *_draft(one, 0)]
    lead = f"by the formulas of the {rule.title} "
    if error.first > TOLERANCE:
        lines.append(f"{lead}the first token of a step is of total variation {error.first:.4g} from the target's")
    else:
        lines.append(f"{lead}a later token of a step, or a second candidate of a tree, is not the target's")
    lines.append(_again(call, request, int(one.counts[0])))
    return Failure(f"{DRAWN}, stratum {call.stratum.name!r}", call.stratum.reason, tuple(lines))


def _conditions(call: Call, b: int) -> str:
    options, drafts = call.options, "one-hot" if call.draft.rows is None else "sampled"
    row, temperature = int(call.path.p_rows[b, 0]), float(call.target.temperature[call.draft.first_row[b] + b])
    return (
        f"{call.vocabulary:,} tokens, {options['dtype']} logits ({options['rows'][b]}), temperature {temperature:.6g}, "
        f"truncation {options['truncation'][b]}, mask {options['mask'][b]}, "
        f"{int((call.p[row] > 0).sum()):,} tokens possible first; {drafts} draft; "
        f"seed {int(call.streams.seeds[b])}, position {int(call.streams.positions[b])}"
    )


def _draft(call: Call, b: int) -> list[str]:
    path, count = call.path, int(call.counts[b])
    u, emit = call.streams.uniform(Stream.ACCEPT)[b], float(call.streams.uniform(Stream.EMIT)[b, 0])
    lines = [
        f"draft token {i + 1}: {int(call.tokens[b, i])}, p = {float(path.drafted_p[b, i]):.6g}, "
        f"q = {float(path.drafted_q[b, i]):.6g}, accept uniform {float(u[i]):.17g}"
        for i in range(min(count, _SHOWN))
    ]
    more = [f"and {count - _SHOWN} draft tokens more"] if count > _SHOWN else []
    return [*(lines or ["nothing drafted"]), *more, f"emit uniform: {emit:.17g}"]


def _tokens(tokens: list[int]) -> str:
    return str([token for token in tokens if token != PADDING])


def _again(call: Call, request: int, count: int | None) -> str:
    """Code that makes the arguments again."""
    if call.number >= CONFIGURED_FIRST:
        return "drawn under the conditions of the run: made again by the command that repeats the certificate"
    alone = "" if count is None else f".alone({request}, {count})"
    return (
        f"made again by specbench.exactness.inputs.draw_call({call.seed}, {call.number}, "
        f"torch.device('{call.counts.device.type}'), Takes.of(verifier)){alone}"
    )
