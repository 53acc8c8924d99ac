"""What a rule emits for given streams, from a fixture's tables and the rule's formulas: what code is held against.

Nothing here is shared with a verifier: p and q are looked up in the tables, and the formulas are those of rules/.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.exactness.fixtures import Fixture
from specbench.exactness.fixtures.table import first_above
from specbench.exactness.steps import Drawn, draw
from specbench.exactness.streams import GivenStreams
from specbench.rules.agreement import TOLERANCE, excess, only
from specbench.rules.draft_path import DraftPath, DraftPathTables
from specbench.rules.rule import Rule, rule_of
from specbench.rules.verifier import Verifier, capabilities

_CELLS = 2**23  # probabilities held side by side
_EXPLAINED = 512  # requests that are explained at once


def held_against(verifier: Verifier) -> Rule | None:
    """The rule whose formulas say what each step of a verifier emits.

    None if its rule has no formulas here, or if it draws the drafts by itself, from distributions of its own.
    """
    rule = rule_of(verifier)
    return rule if rule.has_law and capabilities(verifier).draft_tokens is None else None


def beyond_rounding(
    rule: Rule, draft: Draft, target: LogitRows, streams: Streams, outcome: Verification, requests: Int64[Tensor, " m"]
) -> Int64[Tensor, " k"]:
    """Returns those of some requests whose outcome is not the rule's, beyond rounding.

    If rounding explains less than half of some hundreds, the code follows another rule, and all others count too.

    Args:
        outcome: of all requests of the batch.
    """
    if not len(requests):
        return requests
    parts, cells = [], target.logits.shape[1] * (draft.max_draft_tokens + 1)
    split = requests.split(max(1, min(_EXPLAINED, _CELLS // 2 // cells)))
    for i, part in enumerate(split):
        unlike = part[excess(rule, *only(part, draft, target, streams), outcome.select(part)) > TOLERANCE]
        parts.append(unlike)
        if len(part) == _EXPLAINED and 2 * len(unlike) > len(part):
            return torch.cat([*parts, *split[i + 1 :]])
    return torch.cat(parts)


def outcome(
    rule: Rule,
    path: DraftPath,
    tokens: Int64[Tensor, "B gamma"],
    accept: Float64[Tensor, "B gamma"],
    emit: Float64[Tensor, " B"],
) -> Verification:
    """Returns the accepted draft tokens of each request, then the emitted one, then PADDING.

    Args:
        path: p and q along ``tokens``.
        accept, emit: the uniforms of each request.
    """
    num_accepted = rule.num_accepted(rule.limits(path), accept)
    emitted = first_above(rule.weights_after(path, num_accepted), emit)
    stand = torch.arange(tokens.shape[1], device=tokens.device) < num_accepted[:, None]
    ids = torch.nn.functional.pad(torch.where(stand, tokens, PADDING), (0, 1), value=PADDING)
    return Verification(ids.scatter(1, num_accepted[:, None], emitted[:, None]), num_accepted)


def expected(rule: Rule, drawn: Drawn) -> Verification:
    """The outcome of a rule whose formulas are known, with drafts from the fixture's own rows. Waits for no device."""
    fixture, tokens, rows = drawn.fixture, drawn.tokens, drawn.rows
    path = DraftPathTables(fixture.p, fixture.q, rows, rows[:, :-1], tokens, drawn.counts)
    accept, emit = drawn.streams.uniform(Stream.ACCEPT)[:, : tokens.shape[1]], drawn.streams.uniform(Stream.EMIT)[:, 0]
    return outcome(rule, path, tokens, accept, emit)


def expected_of(rule: Rule, fixture: Fixture, given: Float64[Tensor, "s n width"]) -> Int64[Tensor, "n width"]:
    """The tokens that a rule emits for given uniforms, with the drafts drawn with them; ``fixture`` is of one class."""
    drawn = draw(None, fixture, GivenStreams.of(given.to(fixture.p.device)))
    return expected(rule, drawn).token_ids.cpu()
