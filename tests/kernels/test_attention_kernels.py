"""The attention kernels against their plain twin, through the interpreter without a GPU and compiled with one.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from specbench.core import trees
from specbench.core.errors import ArgumentError
from specbench.kernels import attention_tiles, launch, launch_attention
from specbench.kernels.attention_tiles import split_of
from specbench.kernels.launch_attention import attend
from specbench.models import plain_attention
from specbench.models.plain_attention import places
from tests.helpers.kernel_cases import DEVICE, on_a_gpu
from tests.interpreted.interpreter import watched

pytestmark = pytest.mark.usefixtures("poison")


@pytest.fixture(autouse=True)
def _large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreted tile costs milliseconds, however large."""
    if launch.INTERPRETED:
        monkeypatch.setattr(attention_tiles, "ROWS_OF_FLOAT32", 64)
        monkeypatch.setattr(attention_tiles, "TILE_BYTES", 2**15)


@dataclass(frozen=True)
class Case:
    """A regime and why it is one. Lengths are what was cached before the n new tokens."""

    lengths: list[int]
    n: int
    reason: str
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    value_dim: int = 32
    dtype: torch.dtype = torch.float32
    parents: list[int] | None = None  # of a tree's nodes; -1 for a root
    options: dict[str, Any] = field(default_factory=dict)
    sinks: bool = False
    beyond: int = 0  # visible places beyond the longest request, and as many again that are not visible


BRANCHES = [-1, 0, 0, 1, 1, -1, 5]
CASES = {
    "nothing cached": Case([0], 1, "a request that sees itself alone"),
    "ragged": Case([40, 0, 126, 127], 3, "new tokens that end before, at and behind the edge of a tile"),
    "splits": Case([300, 5, 128], 3, "parts to add up, empty ones for short requests", options={"split": 128}),
    "last key alone": Case([255], 2, "a last split of one key, which not all rows see", options={"split": 128}),
    "splits of several tiles": Case([520, 300], 2, "tiles with and without a mask", options={"split": 256}),
    "seventeen splits": Case([2100], 1, "more parts than are added up at a time", options={"split": 128}),
    "not all visible": Case([70, 131], 2, "a capacity that no tile divides, and places nobody wrote", beyond=37),
    "one head a group": Case([90, 17], 2, "no groups: rows are queries", heads=2),
    "eight heads a group": Case([90, 17], 5, "40 rows in lanes for 64, heads of a group in one product", 8, 1),
    "several tiles of rows": Case([60, 3], 45, "90 rows: new tokens see each other across tiles"),
    "wide": Case([70], 2, "the largest head", dim=256, value_dim=256),
    "odd": Case([70, 9], 2, "heads that fill no power of two, values of another width", dim=80, value_dim=48),
    "narrow": Case([70], 2, "heads narrower than the least that a product takes", dim=8, value_dim=8),
    "one row": Case([300, 9], 1, "no matrix product", 3, 3, dim=80, value_dim=48, options={"split": 128}, sinks=True),
    "two rows and a window": Case([300, 20], 1, "no matrix product", options={"window": 9, "split": 128}),
    "two rows of a tree": Case([140, 0], 2, "no matrix product", heads=2, parents=[-1, -1]),
    "bf16": Case([300, 44], 5, "the dtype of GPUs", dtype=torch.bfloat16, options={"split": 128}),
    "fp16": Case([300, 44], 5, "the third dtype", dtype=torch.float16, options={"split": 128}),
    "fp16, unsplit": Case([90, 33], 2, "small tiles of many programs", dtype=torch.float16, options={"split": 1024}),
    "window": Case([300, 20, 5], 3, "keys that are not seen, and are not read", options={"window": 9, "split": 128}),
    "window of one": Case([130, 5], 2, "each sees itself alone", options={"window": 1}),
    "window of all": Case([130, 5], 2, "longer than any request", options={"window": 1000, "split": 128}),
    "window, tiles of rows": Case([200], 45, "each tile of rows its own first key", options={"window": 20}),
    "window, edge of tiles": Case([378], 10, "rows see nothing of a first tile", options={"window": 4, "split": 512}),
    "softcap": Case([140, 7], 3, "scores far beyond the cap", options={"softcap": 0.5}),
    "sinks": Case([140, 7], 3, "sinks of each head", sinks=True),
    "sinks and splits": Case([300, 7], 3, "a sink counts once, not in each part", sinks=True, options={"split": 128}),
    "tree": Case([140, 0], 7, "new tokens see their ancestors, not each other", parents=BRANCHES),
    "tree, splits": Case([125, 300], 7, "its nodes in two splits", parents=BRANCHES, options={"split": 128}),
    "tree and window": Case([140, 2], 7, "windows count by depth", parents=BRANCHES, options={"window": 7}),
    "largest tree": Case([70], 64, "the highest bit is a sign", parents=[-1, *range(63)]),
    "all at once": Case([290, 3], 3, "one launch", sinks=True, options={"window": 150, "softcap": 2.0, "split": 128}),
}  # fmt: skip


