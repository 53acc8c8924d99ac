"""Masks beside the logits: verifying and drawing as from rows that have -inf in them, without writing it."""

import dataclasses
import math

import pytest
import torch

import specbench
from specbench.core.mask import Mask
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels import launch, launch_rows, launch_shape
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import RowParams, SamplingParams, logit_rows, sample, where
from specbench.sampling.shaped import shaped
from tests.helpers.kernel_cases import DEVICE, GREEDY, RULES, WARM, Case, assert_agrees, step
from tests.interpreted.interpreter import watched
from tests.sampling.test_shaping import EACH, on_device, params, ragged

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


def with_mask(rows: LogitRows, kind: str, group: int, drafted: torch.Tensor) -> tuple[LogitRows, LogitRows]:
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
    return LogitRows(raw, rows.temperature, rows.cutoff, None, mask), dense


@pytest.mark.cases(2)
@RULES
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_verifier_applies_a_mask_in_its_loads(kind, block, monkeypatch):
    """Whatever is shared out: a tile at a time, or many of which some are skipped. What is banned is likely if not."""
    case = Case([3] * 4, 3 * TILE + 70, "", [WARM, WARM, WARM, GREEDY], torch.bfloat16)
    draft, target, streams = step(case, 5)
    if kind == "one tile":  # so low that a wrong reference of a tile that is left out would drown the others
        target.logits.sub_(100.0)
    masked, dense = with_mask(target, kind, 4, draft.token_ids)
    results, raw = [], masked.logits.clone()
    for programs in (10_000, 1):
        monkeypatch.setattr(launch, "TARGET_PROGRAMS", programs)
        results.append(FusedVerifier(block=block).verify(draft, masked, streams))
        assert_agrees("block" if block else "token", (draft, dense, streams), results[-1])
    assert torch.equal(results[0].token_ids, results[1].token_ids)
    assert torch.equal(masked.logits, raw), "-inf was written"


@RULES
def test_a_mask_of_draft_rows_is_applied_to_them(block):
    """One-hot drafts need none."""
    draft, target, streams = step(Case([2] * 3, TILE + 200, ""), 4)
    p, dense = with_mask(target, "half", 3, draft.token_ids)
    draft_mask = Mask(p.allowed.restricted, p.allowed.bits, 2)
    written = draft.rows.logits.clone()
    launch_shape.allow(written, draft_mask)
    q_dense = LogitRows(written, draft.rows.temperature, draft.rows.cutoff, None)
    q = LogitRows(draft.rows.logits, draft.rows.temperature, draft.rows.cutoff, None, draft_mask)
    assert torch.equal(q.with_mask_applied().logits, written)
    verifier = FusedVerifier(block=block)
    beside, written_in, one_hot = (dataclasses.replace(draft, rows=rows) for rows in (q, q_dense, None))
    got = verifier.verify(beside, p, streams)
    assert_agrees(verifier.rule, (written_in, dense, streams), got)
    alone = verifier.verify(beside, dense, streams)
    assert torch.equal(alone.token_ids, got.token_ids), "a mask that the target does not have is the draft's own"
    assert_agrees(verifier.rule, (written_in, target, streams), verifier.verify(beside, target, streams))
    assert_agrees(verifier.rule, (one_hot, dense, streams), verifier.verify(one_hot, p, streams))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_drawn_from_what_a_mask_allows(kind, monkeypatch):
    _, target, _ = step(Case([1] * 3, 2 * TILE + 70, "", [WARM, WARM, GREEDY]), 4)
    masked, dense = with_mask(target, kind, 2, torch.zeros(3, dtype=torch.int64))
    u = torch.linspace(0.1, 0.9, len(dense), dtype=torch.float64, device=DEVICE)
    monkeypatch.setattr(launch, "TARGET_PROGRAMS", 1)
    raw = masked.logits.clone()
    tokens, masked_normalizers = launch_rows.sample(masked, u)
    expected, normalizers = launch_rows.sample(dense, u)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(masked_normalizers, normalizers, rtol=1e-6, atol=1e-6)
    assert torch.equal(masked.logits, raw), "-inf was written"


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_of_rows_applies_their_mask(kind):
    """As if -inf stood in the logits; tokens that a mask bans would be the likeliest of their rows."""
    _, target, _ = step(Case([2, 0, 2], 3 * TILE, "", [WARM, GREEDY, WARM]), 4)
    masked, dense = with_mask(target, kind, 1, torch.zeros(7, dtype=torch.int64))
    tokens = torch.arange(len(dense), device=DEVICE)
    assert torch.equal(masked.probs(), dense.probs())
    assert torch.equal(masked.prob(tokens), dense.prob(tokens))
    assert torch.equal(masked.prob(dense.argmax), dense.prob(dense.argmax))
    assert torch.equal(masked.argmax, dense.argmax)
    assert torch.equal(masked.normalizer, dense.normalizer)
    assert torch.equal(masked.finite(), dense.finite())
    picked = torch.tensor([4, 0, 0, 3], device=DEVICE)
    assert torch.equal(masked.select(picked).probs(), dense.select(picked).probs())
    together = [LogitRows.interleave([rows, rows]) for rows in (masked, dense)]
    assert torch.equal(together[0].probs(), together[1].probs())
    u = torch.full((len(dense),), 0.5, dtype=torch.float64, device=DEVICE)
    assert torch.equal(sample(masked, u), sample(dense, u))


