"""Masks beside the logits: verifying and drawing as from rows that have -inf in them, without writing it."""

import dataclasses
import math

import pytest
import torch

from specbench.core.masked_rows import Mask, MaskedRows
from specbench.core.types import Draft, LogitRows
from specbench.kernels import launch, launch_rows, launch_shape
from specbench.sampling import RowParams, logit_rows, where
from specbench.sampling.shaped import shaped
from specbench.verifiers.fused import FusedVerifier
from tests.interpreter import watched
from tests.kernel_cases import DEVICE, GREEDY, RULES, WARM, Case, assert_agrees, step
from tests.test_shaping import EACH, on_device, params, ragged

pytestmark = pytest.mark.usefixtures("poison", "few_programs", "inside")
TILE = launch.TILE
KINDS = ("half", "few", "one tile", "all", "words end early")


@pytest.fixture
def inside(monkeypatch):
    """No launch reads or writes memory that it was not given, a mask's beyond its last row for instance."""
    if launch.INTERPRETED:
        for module in (launch, launch_rows, launch_shape):
            monkeypatch.setattr(module, "run", watched(module.run))


def bits_of(kind: str, sets: int, vocabulary: int) -> torch.Tensor:
    """Which tokens each set allows [sets, vocabulary]."""
    allowed = torch.rand((sets, vocabulary), generator=torch.Generator().manual_seed(3)) < 0.5
    if kind == "few":
        allowed &= torch.arange(vocabulary) % 701 < 2
    if kind == "one tile":
        allowed[:, :TILE] = False
        allowed[:, 2 * TILE :] = False
    return allowed if kind != "all" else torch.ones_like(allowed)


def packed(allowed: torch.Tensor) -> torch.Tensor:
    """The same as words of 32 bits."""
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32)).long().view(len(allowed), -1, 32)
    words = (padded << torch.arange(32)).sum(dim=2)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def with_mask(rows: LogitRows, kind: str, group: int, drafted: torch.Tensor) -> tuple[MaskedRows, LogitRows]:
    """Rows beside a mask, every third set of which bans nothing, and the same rows with -inf in them."""
    sets = len(rows) // group
    allowed = bits_of(kind, sets, rows.logits.shape[1])
    if kind != "one tile":  # some drafts are banned, most are not
        owner = torch.arange(len(drafted)) % sets
        allowed[owner[:-2], drafted.cpu()[:-2]] = True
    restricted = torch.arange(sets) % 3 != 2
    words = packed(allowed)
    if kind == "words end early":
        words = words[:, :40].contiguous()
        allowed[:, 40 * 32 :] = False
    banned = (restricted[:, None] & ~allowed).repeat_interleave(group, 0).to(DEVICE)
    dense = LogitRows(rows.logits.masked_fill(banned, -math.inf), rows.temperature, rows.cutoff, None)
    raw = torch.where(banned & (torch.arange(len(rows), device=DEVICE) % 2 == 0)[:, None], 40.0, rows.logits)
    raw = raw.to(rows.logits.dtype)
    mask = Mask(restricted.to(DEVICE), words.to(DEVICE), group)
    return MaskedRows(raw, rows.temperature, rows.cutoff, None, mask, launch_shape.allow), dense


@RULES
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_verifier_applies_a_mask_in_its_loads(kind, block, monkeypatch):
    """Whatever is shared out: a tile at a time, or many of which some are skipped. What is banned is likely if not."""
    case = Case([3] * 4, 3 * TILE + 70, "", [WARM, WARM, WARM, GREEDY], torch.bfloat16)
    draft, target, streams = step(case, 5)
    if kind == "one tile":  # so low that a wrong reference of a tile that is left out would drown the others
        target.logits.sub_(100.0)
    masked, dense = with_mask(target, kind, 4, draft.token_ids)
    found = []
    for programs in (10_000, 1):
        monkeypatch.setattr(launch, "PROGRAMS", programs)
        found.append(FusedVerifier(block=block).verify(draft, masked, streams))
        assert_agrees("block" if block else "token", (draft, dense, streams), found[-1])
    assert torch.equal(found[0].token_ids, found[1].token_ids)
    assert "logits" not in vars(masked), "-inf was written"