def made(case: Case, seed: int = 0) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Query, key, value and places as the engine hands them over, and the options."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype).to(DEVICE)

    batch, visible = len(case.lengths), max(case.lengths) + case.n + case.beyond
    lengths = torch.tensor(case.lengths, device=DEVICE)
    depths, ancestors = torch.arange(case.n, device=DEVICE), None
    if case.parents is not None:
        one = trees.ancestors(torch.tensor([case.parents], device=DEVICE), case.n)[0]
        depths, ancestors = one.sum(dim=1) - 1, one.expand(batch, -1, -1)
    query = randn(batch, case.n, case.heads, case.dim).transpose(1, 2)
    key = randn(batch, case.kv_heads, visible + case.beyond, case.dim)[:, :, :visible]
    value = randn(batch, case.kv_heads, visible + case.beyond, case.value_dim)[:, :, :visible]
    options = {"scale": case.dim**-0.5, "sinks": 2 * randn(case.heads) if case.sinks else None, **case.options}
    return (query, key, value, places(lengths, lengths[:, None] + depths, ancestors)), options


# Relative to values of size 1: sums in another order in float32; weights and outputs rounded to 16 bits.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.mark.cases(14)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_agrees_with_its_twin(case):
    (query, key, value, at), options = made(case)
    got = attend(query, key, value, at, **options)
    options.pop("split", None)
    expected = plain_attention.attend(query.double(), key.double(), value.double(), at, **options)
    assert got.dtype == case.dtype
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE[case.dtype])


def test_the_kernels_ran(monkeypatch):
    """A program for each request, key head and split, one sum for each query and head, and no twin in their place."""
    launches = []

    class Spy:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            launches.append(grid)
            return self.kernel[grid]

    for name in ("split_kernel", "combine_kernel"):
        monkeypatch.setattr(launch_attention, name, Spy(getattr(launch_attention, name)))
    arguments, options = made(CASES["splits"])
    attend(*arguments, **options)
    assert launches == [(3 * 2 * 3,), (3 * 3 * 4,)]
    launches.clear()
    arguments, options = made(CASES["ragged"])
    attend(*arguments, **options | {"split": 1024})
    assert launches == [(4 * 2,)]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["splits", "window", "bf16", "tree, splits"])
def test_a_request_is_the_same_in_any_batch(name):
    """To the last bit, for one split: alone or beside others, in any place, with more or fewer places visible."""
    (query, key, value, at), options = made(CASES[name])
    together = attend(query, key, value, at, **options)
    turned = attend(*(tensor.flip(0).contiguous() for tensor in (query, key, value, at)), **options)
    assert torch.equal(turned.flip(0), together)
    for b, length in enumerate(CASES[name].lengths):
        visible = length + CASES[name].n
        one = (query[b : b + 1], key[b : b + 1, :, :visible], value[b : b + 1, :, :visible], at[b : b + 1])
        if visible > options["split"]:  # a single part is rounded once less
            assert torch.equal(attend(*one, **options)[0], together[b])


def test_what_lies_behind_a_request_is_not_read():
    """Rejected tokens may have left NaN there, and NaN times 0 is NaN."""
    (query, key, value, at), options = made(CASES["splits"])
    expected = attend(query, key, value, at, **options)
    for b, length in enumerate(CASES["splits"].lengths):
        key[b, :, length + 3 :], value[b, :, length + 3 :] = torch.nan, torch.nan
    assert torch.equal(attend(query, key, value, at, **options), expected)


def test_what_lies_before_a_window_does_not_matter():
    (query, key, value, at), options = made(CASES["window"])
    expected = attend(query, key, value, at, **options)
    key[0, :, :256], value[0, :, :256] = 7.0, torch.nan  # the window begins at 292, and a tile may begin before it
    assert torch.equal(attend(query, key, value, at, **options)[0], expected[0])


