"""What a certificate covers, why a verifier that nothing rejects is not called lossless, and what it depends on."""

from __future__ import annotations

from specbench.core.rounding import about
from specbench.exactness.draws.probes import LOCATED, RULE
from specbench.exactness.evidence import Evidence
from specbench.exactness.purity.hidden_inputs import GENERATOR, KINDS, STREAMS, TWICE, established
from specbench.exactness.results import ACCEPTANCE, SUCCESSIVE, TWINS, Bound
from specbench.exactness.trials.run import ALL
from specbench.exactness.verdict import (
    MOST,
    MOST_OF_CALLS,
    ROUNDING,
    Verdict,
    breaks_lossy_rule,
    names_another_rule,
    other_tokens,
    unlike_formulas,
)

ALWAYS_BEYOND = (
    "inputs to which D gives no weight, such as larger vocabularies and batches, other temperatures and truncations",
    "penalties, grammars and whatever else makes p depend on more than logits and these parameters; trees of drafts",
    "another device, another release of PyTorch or of a driver, other threads and modes of PyTorch",
    "code that recognises that it is tested, what more calls of one object would change, and the first of a process",
    "where logits come from: models, caches, and the engine around the verifier",
)


def covered(evidence: Evidence) -> list[str]:
    """What was verified, in short lines."""
    lines = []
    small = [tally.fixture for tally in evidence.tallies.values()]
    if small:
        sizes = ", ".join(str(size) for size in sorted({fixture.vocabulary for fixture in small}))
        gammas = [count for fixture in small for count in fixture.counts]
        lines.append(
            f"{len(small)} small pairs of known distributions: {sizes} tokens, drafts of {min(gammas)} to "
            f"{max(gammas)} tokens, batches of up to {evidence.batch:,} requests, seeds and positions of all bits"
        )
    whole = next((row for row in evidence.inputs if row.stratum == ALL), None)
    if whole is not None and whole.calls:
        lines.append(
            f"{whole.calls:,} calls drawn from the input distribution D: {whole.requests:,} requests, {whole.rows:,} "
            "rows of the target, each drawn anew; the tables below have every choice with its probability"
        )
    return lines or ["nothing"]


def not_covered(evidence: Evidence) -> list[str]:
    """What was not."""
    lines = [f"{name}: refused ({reason})" for name, reason in evidence.unsupported.items()]
    lines += [f"{count:,} calls of D: refused ({reason})" for reason, count in evidence.refusals.items()]
    if not evidence.inputs:
        lines.append("calls drawn from D, and with them large vocabularies, long drafts and mixed batches: not run")
    lines += [f"{name}, so D was drawn without" for name in evidence.left_out]
    if evidence.inputs and evidence.row is None and evidence.interrupted is None:
        lines.append(
            "the law of a step on one pair of rows of a larger vocabulary: it has no uniforms or no formulas to go by"
        )
    if any(bound.by_counts for bound in evidence.bounds):
        lines.append(
            "where counts alone speak, faults that strike few calls as a whole, since requests are counted one by one"
        )
    tests = {row.test for row in evidence.rows}
    if SUCCESSIVE not in tests:
        lines.append("successive steps of a request, and neighbours in a batch: not run")
    if TWINS not in tests:
        lines.append("requests whose seeds or positions differ in one bit: not run")
    if evidence.long_use is None or evidence.long_use.unlike_fresh is None:
        lines.append("the first calls of an object: not compared with later ones, since no unused copy was at hand")
    return [*lines, *ALWAYS_BEYOND]


def of_habits(evidence: Evidence) -> list[str]:
    """What its tokens depend on beside its arguments."""
    sentences = []
    proved = established(evidence.habits)
    if proved:
        sentences += [
            f"It {KINDS[habit.name].does}: {habit.differing:,} of {habit.requests:,} requests came out otherwise "
            f"{KINDS[habit.name].when}."
            for habit in proved
        ]
        others = [repr(habit.name) for habit in evidence.habits if habit.differing and habit not in proved]
        if others:
            sentences.append(f"Its differences under {', '.join(others)} prove nothing more by themselves.")
        located = any(bound.method == LOCATED for bound in evidence.bounds)
        thresholds = "Thresholds say nothing of that, so" if located else "So"
        sentences.append(f"{thresholds} it is judged by requests with real seeds, in batches.")
    return sentences + [
        f"On {bound.fixture!r}, {bound.differing:,} of {bound.draws:,} requests have other tokens than the thresholds "
        f"imply; {bound.impure:,} of them that were tried again, with the same uniforms given, have not. So something "
        "beside the uniforms decides: seeds, positions, other requests, earlier calls or noise of its own."
        for bound in evidence.bounds
        if bound.impure
    ]


