"""Rows whose penalties, biases and bans a kernel has applied in place, before any reader."""

import dataclasses

import pytest
import torch

from specbench.core.mask import BITS, Mask
from specbench.core.types import Draft, LogitRows
from specbench.kernels import launch, launch_rows, launch_shape, launch_tally
from specbench.rules.fused import FusedVerifier
from specbench.sampling import History, logit_rows, where
from tests.helpers.kernel_cases import DEVICE, RULES, assert_agrees
from tests.helpers.shaped_cases import EVERY, case_of
from tests.helpers.surroundings import Guarded
from tests.interpreted.interpreter import watched

pytestmark = pytest.mark.usefixtures("poison", "few_programs", "in_place")
FIRST = torch.tensor([0], device=DEVICE)
READERS = {
    "probs": LogitRows.probs,
    "prob": lambda rows: rows.prob(torch.arange(len(rows), device=DEVICE)),
    "normalizer": lambda rows: rows.normalizer,
    "argmax": lambda rows: rows.argmax,
    "finite": LogitRows.finite,
    "select": lambda rows: rows.select(torch.tensor([2, 0], device=DEVICE)).probs(),
    "normaliser of select": lambda rows: torch.tensor(rows.select(FIRST).log_normalizer is None),
    "interleave": lambda rows: LogitRows.interleave([rows, rows]).probs(),
    "with_mask_applied": lambda rows: rows.with_mask_applied().logits,
    "kernel": lambda rows: torch.stack([
        part.double()
        for part in launch_rows.sample(rows, torch.linspace(0.1, 0.9, len(rows), dtype=torch.float64, device=DEVICE))
    ]),
}  # fmt: skip


@pytest.fixture
def in_place(monkeypatch):
    """Kernels on any device, which write into the logits that they are given, and into nothing else."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    if launch.INTERPRETED:
        for module in (launch, launch_rows, launch_shape, launch_tally):
            monkeypatch.setattr(module, "run", watched(module.run))


@pytest.mark.cases(2, 4)
@RULES
@EVERY
def test_a_call_penalises_once_and_verifies_in_the_next_launch(kind, block, monkeypatch):
    """Its logits are those of the plain twin, but for a mask, and its tokens those of rows that the twin has shaped."""
    case, kernels = case_of(kind), []
    for module in (launch, launch_shape):
        monkeypatch.setattr(module, "run", lambda kernel, *rest, run=module.run, **more: (
            kernels.append(kernel), run(kernel, *rest, **more)
        ))  # fmt: skip
    verifier = FusedVerifier(block=block)
    verifier._workspace = memory = Guarded()
    got = verifier.verify(*case.inputs(masks=True))
    assert kernels == [launch_shape.shape_kernel, launch.verify_kernel]
    memory.assert_counters_are_0()
    memory.surroundings.assert_untouched()
    assert torch.equal(case.left(), case.shaped_before.target_logits)
    case.restore()
    assert torch.equal(case.target_logits, case.raw_logits)
    assert_agrees("block" if block else "token", case.shaped_before.inputs(), got)


@pytest.mark.cases(1)
@RULES
def test_requests_of_a_padded_batch_are_penalised_whole(block):
    """Also those that drafted nothing, whose token is sampled without a score."""
    case, counts, tokens = case_of("penalties"), torch.tensor([0, 2, 0], device=DEVICE), []
    for step in (case, case.shaped_before):
        draft, target, streams = step.inputs()
        padded = Draft(draft.token_ids, draft.rows, counts, draft.max_draft_tokens, padded=True)
        tokens.append(FusedVerifier(block=block).verify(padded, target, streams).token_ids)
    assert torch.equal(*tokens)
    assert torch.equal(case.target_logits, case.shaped_before.target_logits)


@pytest.mark.cases(3)
@pytest.mark.parametrize("masks", [True, False])
@EVERY
def test_a_reader_finds_the_same_before_and_after_every_other(kind, masks):
    """Reading rows changes nothing: neither the rows, nor the logits, nor what the next reader finds."""
    case = case_of(kind, gamma=0)
    rows = case.target(masks)
    assert (rows.allowed is not None) == (masks and kind == "all")
    logits, readings = rows.logits.clone(), {name: read(dataclasses.replace(rows)) for name, read in READERS.items()}
    for first in READERS.values():
        for name, second in READERS.items():
            rows = dataclasses.replace(rows)
            first(rows)
            torch.testing.assert_close(second(rows), readings[name], rtol=0, atol=0, equal_nan=True, msg=name)
    assert torch.equal(rows.logits, logits)
    fields = [field.name for field in dataclasses.fields(LogitRows)]
    assert fields == ["logits", "temperature", "cutoff", "log_normalizer", "allowed"]


def test_a_mask_reaches_only_readers_that_ask_for_it():
    """Other readers find -inf in the logits themselves."""
    case = case_of("all", gamma=0)
    plain = case.target(masks=True).with_mask_applied().logits
    case.restore()
    rows = case.target()
    assert rows.allowed is None
    assert torch.equal(rows.logits, plain)
    assert torch.equal(rows.logits, case.shaped_before.target_logits)


def test_all_logits_of_rows_without_requests_are_penalised():
    case = case_of("penalties")
    parts = (getattr(case.history, name)[:0] for name in ("texts", "prompt_lengths", "text_lengths", "drafted"))
    history = History(*parts, case.history.request[:0], case.history.offset[:0])
    rows = logit_rows(case.target_logits[:0], case.target_params.select(slice(0)), history, in_place=True)
    assert rows.logits.shape == (0, 300)


def test_a_mask_is_a_set_of_tokens_for_some_rows():
    bits = torch.tensor([[0b101, 1], [-1, 0]], dtype=torch.int32)
    mask = Mask(torch.tensor([True, False]), bits, 2)
    banned = mask.banned(40)
    assert [(~row).nonzero()[:, 0].tolist() for row in banned[:2]] == [[0, 2, BITS]] * 2
    assert not banned[2:].any()
    picked = mask.select(torch.tensor([3, 1, 1]))
    assert torch.equal(picked.banned(40), banned[[3, 1, 1]])
