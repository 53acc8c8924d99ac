"""The script that times attention: right results of every way pass its check, wrong ones have no time."""

import csv
import dataclasses
from collections.abc import Callable
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


def test_one_key_too_few_of_thousands_is_noticed():
    case = made("bfloat16", **REGIMES["long"])
    fewer = dataclasses.replace(case, places=case.places + torch.tensor([0, -1]))
    assert off_by(case, WAYS["ours"](fewer)()) > 1


def test_the_script_prints_times_and_names_what_is_wrong(monkeypatch, capsys):
    """A way that turns wrong after its first call has no row, and the exit status is 1."""

    def late(case: AttentionCase) -> Callable[[], Tensor]:
        call, calls = attention_latency.sdpa(case), iter(range(100))
        return lambda: call() + (next(calls) > 1)

    shape = "--batches 2 --gammas 1 --contexts 8 --heads 2 --key-heads 1 --head-size 8"
    arguments = f"{shape} --device cpu --rounds 2 --replays 3 --seconds 0.001 --dtype float32".split()
    attention_latency.main(arguments)
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["way"] for row in rows] == ["ours", "sdpa", "sdpa_repeated"]
    assert all(float(row["times_ours"]) > 0 for row in rows[1:])
    monkeypatch.setitem(WAYS, "sdpa", late)
    with pytest.raises(SystemExit):
        attention_latency.main(arguments)
    printed = capsys.readouterr()
    assert [row["way"] for row in csv.DictReader(printed.out.splitlines())] == ["ours", "sdpa_repeated"]
    assert "sdpa, case 0: what was timed is off by" in printed.err
