"""What attention is timed on, and its check: right results of every way pass, and wrong ones do not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.benchmark.attention import ways
from specbench.benchmark.attention.cases import AttentionCase, AttentionSpec, make_case
from specbench.benchmark.attention.check import expected, largest_error, tolerance
from specbench.benchmark.attention.ways import WAYS, LeftOutError
from specbench.kernels import launch, launch_attention
from specbench.models import plain_attention

CPU = torch.device("cpu")
BASE = AttentionSpec(
    batch_size=3, gamma=3, context=512, shortest=0.5, heads=8, key_heads=2, head_size=32, window=None, softcap=None,
    tree=False, dtype="float32",
)  # fmt: skip
REGIMES: dict[str, dict[str, Any]] = {
    "chain": {},
    "one token": {"gamma": 0},
    "long": {"batch_size": 1, "context": 8192, "heads": 2, "key_heads": 1},
    "window": {"window": 50},
    "softcap": {"softcap": 50.0},
    "small softcap": {"softcap": 1.0},
    "tree": {"gamma": 10, "tree": True},
}
DTYPES = ("float32", "float16", "bfloat16")


def made(dtype: str = "float32", **changes: Any) -> AttentionCase:
    return make_case(dataclasses.replace(BASE, dtype=dtype, **changes), 0, 0, CPU)


def off_by(case: AttentionCase, got: Tensor) -> float:
    """The error in units of what rounding explains."""
    return largest_error(got, expected(case)) / tolerance(case.spec)


# --- Cases ---


def test_lengths_are_from_half_to_all_and_seeded():
    spec = dataclasses.replace(BASE, batch_size=200)
    first, again, other = (make_case(spec, 0, number, CPU) for number in (0, 0, 1))
    assert int(first.lengths.max()) == 512
    assert 256 <= int(first.lengths.min()) < 270
    assert len(set(first.lengths.tolist())) > 100
    assert torch.equal(first.lengths, again.lengths)
    assert torch.equal(first.key, again.key)
    assert not torch.equal(first.lengths, other.lengths)
    assert not torch.equal(first.key, other.key)
    assert set(make_case(dataclasses.replace(spec, shortest=1.0), 0, 0, CPU).lengths.tolist()) == {512}


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({}, [100, 64, 128]),  # all of each request's, and nothing behind them
        ({"window": 10}, [10 + 3, 10 + 3, 10 + 3]),  # four new tokens, whose windows begin one after the other
        ({"window": 100}, [100, 64, 100 + 3]),
        ({"tree": True}, [100, 64, 128]),
    ],
)
def test_floor_counted_by_hand(changes, places):
    case = made(dtype="bfloat16", **changes)
    lengths = torch.tensor([100, 64, 128])
    fields = case.places.shape[3]
    shifted = case.places.clone()
    shifted[:, 0, :, :2] += (lengths - case.lengths)[:, None, None]
    mask = plain_attention.seen(shifted, 512, case.spec.window)[:, None]
    case = dataclasses.replace(case, places=shifted, lengths=lengths, mask=mask)
    assert fields == (3 if case.spec.tree else 2)
    assert case.floor_bytes == sum(places) * 2 * 2 * 32 * 2  # keys and values, 2 heads of 32 numbers of 2 bytes


def test_new_tokens_of_a_tree_see_the_path_to_themselves():
    case = made(gamma=6, tree=True, batch_size=1, context=20)
    start = int(case.lengths[0]) - 7
    rows = [[j - start for j in range(start, 20) if case.mask[0, 0, i, j]] for i in range(7)]
    assert rows == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 6]]
    assert case.mask[0, 0, :, :start].all()


# --- Right results pass ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REGIMES)
def test_every_way_is_right_in_every_regime(name, dtype):
    case, done = made(dtype, **REGIMES[name]), []
    for way, make in WAYS.items():
        try:
            assert off_by(case, make(case)()) < 1, way
            done.append(way)
        except LeftOutError:
            continue
    assert done == (["ours"] if case.spec.softcap else ["ours", "sdpa", "sdpa_repeated"])


@pytest.mark.skipif(not launch.INTERPRETED, reason="on a GPU it is what ours runs")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REGIMES)
def test_the_kernel_is_right_in_every_regime(name, dtype):
    case = made(dtype, **REGIMES[name])
    got = launch_attention.attend(case.query, case.key, case.value, case.places, **case.options)
    assert off_by(case, got) < 1


# --- Wrong ones do not ---


def by_mask(case: AttentionCase, change: Callable[[Tensor], None]) -> Tensor:
    mask = case.mask.clone()
    change(mask)
    return WAYS["sdpa"](dataclasses.replace(case, mask=mask))()


def moved(case: AttentionCase, by: int) -> Tensor:
    """What comes of positions that are off."""
    return WAYS["ours"](dataclasses.replace(case, places=case.places + torch.tensor([0, by])))()


def with_spec(case: AttentionCase, **changes: Any) -> Tensor:
    return WAYS["ours"](dataclasses.replace(case, spec=dataclasses.replace(case.spec, **changes)))()


def interleaved_otherwise(case: AttentionCase) -> Tensor:
    """Head i has the keys of head i modulo the number of key heads."""
    key, value = (each.repeat(1, 4, 1, 1) for each in (case.key, case.value))
    spec = dataclasses.replace(case.spec, key_heads=8)
    return WAYS["sdpa"](dataclasses.replace(case, spec=spec, key=key, value=value))()


def one_wrong_number(case: AttentionCase) -> Tensor:
    got = WAYS["ours"](case)()
    got[1, 2, 3, 4] = math.nan
    return got


def one_wrong_head(case: AttentionCase) -> Tensor:
    got = WAYS["ours"](case)()
    got[1, 2, 3] *= 1.1
    return got


WRONG: dict[str, tuple[dict[str, Any], Callable[[AttentionCase], Tensor]]] = {
    "one key too few": ({}, lambda case: moved(case, -1)),
    "one key too many": ({}, lambda case: moved(case, 1)),
    "one key too few of many": (REGIMES["long"], lambda case: moved(case, -1)),
    "one key too many of one token": ({"gamma": 0}, lambda case: moved(case, 1)),
    "what is left over behind a request": ({}, lambda case: by_mask(case, lambda mask: mask.fill_(True))),
    "a split passed over": (
        REGIMES["long"],
        lambda case: by_mask(case, lambda mask: mask[..., 1024:1152].fill_(False)),
    ),
    "the first key passed over": (REGIMES["long"], lambda case: by_mask(case, lambda mask: mask[..., 0].fill_(False))),
    "a window one longer": ({"window": 50}, lambda case: with_spec(case, window=51)),
    "a window one shorter": ({"window": 50}, lambda case: with_spec(case, window=49)),
    "no window": ({"window": 50}, lambda case: with_spec(case, window=None)),
    "no softcap": ({"softcap": 50.0}, lambda case: with_spec(case, softcap=None)),
    "no softcap of 1": ({"softcap": 1.0}, lambda case: with_spec(case, softcap=None)),
    "a chain for a tree": (
        REGIMES["tree"],
        lambda case: WAYS["ours"](dataclasses.replace(case, places=case.places[..., :2].contiguous()))(),
    ),
    "keys of other heads": ({}, interleaved_otherwise),
    "no scale": ({}, lambda case: WAYS["ours"](dataclasses.replace(case, query=case.query * 1.1))()),
    "NaN": ({}, one_wrong_number),
    "one head of one token": ({}, one_wrong_head),
    "heads before tokens": ({}, lambda case: WAYS["ours"](case)().transpose(1, 2)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_noticed(name, dtype):
    changes, mistake = WRONG[name]
    case = made(dtype, **changes)
    assert off_by(case, mistake(case)) > 1


# --- Ways ---


def described(query, key, value, ends, key_ends, most, most_keys, *, scale, window_size, enable_gqa):
    """torch.nn.attention.varlen.varlen_attn by its documentation: a query's last token is level with the last key."""
    assert enable_gqa
    out = []
    for b in range(len(ends) - 1):
        q, k, v = query[ends[b] : ends[b + 1]], key[key_ends[b] : key_ends[b + 1]], value[key_ends[b] : key_ends[b + 1]]
        assert len(q) <= most
        assert len(k) <= most_keys
        behind = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
        left, right = window_size
        seen = (behind <= right) & ((behind >= -left) if left >= 0 else True)
        group = query.shape[1] // key.shape[1]
        scores = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(group, 1)) * scale
        weights = scores.masked_fill(~seen, -math.inf).softmax(2)
        out.append(torch.einsum("hnm,mhd->nhd", weights, v.repeat_interleave(group, 1)))
    return torch.cat(out)


@pytest.mark.parametrize("name", ["chain", "one token", "window"])
def test_flash_attention_is_given_the_same_case(name, monkeypatch):
    """On a CPU by a stand-in that does what the documentation says; the kernel itself needs a GPU."""
    monkeypatch.setattr(ways, "_refuse_what_flash_cannot", lambda case: None)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", described)
    case = made(**REGIMES[name])
    assert off_by(case, WAYS["flash"](case)()) < 1
