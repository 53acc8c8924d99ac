"""The protocol attention_latency: its cases, its floor, and above all that a wrong result is noticed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from specbench.benchmark.attention import ways
from specbench.benchmark.attention.cases import AttentionCase, AttentionSpec, make_case
from specbench.benchmark.attention.check import expected, largest_error, tolerance
from specbench.benchmark.attention.ways import WAYS, LeftOutError
from specbench.config import CONF
from specbench.errors import ConfigError
from specbench.kernels import launch, launch_attention
from specbench.models import plain_attention
from specbench.protocols import Outcome
from specbench.protocols.attention_latency import AttentionLatencyProtocol, last_result
from tests.kernel_cases import on_a_gpu
from tests.test_honest_rows import QUICK, context

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


# --- The protocol ---


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
