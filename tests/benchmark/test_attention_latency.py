"""The script that times attention: right results of every way pass its check, wrong ones have no time."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.decode_speed import attention_latency
from experiments.decode_speed.attention_cases import AttentionCase, AttentionSpec, expected, largest_error, make_case
from experiments.decode_speed.attention_latency import WAYS, LeftOutError
from specbench.kernels import launch, launch_attention

BASE = AttentionSpec(
    batch_size=3, gamma=3, context=512, shortest=0.5, heads=8, key_heads=2, head_size=32, window=None, softcap=None,
    tree=False, dtype="float32",
)  # fmt: skip
REGIMES: dict[str, dict[str, Any]] = {
    "chain": {},
    "long": {"batch_size": 1, "context": 8192, "heads": 2, "key_heads": 1},
    "window": {"window": 50},
    "softcap": {"softcap": 50.0},
    "tree": {"gamma": 10, "tree": True},
}


def made(dtype: str = "float32", **changes: Any) -> AttentionCase:
    return make_case(dataclasses.replace(BASE, dtype=dtype, **changes), 0, 0, torch.device("cpu"))


def off_by(case: AttentionCase, got: Tensor) -> float:
    """The error in units of what rounding explains."""
    return largest_error(got, expected(case)) / case.spec.tolerance


@pytest.mark.cases(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", REGIMES)
def test_every_way_and_the_kernel_are_right(name, dtype):
    case, done = made(dtype, **REGIMES[name]), []
    for way, make in WAYS.items():
        try:
            assert off_by(case, make(case)()) < 1, way
            done.append(way)
        except LeftOutError:
            continue
    assert {"ours"} <= set(done) if case.spec.softcap else {"ours", "sdpa", "sdpa_repeated"} <= set(done)
    if launch.INTERPRETED:
        got = launch_attention.attend(case.query, case.key, case.value, case.places, **case.options)
        assert off_by(case, got) < 1


def moved(case: AttentionCase, by: int) -> Tensor:
    """What comes of positions that are off."""
    return WAYS["ours"](dataclasses.replace(case, places=case.places + torch.tensor([0, by])))()


def with_spec(case: AttentionCase, **changes: Any) -> Tensor:
    return WAYS["ours"](dataclasses.replace(case, spec=dataclasses.replace(case.spec, **changes)))()


def one_wrong_head(case: AttentionCase) -> Tensor:
    got = WAYS["ours"](case)()
    got[1, 2, 3] *= 1.1
    return got


WRONG: dict[str, tuple[str, Callable[[AttentionCase], Tensor]]] = {
    "one key too few of many": ("long", lambda case: moved(case, -1)),
    "one key too many": ("chain", lambda case: moved(case, 1)),
    "a window one longer": ("window", lambda case: with_spec(case, window=51)),
    "no softcap": ("softcap", lambda case: with_spec(case, softcap=None)),
    "a chain for a tree": (
        "tree",
        lambda case: WAYS["ours"](dataclasses.replace(case, places=case.places[..., :2].contiguous()))(),
    ),
    "NaN": ("chain", lambda case: WAYS["ours"](case)().fill_(torch.nan)),
    "one head of one token": ("chain", one_wrong_head),
    "heads before tokens": ("chain", lambda case: WAYS["ours"](case)().transpose(1, 2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_noticed(name):
    regime, mistake = WRONG[name]
    case = made("bfloat16", **REGIMES[regime])
    assert off_by(case, mistake(case)) > 1


def test_what_a_replay_does_not_write_is_noticed():
    """What an earlier replay wrote there was right."""
    case = made()
    right = WAYS["ours"](case)()
    written = right.clone()
    graph = SimpleNamespace(replay=lambda: written[:-1].copy_(right[:-1]))
    assert off_by(case, attention_latency.last_result(written, graph, WAYS["ours"](case))) > 1


def test_the_script_prints_times_and_names_what_is_wrong(monkeypatch, capsys):
    """A way that turns wrong after its first call has no row, and the exit status is 1."""

    def late(case: AttentionCase) -> Callable[[], Tensor]:
        call, calls = attention_latency.sdpa(case), iter(range(100))
        return lambda: call() + (next(calls) > 1)

    given = [
        "--batches",
        "2",
        "--gammas",
        "1",
        "--contexts",
        "8",
        "--heads",
        "2",
        "--key-heads",
        "1",
        "--device",
        "cpu",
    ]
    given += ["--head-size", "8", "--rounds", "2", "--replays", "3", "--seconds", "0.001", "--dtype", "float32"]
    attention_latency.main(given)
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["way"] for row in rows] == ["ours", "sdpa", "sdpa_repeated"]
    assert all(float(row["times_ours"]) > 0 for row in rows[1:])
    monkeypatch.setitem(WAYS, "sdpa", late)
    with pytest.raises(SystemExit):
        attention_latency.main(given)
    printed = capsys.readouterr()
    assert [row["way"] for row in csv.DictReader(printed.out.splitlines())] == ["ours", "sdpa_repeated"]
    assert "sdpa, case 0: what was timed is off by" in printed.err
