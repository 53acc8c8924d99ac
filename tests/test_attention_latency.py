"""The protocol attention_latency: a way that is wrong has no time, and what is left out is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from specbench.benchmark.attention import ways
from specbench.benchmark.attention.cases import AttentionCase
from specbench.benchmark.attention.ways import WAYS
from specbench.config import CONF
from specbench.errors import ConfigError
from specbench.kernels import launch, launch_attention
from specbench.models import plain_attention
from specbench.protocols import Outcome
from specbench.protocols.attention_latency import AttentionLatencyProtocol, last_result
from tests.kernel_cases import on_a_gpu
from tests.test_attention_cases import made, off_by
from tests.test_honest_rows import QUICK, context


def protocol(**given: Any) -> AttentionLatencyProtocol:
    """Of the yaml, with what makes it quick."""
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "protocol" / "attention_latency.yaml"))
    settings.pop("_target_")
    return AttentionLatencyProtocol(**{**settings, **QUICK["attention_latency"], **given})


def run(**given: Any) -> Outcome:
    return protocol(**{"ways": ["ours", "sdpa"], **given}).run(context(None, needs_models=False))


def rows_of(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {row["way"]: row for row in outcome.tables["attention.parquet"].rows}


def planted(monkeypatch: pytest.MonkeyPatch, way: str, spoil: Callable[[Tensor, int], Tensor]) -> None:
    """A way whose results are spoiled; ``spoil`` is told the number of the call, from 1."""
    right = WAYS[way]

    def made(case: AttentionCase) -> Callable[[], Tensor]:
        call, calls = right(case), iter(range(1, 1000))
        return lambda: spoil(call(), next(calls))

    monkeypatch.setitem(WAYS, way, made)


def test_a_wrong_way_has_no_time_and_fails_the_run(monkeypatch, capsys):
    planted(monkeypatch, "sdpa", lambda got, _: got.roll(1, dims=1))
    outcome = run()
    rows = rows_of(outcome)
    assert rows["sdpa"]["median_us"] is None
    assert "the first call is off by" in rows["sdpa"]["wrong"]
    assert rows["sdpa"]["error"] > rows["sdpa"]["tolerance"]
    assert rows["ours"]["median_us"] > 0
    assert rows["ours"]["wrong"] is None
    assert outcome.failure == "1 ways gave wrong results, and have no times"
    assert ", 1 wrong; " in outcome.headline
    assert "sdpa is wrong in case 0" in capsys.readouterr().err
    assert {each.way for each in outcome.tables["attention_samples.parquet"].rows} == {"ours"}


def test_a_way_that_turns_wrong_while_it_is_timed_has_no_time(monkeypatch):
    planted(monkeypatch, "sdpa", lambda got, number: got if number < 3 else got + 1)
    rows = rows_of(run())
    assert rows["sdpa"]["median_us"] is None
    assert "what was timed is off by" in rows["sdpa"]["wrong"]


@dataclass
class PartialReplay:
    """Stands for a graph whose replays leave something out."""

    written: Tensor
    right: Tensor
    all_of_it: bool = False

    def replay(self) -> None:
        """Writes all but the last request."""
        b = len(self.right) if self.all_of_it else len(self.right) - 1
        self.written[:b] = self.right[:b]


@pytest.mark.parametrize("all_of_it", [True, False])
def test_what_a_replay_does_not_write_is_noticed(all_of_it):
    """Not seen otherwise: what an earlier replay wrote there was right."""
    case = made()
    right = WAYS["ours"](case)()
    written = right.clone()
    again = last_result(written, PartialReplay(written, right, all_of_it), WAYS["ours"](case))
    assert (off_by(case, again) < 1) == all_of_it


def test_a_way_that_is_wrong_in_a_later_round_loses_its_times(monkeypatch):
    rounds = []

    def late(case: AttentionCase) -> Callable[[], Tensor]:
        rounds.append(case)
        return lambda: ways.sdpa(case)() * len(rounds)

    monkeypatch.setitem(WAYS, "sdpa", late)
    outcome = run(rounds=2, budget=60.0)
    assert len(rounds) == 2
    assert rows_of(outcome)["sdpa"]["median_us"] is None
    assert {each.way for each in outcome.tables["attention_samples.parquet"].rows} == {"ours"}


def test_ours_wrong_leaves_the_others_their_times_and_no_ratio_to_it(monkeypatch):
    planted(monkeypatch, "ours", lambda got, _: 2 * got)
    rows = rows_of(run())
    assert rows["ours"]["median_us"] is None
    assert rows["sdpa"]["median_us"] > 0
    assert rows["sdpa"]["times_ours"] is None


def test_what_pytorch_refuses_is_left_out_by_name_and_a_fault_of_ours_is_not(monkeypatch, capsys):
    def broken(case: AttentionCase) -> Callable[[], Tensor]:
        raise RuntimeError("no kernel for it\nand more")

    monkeypatch.setitem(WAYS, "sdpa", broken)
    assert rows_of(run())["sdpa"]["skipped"] == "PyTorch refuses: no kernel for it"
    assert "left out: sdpa, in 1 of 1 cases: PyTorch refuses: no kernel for it" in capsys.readouterr().err
    monkeypatch.setitem(WAYS, "ours", broken)
    with pytest.raises(RuntimeError, match="no kernel"):
        run()


@pytest.mark.skipif(not launch.INTERPRETED, reason="on a GPU ours is the kernel anyway")
def test_the_row_says_which_code_ours_ran(monkeypatch):
    assert rows_of(run())["ours"]["code"] == "plain"
    monkeypatch.setattr(plain_attention, "chosen", lambda *_: launch_attention.attend)
    rows = rows_of(run(ways=["ours", "plain", "flash"]))
    assert rows["ours"]["code"] == "kernel"
    assert rows["plain"]["median_us"] > 0
    assert rows["plain"]["times_ours"] > 0
    assert rows["plain"]["code"] is None
    assert rows["flash"]["skipped"] == "PyTorch has it on GPUs alone"


@on_a_gpu
@pytest.mark.parametrize("changes", [{}, {"window": 50}, {"softcap": 30.0}, {"tree": True}])
def test_on_a_gpu_every_way_is_timed_by_graphs_or_left_out_by_name(changes):
    noting = dataclasses.replace(
        context(None, needs_models=False), device=torch.device("cuda", 0), dtype=torch.bfloat16
    )
    sizes = {"contexts": [512], "gammas": [4], "heads": 8, "key_heads": 2, "head_size": 64}
    rows = rows_of(protocol(**sizes, **changes).run(noting))
    assert all(row["wrong"] is None for row in rows.values())
    assert rows["ours"]["code"] == "kernel"
    assert rows["ours"]["graph"]
    assert rows["plain"]["times_ours"] > 0
    left_out = {way for way, row in rows.items() if row["skipped"] is not None}
    assert left_out <= {"flash"} if not changes.get("softcap") else left_out == {"sdpa", "sdpa_repeated", "flash"}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"heads": 3, "key_heads": 2},
            r"protocol\.heads=3: heads cannot share .* Use a multiple of protocol\.key_heads=2",
        ),
        ({"head_size": 0}, r"protocol\.head_size=0: not a count"),
        ({"batches": [0]}, r"protocol\.batches=0: not a count"),
        ({"batches": []}, r"protocol\.batches=\[\]: not a list of counts"),
        ({"gammas": [-1]}, r"protocol\.gammas=\[-1\]: \[-1\] are no draft lengths"),
        ({"gammas": [64], "tree": True}, r"protocol\.gammas=64: too large for a tree\. Use 63 or less"),
        ({"tree": 1}, r"protocol\.tree=1: neither true nor false"),
        ({"window": 0}, r"protocol\.window=0: not a count\. Use a whole number from 1"),
        ({"window": 1, "tree": True}, r"protocol\.window=1: not a count\. Use a whole number from 2"),
        ({"softcap": 0}, r"protocol\.softcap=0: no bound\. Use a number above 0"),
        ({"shortest": 0}, r"protocol\.shortest=0: not in"),
        ({"contexts": [8], "gammas": [4]}, r"protocol\.contexts=8: the shortest request has no room .* Use 10 or more"),
        ({"ways": "ours"}, r"protocol\.ways=ours: not a list"),
        ({"ways": ["ours", "ours"]}, "empty or repeated"),
        ({"ways": ["fast"]}, r"\['fast'\] are no ways\. Use some of ours, plain, sdpa"),
        ({"rounds": 0}, r"protocol\.rounds=0: not a count"),
        ({"seconds": -1.0}, r"protocol\.seconds=-1\.0: no time in seconds\. Use a number from 0"),
        ({"budget": "long"}, r"protocol\.budget=long: no time in seconds"),
        ({"cpu_numbers": 1.5}, r"protocol\.cpu_numbers=1\.5: not a count"),
        ({"replays": 2}, r"protocol\.replays=2: not a count\. Use a whole number from 3"),
    ],
)
def test_bad_settings_are_named(given, says):
    with pytest.raises(ConfigError, match=says):
        protocol(**given)


def test_nothing_to_time_is_an_error_that_says_why():
    with pytest.raises(ConfigError, match=r"nothing could be timed\. The first: more than protocol\.cpu_numbers=1 "):
        run(cpu_numbers=1)