@pytest.mark.skipif(not launch.INTERPRETED, reason="memory is watched by the interpreter")
@pytest.mark.parametrize("name", ["splits", "window", "tree"])
def test_places_out_of_range_read_nothing_else(name, monkeypatch):
    """Whatever lengths and positions are, no program leaves the tensors."""
    (query, key, value, at), options = made(CASES[name])
    at[0, :, :, :2], at[1, :, :, :2] = 2**31 - 5, -(2**31)
    monkeypatch.setattr(launch_attention, "run", watched(launch_attention.run))
    attend(query.contiguous(), key.contiguous(), value.contiguous(), at, **options)


@pytest.mark.parametrize(
    ("pairs", "visible"),
    [(1, 1), (8, 131_072), (512, 8261), (64, 1093), (5000, 300), (264, 1024), (263, 1024), (264, 1025)],
)
def test_splits_fill_a_gpu_and_no_more(pairs, visible):
    split = split_of(pairs, visible)
    most = attention_tiles.AT_ONCE if visible <= attention_tiles.SHORT_CONTEXT else attention_tiles.PROGRAMS
    assert pairs * (visible // split) <= most or split >= visible
    assert split >= visible or split <= 128 or pairs * (visible // (split // 2)) > most


@pytest.mark.parametrize(
    ("pairs", "visible", "split"),
    [(8, 256, 64), (8, 1024, 64), (8, 2048, 128), (64, 256, 1024), (63, 256, 64), (64, 1024, 256), (128, 1024, 1024)],
)
def test_splits_that_were_fastest_on_a_gpu(pairs, visible, split):
    """experiments/decode_speed/attention_few_keys.csv."""
    assert split_of(pairs, visible) == split


@pytest.mark.usefixtures("unchecked")
def test_the_operator_is_traced_as_one():
    """torch.compile takes it whole, and knows its output by shape, dtype and strides."""
    arguments, options = made(CASES["splits"])

    def twice(*tensors: torch.Tensor) -> torch.Tensor:
        return 2 * attend(*tensors, **options)

    compiled = torch.compile(twice, backend="aot_eager", dynamic=False, fullgraph=True)
    assert torch.equal(compiled(*arguments), twice(*arguments))
    query, key, value, at = arguments
    operator_arguments = (query, key, value, at, None, options["scale"], 0, 0.0, options["split"])
    torch.library.opcheck(
        torch.ops.specbench.attention.default, operator_arguments, test_utils=("test_schema", "test_faketensor")
    )


@on_a_gpu
def test_a_graph_replays_with_other_lengths():
    arguments, options = made(CASES["splits"])
    others, _ = made(CASES["splits"], seed=1)
    others[3].copy_(made(Case([17, 299, 30], 3, ""))[0][3])
    expected = attend(*others, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(*arguments, **options)
    for mine, new in zip(arguments, others, strict=True):
        mine.copy_(new)
    graph.replay()
    assert torch.equal(out, expected)


def test_arguments_that_the_kernel_cannot_take():
    (query, key, value, at), options = made(CASES["splits"])
    tree = made(CASES["tree"])[0]

    def refused(match: str, *tensors: torch.Tensor, **changes: object) -> None:
        with pytest.raises(ArgumentError, match=match):
            attend(*tensors, **{**options, **changes})

    refused(r"query: torch.float64", query.double(), key.double(), value.double(), at)
    refused(r"key: torch.float16", query, key.half(), value, at)
    refused(r"value: 32 numbers a head at stride 2", query, key, value.repeat_interleave(2, 3)[..., ::2], at)
    wide = [torch.zeros((*tensor.shape[:3], 257), device=DEVICE) for tensor in (query, key)]
    refused(r"query: 257 numbers a head .* at most 256", *wide, value, at)
    refused(r"query: 3 heads; a multiple of the 2", query[:, :3], key, value, at)
    refused(r"places: shape \(3, 1, 3, 2\)", query, key, value, at.transpose(0, 2).contiguous().transpose(0, 2))
    refused(r"places: shape \(3, 1, 3, 1\)", query, key, value, at[..., :1].contiguous())
    of_65 = torch.zeros((3, 1, 65, 3), dtype=torch.int64, device=DEVICE)
    refused(r"places: a tree of 65 tokens; at most 64", query.repeat(1, 1, 22, 1)[:, :, :65], key, value, of_65)
    refused(r"window: 0; at least 1", query, key, value, at, window=0)
    refused(r"window=6: .* a tree of 7 tokens, .* Lower drafter\.branches or gamma", *tree, window=6)
    refused(r"sinks: ", query, key, value, at, sinks=torch.zeros(8, device=DEVICE)[::2])
    refused(r"split: 192; a power of two", query, key, value, at, split=192)