@RULES
def test_draft_rows_with_the_same_mask_keep_it_beside_them(block):
    """And one-hot drafts need none."""
    draft, target, streams = step(Case([2] * 3, TILE + 200, ""), 4)
    p, dense = with_mask(target, "half", 3, draft.token_ids)
    draft_mask = Mask(p.mask.restricted, p.mask.bits, 2)
    raw = draft.rows.logits.clone()
    q_dense = LogitRows(launch_shape.allow(raw.clone(), draft_mask), draft.rows.temperature, draft.rows.cutoff, None)
    known = q_dense.normalizer
    q = MaskedRows(raw, draft.rows.temperature, draft.rows.cutoff, known, draft_mask, launch_shape.allow)
    got = FusedVerifier(block=block).verify(dataclasses.replace(draft, rows=q), p, streams)
    assert_agrees("block" if block else "token", (dataclasses.replace(draft, rows=q_dense), dense, streams), got)
    assert "logits" not in vars(q)
    alone = FusedVerifier(block=block).verify(dataclasses.replace(draft, rows=q), dense, streams)
    assert torch.equal(alone.token_ids, got.token_ids), "a mask that the target has not is the draft's own"
    one_hot = Draft(draft.token_ids, None, draft.num_draft_tokens, 2)
    assert_agrees(
        "block" if block else "token", (one_hot, dense, streams), FusedVerifier(block=block).verify(one_hot, p, streams)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_drawn_from_what_a_mask_allows(kind, monkeypatch):
    _, target, _ = step(Case([1] * 3, 2 * TILE + 70, "", [WARM, WARM, GREEDY]), 4)
    masked, dense = with_mask(target, kind, 2, torch.zeros(3, dtype=torch.int64))
    u = torch.linspace(0.1, 0.9, len(dense), dtype=torch.float64, device=DEVICE)
    monkeypatch.setattr(launch, "PROGRAMS", 1)
    tokens, known = launch_rows.sample(masked, u)
    expected, normalizers = launch_rows.sample(dense, u)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(known, normalizers, rtol=1e-6, atol=1e-6)
    assert "logits" not in vars(masked)


def test_rows_that_are_picked_or_interleaved_keep_their_masks():
    steps, plain = [], []
    for seed in range(2):
        _, target, _ = step(Case([1] * 3, 300, ""), seed)
        masked, dense = with_mask(target, "half", 1, torch.zeros(3, dtype=torch.int64))
        steps.append(masked if not steps else MaskedRows(*parts_of(masked), steps[0].mask, launch_shape.allow))
        plain.append(dense)
    together, expected = LogitRows.interleave(steps), LogitRows.interleave(plain)
    assert together.mask.rows == 2
    picked = together.select(torch.tensor([5, 0, 0, 3], device=DEVICE))
    assert torch.equal(picked.logits, expected.logits[[5, 0, 0, 3]])
    assert torch.equal(together.logits, expected.logits)
    assert torch.equal(together.probs(), expected.probs())
    changed = dataclasses.replace(together, logits=expected.logits + 1)
    assert changed.mask is None
    assert torch.equal(changed.raw, expected.logits + 1)
    assert torch.equal(changed.select(torch.tensor([3, 1], device=DEVICE)).logits, expected.logits[[3, 1]] + 1)
    assert torch.equal(changed.normalized(expected.normalizer).logits, expected.logits + 1)


def parts_of(rows: LogitRows) -> tuple[torch.Tensor | None, ...]:
    return rows.raw, rows.temperature, rows.cutoff, rows.log_normalizer


def test_only_what_forces_no_token_stays_beside_the_logits(monkeypatch):
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    asked = [EACH["all together"], EACH["allowed"], {}]
    logits, shaping, history = ragged(torch.float32, asked, by_row=False)
    rows = RowParams.of([params(**each) for each in asked], DEVICE).repeated(history.request.to(DEVICE))
    made = logit_rows(logits.clone().to(DEVICE), rows, on_device(history), in_place=True)
    expected = shaped(logits, shaping.select(history.request), history)
    assert isinstance(made, MaskedRows) == ("thinking_token_budget" not in shaping.asked)
    assert torch.equal(made.logits.cpu(), expected)