@pytest.mark.parametrize("read", ["probs", "prob", "sample"])
def test_probabilities_and_draws_apply_a_mask_once(read, monkeypatch):
    """To the greedy rows too; a mask costs as much as its logits to apply."""
    _, target, _ = step(Case([2, 0, 2], TILE, "", [WARM, GREEDY, WARM]), 4)
    masked, _ = with_mask(target, "half", 1, torch.zeros(7, dtype=torch.int64))
    applied, banned = [], Mask.banned
    monkeypatch.setattr(Mask, "banned", lambda *arguments: applied.append(1) or banned(*arguments))
    monkeypatch.setattr(where, "by_kernels", lambda _: False)
    tokens = torch.arange(len(masked), device=DEVICE)
    reads = {
        "probs": masked.probs,
        "prob": lambda: masked.prob(tokens),
        "sample": lambda: sample(masked, torch.full((len(masked),), 0.5, dtype=torch.float64, device=DEVICE)),
    }
    reads[read]()
    assert len(applied) == 1


@RULES
def test_plain_verifiers_of_masked_rows_emit_what_those_of_banned_logits_do(block):
    draft, target, streams = step(Case([3] * 4, 3 * TILE + 70, "", [WARM, WARM, WARM, GREEDY]), 5)
    masked, dense = with_mask(target, "half", 4, draft.token_ids)
    verifier = BlockVerifier() if block else MaskedVerifier()
    got, expected = (verifier.verify(draft, rows, streams) for rows in (masked, dense))
    assert torch.equal(got.token_ids, expected.token_ids)


def test_a_mask_stays_beside_the_logits_if_nothing_forces_a_token(monkeypatch):
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    for settings in (
        [EACH["all together"], EACH["allowed"], {}],
        [{**EACH["all together"], "thinking_token_budget": None}, EACH["allowed"], {}],
    ):
        logits, shaping, history = ragged(torch.float32, settings, by_row=False)
        rows = RowParams.of([params(**setting) for setting in settings], DEVICE).repeated(history.request.to(DEVICE))
        made = logit_rows(logits.clone().to(DEVICE), rows, on_device(history), in_place=True, masks=True)
        expected = shaped(logits, shaping.select(history.request), history)
        assert (made.allowed is None) == ("thinking_token_budget" in shaping.kinds)
        assert torch.equal(made.with_mask_applied().logits.cpu(), expected)


class Reader:
    """A verifier of the user's, which reads the target's logits and knows nothing of masks."""

    rule, lossless = "own", True

    def __init__(self, takes_masks: bool | None):
        self.seen: list[LogitRows] = []
        if takes_masks is not None:
            self.takes_masks = takes_masks

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        self.seen.append(target)
        return MaskedVerifier().verify(draft, target, streams)


@pytest.mark.skipif(not launch.INTERPRETED, reason="the pair is on the CPU")
@pytest.mark.parametrize("takes_masks", [None, False, True])
def test_a_step_gives_a_mask_only_to_verifiers_that_take_masks(takes_masks, pair, monkeypatch):
    """A verifier that says nothing finds -inf in the logits of banned tokens."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    allowed, verifier = (3, 5, 8, 200), Reader(takes_masks)
    sampling = SamplingParams(allowed_token_ids=allowed)
    (text,) = specbench.decode(pair, ["Once"], verifier=verifier, sampling=sampling, gamma=2, max_new_tokens=6)
    assert set(text.token_ids) <= set(allowed)
    for rows in verifier.seen:
        banned = torch.ones_like(rows.logits, dtype=torch.bool)
        banned[:, list(allowed)] = False
        assert (rows.allowed is None) == (not takes_masks)
        assert torch.equal(rows.logits == -math.inf, banned) == (not takes_masks)
        assert not rows.probs()[banned].any()
