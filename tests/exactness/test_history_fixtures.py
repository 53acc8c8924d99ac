"""Fixtures whose joint depends on what precedes it, and the bugs of those who look at another history."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from specbench.core.types import Draft
from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.laws import all_drafts, completed, law_ends, law_of
from specbench.exactness.fixtures.history import (
    GAMMA,
    PROMPT,
    STOP,
    TEXT,
    VOCABULARY,
    FrequencyPenalty,
    MinTokens,
    Successors,
    history_fixtures,
    model_logits,
)
from specbench.exactness.zoo.bugs import flawed
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.sampling import History
from tests.helpers.cases import FIXTURES

NAMES = [fixture.name for fixture in history_fixtures()]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_plain_python_for_every_prefix(name):
    """A history that is a token too short or too long, or of another prefix, gives other rows."""
    fixture, (p, q) = FIXTURES[name], model_logits(name)
    for drafted, base in ((fixture.target, p), (fixture.draft, q)):
        row = 0
        for i in range(GAMMA + 1 if drafted is fixture.target else GAMMA):
            for state in range(VOCABULARY**i):
                prefix = [state // VOCABULARY ** (i - 1 - j) % VOCABULARY for j in range(i)]
                text = [*TEXT, *prefix]
                for token in range(VOCABULARY):
                    expected = float(base[row, token])
                    if name == "penalised":
                        stops_early = token == STOP and len(text) - PROMPT < len(TEXT) - PROMPT + 1
                        expected = -math.inf if stops_early else expected - 0.5 * text.count(token)
                    elif token == (text[-1] + 1) % VOCABULARY:
                        expected = -math.inf
                    assert float(drafted.logits[row, token]) == pytest.approx(expected, abs=1e-6)
                row += 1


def along(name: str):
    """Every draft of the fixture as one batch: the draft, the target's rows, both models' logits, the history."""
    fixture, (p, q) = FIXTURES[name], model_logits(name)
    drafts = all_drafts(fixture, GAMMA)
    rows = fixture.rows_along(drafts.tokens)
    target_rows, draft_rows = rows.flatten(), rows[:, :-1].flatten()
    counts = torch.full((len(drafts.tokens),), GAMMA)
    draft = Draft(drafts.tokens.flatten(), fixture.draft.select(draft_rows), counts, GAMMA)
    batch = len(counts)
    history = History(
        torch.tensor([TEXT]).repeat(batch, 1), torch.full((batch,), PROMPT), torch.full((batch,), len(TEXT)),
        drafts.tokens, torch.arange(batch).repeat_interleave(GAMMA + 1), torch.arange(GAMMA + 1).repeat(batch),
    )  # fmt: skip
    return drafts, draft, fixture.target.select(target_rows), (p[target_rows], q[draft_rows]), history


def read(name: str, draft, target):
    """The logits of target and draft as a flawed verifier reads them."""
    draft, target, _ = flawed(name).read(draft, target, None)
    return target.logits, draft.rows.logits


def test_each_bug_makes_the_rows_that_its_wrong_history_makes():
    _, draft, target, (p, q), right = along("penalised")
    start, whole = (dataclasses.replace(right, offset=torch.full_like(right.offset, offset)) for offset in (0, GAMMA))
    inside = right.offset < GAMMA  # the draft's rows
    of_draft, from_start = (
        dataclasses.replace(history, request=history.request[inside], offset=history.offset[inside])
        for history in (right, start)
    )
    penalty, least = FrequencyPenalty(), MinTokens()
    as_it_is = draft.rows.logits
    for name, target_wanted, draft_wanted in (
        ("lost_penalty", least(penalty(p, start), right), as_it_is),
        ("penalty_of_whole_draft", least(penalty(p, whole), right), as_it_is),
        ("penalty_on_target_alone", target.logits, least(penalty(q, from_start), of_draft)),
        ("late_min_tokens", least(penalty(p, right), start), as_it_is),
    ):
        logits = read(name, draft, target)
        assert torch.allclose(logits[0], target_wanted, atol=1e-6), name
        assert torch.allclose(logits[1], draft_wanted, atol=1e-6), name
        assert not all(torch.equal(*pair) for pair in zip(logits, (target.logits, as_it_is), strict=True)), name

    _, draft, target, (p, _), right = along("grammar")
    before = dataclasses.replace(right, offset=(right.offset - 1).clamp(min=0))
    logits = read("previous_bitmask", draft, target)[0]
    expected = Successors()(p, before)
    assert torch.equal(logits == -math.inf, expected == -math.inf)
    both = (logits > -math.inf) & (target.logits > -math.inf)
    assert torch.equal(logits[both], expected[both])


@pytest.mark.parametrize(
    ("bug", "fixture", "tv"),
    [
        ("lost_penalty", "penalised", 0.1066),
        ("penalty_of_whole_draft", "penalised", 0.1630),
        ("penalty_on_target_alone", "penalised", 0.0472),
        ("late_min_tokens", "penalised", 0.4481),
        ("previous_bitmask", "grammar", 0.2644),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_the_bias_of_each_bug_by_enumeration_is_the_one_that_is_located(bug, fixture, tv):
    """The token rule's formulas with the rows as the bug reads them, over all drafts, as they are drawn."""
    made = FIXTURES[fixture]
    drafts, draft, target, _, _ = along(fixture)
    p, q = (logits.double().softmax(dim=1) for logits in read(bug, draft, target))
    wrong = dataclasses.replace(drafts, p=p.view_as(drafts.p), q=q.view_as(drafts.q))
    joint, right = (completed(made, law_ends(made, drafts, law_of(TOKEN, variant))) for variant in (wrong, drafts))
    enumerated = float((joint - right).abs().sum() / 2)
    assert enumerated == pytest.approx(tv, abs=5e-5)
    assert Probe(flawed(bug), made, 1.0).located == pytest.approx(enumerated, abs=1e-9)