def caveats(verdict: Verdict, evidence: Evidence) -> list[str]:
    """What keeps it from being called lossless, or bounds from being smaller."""
    sentences = _of_another_rule(evidence)
    other = [row.fixture for row in evidence.rows if row.test == ACCEPTANCE and row.rejected_at is not None]
    if other:
        sentences.append(f"It accepts other numbers of tokens than the rule that it names (on {', '.join(other)}).")
    if evidence.unsupported:
        sentences.append(f"It refused these small pairs: {', '.join(evidence.unsupported)}.")
    if evidence.refusals:
        times, reason = (
            sum(evidence.refusals.values()),
            max(evidence.refusals, key=lambda reason: evidence.refusals[reason]),
        )
        sentences.append(f"It refused {times:,} calls of D, of which nothing is known. Most often: {reason}")
    if evidence.interrupted is not None:
        sentences.append("It is not called lossless, because the suite was interrupted.")
    elif not evidence.inputs:
        sentences.append("It is not called lossless, because no call was drawn from D.")
    of_rule = max((bound for bound in evidence.bounds if bound.method == RULE), key=_located, default=None)
    if of_rule is not None and _located(of_rule) > ROUNDING:
        sentences.append(
            f"The formulas of its rule have a bias of {about(of_rule.located)} a step on the small pair "
            f"{of_rule.fixture!r}."
        )
    largest = max((bound for bound in evidence.bounds if bound.method == LOCATED), key=_located, default=None)
    if largest is not None and _located(largest) > ROUNDING:
        sentences.append(
            f"The thresholds on {largest.fixture!r} imply a bias of {about(largest.located)} a step, more than the "
            f"{ROUNDING:g} of rounding. What the search missed could make up for it; more requests will tell."
        )
    of_requests = max((bound.tv for bound in evidence.bounds if bound.tv is not None), default=None)
    limits = [("requests on small pairs", of_requests, MOST), ("D", verdict.inputs_tv, MOST_OF_CALLS)]
    if evidence.calls is not None:
        limits.append(("calls of small pairs", verdict.tv, MOST_OF_CALLS))
    for place, tv, limit in limits:
        if tv is not None and tv > limit:
            remedy = "" if names_another_rule(evidence) else " More requests without a difference lower it."
            sentences.append(f"A bound above {limit:g} over {place} is too large to call it lossless.{remedy}")
    if any(row.calls and row.tv is None for row in evidence.inputs):
        sentences.append(f"It is not called lossless, because no bound over D is known: {_without_bound(evidence)}")
    return [*sentences, *of_time(evidence)]


def _without_bound(evidence: Evidence) -> str:
    """Why calls of D give no bound, and what to do."""
    if any(row.rule_checked for row in evidence.inputs):
        return (
            "on some calls the formulas of its rule have no closed form along the drafted path, since a threshold "
            "reads later tokens or whole rows. No setting changes that; quote the bound on small pairs."
        )
    return (
        "its rule has no formulas here, or it draws drafts by itself. If the rule is your own, give the verifier a "
        "Rule with its formulas."
    )


def of_lossy_rule(evidence: Evidence) -> list[str]:
    """Whether a verifier follows its lossy rule."""
    if not evidence.lossy_rule:
        return []
    bound = unlike_formulas(evidence)
    if not breaks_lossy_rule(evidence):
        return ["It follows its lossy rule: no request and no bias on a small pair differs from the formulas'."]
    sentences = ["It does not follow its lossy rule."]
    if bound is not None and bound.located is not None and bound.rule_error is not None:
        sentences.append(
            f"On the small pair {bound.fixture!r} the bias of the code is {about(bound.located)} a step, and that of "
            f"the formulas {about(bound.rule_error)}."
        )
    return [*sentences, *_of_another_rule(evidence)]


def of_time(evidence: Evidence) -> list[str]:
    """What a signal or a time limit cut short; all else has the numbers of its suite on any machine."""
    sentences = []
    if evidence.interrupted is not None:
        sentences.append(f"Interrupted {evidence.interrupted}. Bounds and tests are of what was done by then.")
    if evidence.cut:
        sentences.append(f"A time limit ended early: {', '.join(evidence.cut)}. Bounds are of what was done by then.")
    return sentences


def _of_another_rule(evidence: Evidence) -> list[str]:
    """Where its tokens are not those of the rule that it names, and why they may be."""
    sentences = []
    wrong, requests, where = other_tokens(evidence)
    if wrong:
        sentences.append(
            f"The tokens of {wrong:,} of {requests:,} requests are not those of the rule that it names, which rounding "
            f"does not explain ({', '.join(where)})."
        )
    if evidence.row is not None and evidence.row.structural:
        sentences.append(
            f"On that pair of rows, {evidence.row.structural:,} thresholds are displaced by more than rounding "
            "explains, so that its tokens are not those of the rule that it names."
        )
    if sentences:
        sentences += [*([evidence.fork] if evidence.fork else []), _of_causes(evidence)]
    return sentences


def _of_causes(evidence: Evidence) -> str:
    """Why tokens can be another rule's, and what to do."""
    if evidence.follows is not None:
        rule, compared = evidence.follows
        return (
            f"In all {compared:,} requests on small pairs that were compared, the tokens are those of the rule "
            f"{rule!r}, but for rounding. Name that rule."
        )
    if any(row.rule_wrong for row in evidence.inputs):
        return "The formulas of its rule are not the target's distribution: mend these first."
    if any(habit.name in (TWICE, GENERATOR, STREAMS) for habit in established(evidence.habits)):
        return (
            "State or noise of its own explains that: the tokens of a rule depend on the uniforms of `streams` alone."
        )
    if evidence.failure is not None and evidence.failure.cause:
        return "The simplest failing example names the likely cause."
    return (
        "It follows another rule, uses its uniforms in another order, or has a bug. If the rule is your own, give the "
        "verifier a Rule with its formulas, which are then compared with the target, and the tokens with them."
    )


def _located(bound: Bound) -> float:
    return bound.located or 0.0
