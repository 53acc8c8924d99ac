"""The simplest request of D that shows what is wrong, shrunk and in words."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.core.rng import Stream
from specbench.core.types import PADDING, Verification
from specbench.exactness import watch
from specbench.exactness.enumeration.reference import held_against
from specbench.exactness.evidence import Failure
from specbench.exactness.inputs import Call
from specbench.exactness.inputs.expected import CallPath, expected
from specbench.exactness.inputs.law import LawError
from specbench.exactness.judge import CONFIGURED_FIRST
from specbench.exactness.trials import Trials
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import Rule
from specbench.verifiers import Verifier

DRAWN = "calls of D"  # in the place of a fixture
_SHOWN = 8  # draft tokens of a request


def failure_of(verifier: Verifier, trials: Trials) -> Failure | None:
    """A request on which the rule's formulas are wrong, or the code's tokens are not the rule's; None without one."""
    rule = held_against(verifier)
    if trials.unfit is not None and rule is not None:
        return _of_rule(rule, *trials.unfit)
    if trials.example is None:
        return None
    call, request = trials.example
    return _of_code(verifier, rule, call, request)


def _of_code(verifier: Verifier, rule: Rule | None, call: Call, request: int) -> Failure:
    shrunk = _shrunk(verifier, rule, call, request)
    shown, b = (shrunk, 0) if shrunk is not None else (call, request)
    result = watch.verify(verifier, shown, shown.draft, shown.target, shown.streams)
    path = CallPath(shown)
    lines = [_conditions(shown, b), *_draft(shown, path, b)]
    lines.append(f"emitted: {_tokens(result, b)}")
    if rule is not None:
        lines.append(f"by the {rule.title}: {_tokens(expected(rule, shown, path), b)}")
    if shrunk is None:
        lines.append(f"as request {request} of its call of {len(call.counts)}; alone it is verified by the rule")
    lines.append(_again(call, request, None if shrunk is None else int(shown.counts[0])))
    return Failure(f"{DRAWN}, stratum {call.stratum.name!r}", call.stratum.reason, tuple(lines))


def _shrunk(verifier: Verifier, rule: Rule | None, call: Call, request: int) -> Call | None:
    """The request alone, with the shortest draft that still shows it; None if it shows in company alone."""
    for count in range(int(call.counts[request]) + 1):
        one = call.alone(request, count)
        if one.q is None and count == 0:
            one.options["drafts"] = "one-hot"
        result = watch.verify(verifier, one, one.draft, one.target, one.streams)
        if _wrong(rule, one, result):
            return one
    return None


def _wrong(rule: Rule | None, one: Call, result: Verification) -> bool:
    if rule is not None:
        wanted = expected(rule, one)
        return not torch.equal(result.token_ids, wanted.token_ids)
    accepted, tokens = int(result.num_accepted[0]), result.token_ids[0]
    emitted = tokens[: accepted + 1]
    if accepted > int(one.counts[0]) or bool(((emitted < 0) | (emitted >= one.vocabulary)).any()):
        return True
    return bool((one.p.weights[torch.arange(len(emitted)), emitted] == 0).any())


def _of_rule(rule: Rule, call: Call, request: int, error: LawError) -> Failure:
    one = call.alone(request)
    path = CallPath(one)
    lines = [_conditions(one, 0), *_draft(one, path, 0)]
    lead = f"by the formulas of the {rule.title} "
    if error.first > TOLERANCE:
        lines.append(f"{lead}the first token of a step is of total variation {error.first:.4g} from the target's")
    else:
        lines.append(f"{lead}a later token of a step, or a second candidate of a tree, is not the target's")
    lines.append(_again(call, request, int(one.counts[0])))
    return Failure(f"{DRAWN}, stratum {call.stratum.name!r}", call.stratum.reason, tuple(lines))


def _conditions(call: Call, b: int) -> str:
    options, drafts = call.options, "one-hot" if call.draft.rows is None else "sampled"
    row = int(CallPath(call).first_p[b])
    temperature, dtype = float(_of_target(call, "temperature", b)), options["dtype"]
    return (
        f"{call.vocabulary:,} tokens, {dtype} logits ({options['rows'][b]}), temperature {temperature:.6g}, truncation "
        f"{options['truncation'][b]}, mask {options['mask'][b]}, {int((call.p.weights[row] > 0).sum()):,} tokens "
        f"possible first; {drafts} draft; seed {int(call.streams.seeds[b])}, position {int(call.streams.positions[b])}"
    )


def _of_target(call: Call, name: str, b: int) -> Tensor:
    places = call.draft.max_draft_tokens + 1
    row = b * places if call.draft.padded else int(CallPath(call).first_p[b])
    return getattr(call.target, name)[row]


def _draft(call: Call, path: CallPath, b: int) -> list[str]:
    count = int(call.counts[b])
    u, emit = call.streams.uniform(Stream.ACCEPT)[b], float(call.streams.uniform(Stream.EMIT)[b, 0])
    lines = [
        f"draft token {i + 1}: {int(path.tokens[b, i])}, p = {float(path.drafted_p[b, i]):.6g}, "
        f"q = {float(path.drafted_q[b, i]):.6g}, accept uniform {float(u[i]):.17g}"
        for i in range(min(count, _SHOWN))
    ]
    more = [f"and {count - _SHOWN} draft tokens more"] if count > _SHOWN else []
    return [*(lines or ["nothing drafted"]), *more, f"emit uniform: {emit:.17g}"]


def _tokens(result: Verification, b: int) -> str:
    return str([token for token in result.token_ids[b].tolist() if token != PADDING])


def _again(call: Call, request: int, count: int | None) -> str:
    """Code that makes the arguments again."""
    if call.number >= CONFIGURED_FIRST:
        return "drawn under the conditions of the run: made again by the command that repeats the certificate"
    made = (
        f"specbench.exactness.inputs.draw_call({call.seed}, {call.number}, torch.device('{call.counts.device.type}'), "
    )
    made += "Takes.of(verifier))"
    return f"made again by {made}{'' if count is None else f'.alone({request}, {count})'}"
