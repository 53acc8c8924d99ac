"""The simplest request that shows what is wrong, in words, and what usually makes it so."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING
from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.boxes import Model
from specbench.exactness.enumeration.injection import Example, Point, ends_of, expected_of, inject
from specbench.exactness.enumeration.laws import completed, drafts_of, law_of, target_joint
from specbench.exactness.evidence import Evidence
from specbench.exactness.failures.call_failure import failure_of
from specbench.exactness.failures.likely_cause import CauseSearch, padding_cause
from specbench.exactness.failures.wrong_points import FOR_THE_CAUSE, WrongPoint, differences
from specbench.exactness.fixtures import Fixture
from specbench.exactness.fixtures.table import all_sequences
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.reference import held_against
from specbench.exactness.results import EXTREMES, FORM, JOINT, Failure
from specbench.exactness.statistics.tally import Tally
from specbench.exactness.steps import Steps, verified_steps
from specbench.exactness.streams import GivenStreams
from specbench.exactness.trials.run import Trials
from specbench.exactness.verdict import verdict_of
from specbench.rules.agreement import TOLERANCE
from specbench.rules.verifier import Verifier, capabilities

_COMPANY = "other requests of its batch, earlier calls or noise of its own decide"
_BESIDE = 2000  # points next to wrong ones that are looked at


def simplest_failure(
    subject: Subject,
    evidence: Evidence,
    probes: dict[str, Probe],
    extremes: list[Example],
    trials: Trials | None,
    causes: CauseSearch,
) -> Failure | None:
    """Of what can be shown: where its thresholds are not its rule's, then calls at the ends of the uniforms, requests
    that came out otherwise than foreseen, counts of a small fixture, the law that its thresholds imply, and calls of D.

    A request of the fixture that the headline names comes first.

    Returns:
        None if it shows in none of these (coupled steps).
    """
    verdict = verdict_of(evidence)
    headed = verdict.located or verdict.row
    named = None if headed is None else headed.fixture
    for names in ({named}, {*probes, *(extreme.point.fixture.name for extreme in extremes)}):
        here = {name: probe for name, probe in probes.items() if name in names}
        ends = [extreme for extreme in extremes if extreme.point.fixture.name in names]
        if failure := _of_requests(subject, evidence, here, ends, causes):
            return failure
    if failure := _of_probabilities(subject.verifier, evidence, probes, causes):
        return failure
    return None if trials is None else failure_of(subject, trials)


def _of_requests(
    subject: Subject, evidence: Evidence, probes: dict[str, Probe], extremes: list[Example], causes: CauseSearch
) -> Failure | None:
    verifier = subject.verifier
    located = sorted(_in_models(verifier, probes), key=lambda wrong: wrong.point.fixture.count)
    if located:
        # Of the shortest drafts the largest box.
        simplest = min(located, key=lambda wrong: (wrong.point.fixture.count, -wrong.share))
        used = located[:FOR_THE_CAUSE]
        right = [point for wrong in used for point in wrong.beside][:_BESIDE]
        return _of_point(subject, simplest.point, causes.cause([wrong.point for wrong in used], right))
    if EXTREMES in {row.test for row in evidence.rejected} and extremes:
        example = extremes[0]
        again = torch.equal(_alone(subject, example.point).visible[0], example.emitted)
        cause = causes.cause([extreme.point for extreme in extremes])
        return _of_point(subject, example.point, cause, None if again else example)
    drawn = [probe.example for probe in probes.values() if probe.example is not None]
    if not drawn:
        return None
    example = min(drawn, key=lambda example: example.point.fixture.count)
    return _of_point(subject, example.point, causes.cause([one.point for one in drawn]), example)


def _of_probabilities(
    verifier: Verifier, evidence: Evidence, probes: dict[str, Probe], causes: CauseSearch
) -> Failure | None:
    for row in sorted(evidence.rejected, key=lambda row: row.p_value):
        if row.test in (JOINT, FORM) and row.fixture in evidence.tallies:
            return _of_counts(evidence.tallies[row.fixture], causes.cause())
    models = [model for probe in probes.values() for model in probe.models if model.fixture.enumerable]
    biased = max(models, key=lambda model: model.tv, default=None)
    return None if biased is None or biased.tv <= TOLERANCE else _of_law(verifier, biased, causes.cause())


def _in_models(verifier: Verifier, probes: dict[str, Probe]) -> Iterator[WrongPoint]:
    rule = held_against(verifier)
    if rule is not None:
        for probe in probes.values():
            for model in probe.models:
                yield from differences(rule, model)


def _of_point(subject: Subject, point: Point, cause: str, drawn: Example | None = None) -> Failure:
    """A request in words: what it emitted, in its batch if it was drawn in one, what it should have, and alone."""
    fixture, count = point.fixture, point.fixture.count
    steps = _alone(subject, point, drawn)
    drafted, rows = steps.drawn.tokens[0, :count].tolist(), steps.drawn.rows[0, : count + 1].tolist()
    p, q = fixture.p.cpu(), fixture.q.cpu()
    accept, rule = point.given[Stream.ACCEPT, :count].tolist(), held_against(subject.verifier)
    limits = None if rule is None else law_of(rule, drafts_of(fixture, steps.drawn.tokens[:, :count].cpu())).accept[0]
    lines = [f"drafted tokens: {drafted}"]
    for i, row in enumerate(rows):
        there = f"p = {_shown(p[row])}"
        if i < count:
            there += f", q = {_shown(q[row])}" if not fixture.deterministic else f", q = 1 for token {drafted[i]}"
            there += f", accept uniform {accept[i]:.17g}"
            there += "" if limits is None else f", threshold {float(limits[i]):.17g}"
        lines.append(f"{'after ' + str(drafted[:i]) if i else 'first token'}: {there}")
    lines.append(f"emit uniform: {float(point.given[Stream.EMIT, 0]):.17g}")
    result = steps.verification
    if drawn is not None:
        alone, wanted = steps.visible[0], drawn.wanted
        right = not torch.equal(alone, drawn.emitted) if wanted is None else torch.equal(alone, wanted)
        lines += [
            f"emitted: {_tokens(drawn.emitted)}, in its batch, by the request of seed {drawn.seed} at position "
            f"{drawn.position}",
            *([] if wanted is None else [f"foreseen: {_tokens(wanted)}"]),
            f"alone, by a new object: {_tokens(alone)}" + (f". So {_COMPANY}" if right else ""),
        ]
    else:
        lines.append(f"emitted: {_tokens(result.token_ids[0])}, num_accepted {int(result.num_accepted[0])}")
        if rule is not None:
            wanted = expected_of(rule, fixture, point.given[:, None])[0]
            lines.append(f"by the {rule.title}: {_tokens(wanted)}")
            if torch.equal(steps.visible[0], wanted):
                lines.append(f"right alone, by a new object, and wrong in the search: {_COMPANY}")
    return Failure(fixture.name, fixture.reason, tuple(lines), padding_cause(steps.drawn, result, 0) or cause)


def _alone(subject: Subject, point: Point, drawn: Example | None = None) -> Steps:
    """The request by itself, put before a new object, with its own seed and position if it was drawn."""
    given, device = point.given[:, None], point.fixture.p.device
    like = None
    if drawn is not None:
        seeds, positions = (torch.tensor([number], device=device) for number in (drawn.seed, drawn.position))
        like = Streams(seeds, positions, given.shape[2])
    streams = GivenStreams.of(given.to(device), like)
    return Steps.on_cpu([verified_steps(subject.new_object(), point.fixture, streams)])


def _tokens(tokens: Int64[Tensor, " width"]) -> str:
    """Without the padding at the end."""
    shown = tokens.tolist()
    while shown and shown[-1] == PADDING:
        shown.pop()
    return str(shown) if shown else "what no rule can give"


def _of_law(verifier: Verifier, model: Model, cause: str) -> Failure:
    """The sequence whose probability is farthest from the target's: drafts that are drawn otherwise show so alone."""
    fixture, boxes = model.fixture, model.boxes
    ends = ends_of(inject(verifier, fixture, boxes.middle), boxes.weight)
    law = completed(fixture, ends)
    target = target_joint(fixture, len(ends)).to(law.device)
    worst = int((law - target).abs().argmax())
    tokens = all_sequences(fixture.vocabulary, len(ends))[worst].tolist()
    lines = [
        f"drafts of {fixture.count} tokens, the step {tokens} (completed with the target's tokens): probability "
        f"{float(law[worst]):.9g} by the code's thresholds, {float(target[worst]):.9g} by the target"
    ]
    if capabilities(verifier).draft_tokens is not None:
        lines.append("it draws drafts by itself: look there first if no single request is wrong")
    return Failure(fixture.name, fixture.reason, tuple(lines), cause)


def _of_counts(tally: Tally, cause: str) -> Failure:
    """The token whose count is farthest from what the target makes of it."""
    counts = torch.from_numpy(tally.nodes()).sum(dim=0).double()
    reached = counts.sum(dim=1, keepdim=True)
    p = tally.fixture.p.cpu()
    share = counts / reached.clamp(min=1)
    excess = (counts - reached * p).abs() / (reached * p * (1 - p) + 1).sqrt()
    row, token = divmod(int(excess.argmax()), p.shape[1])
    position, state = _place(tally.fixture, row)
    line = (
        f"token {position + 1} of a step, in state {state}: token {token} is {float(share[row, token]):.6g} of "
        f"{int(reached[row]):,} emitted there, the target's probability is {float(p[row, token]):.6g}"
    )
    return Failure(tally.fixture.name, tally.fixture.reason, (line,), cause)


def _place(fixture: Fixture, row: int) -> tuple[int, int]:
    """The position and the state of a table row."""
    row %= fixture.rows
    position = max(i for i, first in enumerate(fixture.first_row) if first <= row)
    return position, row - fixture.first_row[position]


def _shown(row: Float64[Tensor, " V"]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in row.tolist()) + "]"
