"""Batches for the verification kernel, each a regime and why it is one, and its comparison with the PyTorch twin."""

from dataclasses import dataclass, field, fields
from typing import TypeVar

import pytest
import torch

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels import launch, launch_rows
from specbench.rules.agreement import classify
from specbench.rules.fused import FusedVerifier
from specbench.rules.rule import get_rule
from specbench.sampling import RowParams, SamplingParams, draw, logit_rows
from tests.helpers.cases import MIXED

T = TypeVar("T")
DEVICE = torch.device("cpu" if launch.INTERPRETED else "cuda")
GREEDY, PLAIN, WARM = SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(temperature=0.8)
APART = [WARM, PLAIN, GREEDY, SamplingParams(temperature=2.0)]
RULES = pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
on_a_gpu = pytest.mark.skipif(launch.INTERPRETED, reason="CUDA graphs and compilation need a GPU")


@dataclass(frozen=True)
class Case:
    """A regime and why it is one."""

    counts: list[int]
    vocabulary: int
    reason: str
    params: list[SamplingParams] = field(default_factory=lambda: [WARM])
    dtype: torch.dtype = torch.float32
    one_hot: bool = False
    padding: int = 0  # columns between the rows of a wider matrix
    slack: int = 0  # by how much max_draft_tokens exceeds every draft
    by_row: bool = False  # params one after another to rows, p's other than q's; else to requests


CASES = {
    "tiny": Case([3, 1, 2], 7, "a vocabulary smaller than a group of tokens"),
    "ragged": Case([0, 4, 1, 0, 3], 300, "drafts of different lengths, empty ones first and among them: row offsets"),
    "nothing drafted": Case([0, 0], 300, "no scoring programs at all"),
    "one request": Case([5], 300, "gamma 5 in lanes for 8"),
    "long": Case([17, 3], 300, "gamma beyond the lanes that small ones share, and in lanes for 32"),
    "lanes filled": Case([8, 8], 300, "gamma equal to the lanes: the bonus column has none of its own"),
    "two tiles": Case([2, 2], 2048 + 5, "a last tile of five tokens"),
    "whole tiles": Case([2, 2], 4096, "no last tile with a mask"),
    "odd": Case([2, 1], 4099, "rows that start at odd addresses"),
    "greedy": Case([3, 0, 2], 2100, "argmaxes across tiles, bonus and recovered", [GREEDY]),
    "mixed": Case([3, 2, 4, 1, 2], 2100, "greedy, random and truncated requests in one launch", MIXED),
    "greedy and random": Case([2, 2, 2, 2], 2100, "greedy requests where normalisers are not known", [GREEDY, WARM]),
    "one-hot": Case([3, 0, 2], 2100, "drafts without probabilities", one_hot=True),
    "one-hot mixed": Case([3, 2, 1, 2, 2], 2100, "the same, greedy and truncated", MIXED, one_hot=True),
    "bf16": Case([3, 2], 2100, "ties are common", [WARM, GREEDY], torch.bfloat16),
    "fp16": Case([3, 2], 2100, "the third dtype", [WARM, GREEDY], torch.float16),
    "wide stride": Case([2, 0, 1], 1000, "rows of a padded matrix", dtype=torch.bfloat16, padding=24),
    "cold": Case([3, 3], 2100, "temperature 0.01: sums of one term, weights that underflow", [SamplingParams(0.01)]),
    "hot": Case([3, 3], 2100, "temperature 50: every token weighs the same", [SamplingParams(50.0)]),
    "rows apart": Case([3, 1, 4], 2100, "each row its own parameters, truncated ones among them", MIXED, by_row=True),
    "rows apart, not known": Case([3, 1, 4], 2100, "the same where normalisers are not known", APART, by_row=True),
    "rows apart, one-hot": Case([3, 1, 4], 2100, "the same without q", MIXED, one_hot=True, by_row=True),
    "bound not reached": Case([2, 0, 1], 300, "no request drafts as many as the host allows for", slack=4),
    "49,152": Case([1], 49_152, "SmolLM2", dtype=torch.bfloat16),
    "128,256": Case([1], 128_256, "Llama 3: not a power of two tiles", dtype=torch.bfloat16),
    "151,936": Case([1], 151_936, "Qwen 3: 75 tiles in lanes for 128", dtype=torch.bfloat16),
    "262,144": Case([1], 262_144, "Gemma 3: the largest vocabulary in use", dtype=torch.bfloat16),
}


def random_logits(n: int, case: Case, generator: torch.Generator) -> torch.Tensor:
    wide = 2.5 * torch.randn((n, case.vocabulary + case.padding), generator=generator)
    return wide.to(case.dtype).to(DEVICE)[:, : case.vocabulary]


def step(case: Case, seed: int, closeness: float = 0.7) -> tuple[Draft, LogitRows, Streams]:
    """A batch as a decoder hands it over: the draft's normalisers known, the target's only where tokens are cut off."""
    generator = torch.Generator().manual_seed(seed)
    batch, n, width = len(case.counts), sum(case.counts), max(case.counts) + case.slack
    params = RowParams.of(case.params, DEVICE)
    counts = torch.tensor(case.counts, device=DEVICE)
    requests = torch.arange(batch, device=DEVICE)
    # Seeds of more than 32 bits, and a position for each request.
    streams = Streams((requests + 1000 * seed) * (2**40 + 1), 17 + 3 * requests, width + 1)
    owner = requests.repeat_interleave(counts)
    offset = torch.cat([torch.arange(count) for count in case.counts]).to(DEVICE)
    q_logits, p_logits = random_logits(n, case, generator), random_logits(n + batch, case, generator)
    noise = torch.randn((n, case.vocabulary), generator=generator).to(DEVICE)
    p_logits[torch.arange(n, device=DEVICE) + owner] = (q_logits + closeness * noise).to(case.dtype)
    uniforms = streams.uniform(Stream.DRAFT)[owner, offset]
    of_q, of_p = owner, requests.repeat_interleave(counts + 1)
    if case.by_row:
        of_q, of_p = (torch.arange(start, start + m, device=DEVICE) for start, m in ((0, n), (2, n + batch)))
    token_ids, q = draw(logit_rows(q_logits, params.select(of_q % len(case.params))), uniforms)
    target = logit_rows(p_logits, params.select(of_p % len(case.params)))
    return Draft(token_ids, None if case.one_hot else q, counts, width), target, streams


def assert_agrees(rule: str, arguments: tuple[Draft, LogitRows, Streams], got: Verification) -> None:
    expected = get_rule(rule).reference.verify(*arguments)
    differences = classify(rule, *arguments, expected, got)
    assert len(differences.requests) == 0, f"requests {differences.requests.tolist()}, excess {differences.excess}"
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.num_accepted, expected.num_accepted)


def fused_agrees(block: bool, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
    """The fused verifier's result, which its twin gives too."""
    verifier = FusedVerifier(block=block)
    got = verifier.verify(draft, target, streams)
    assert_agrees(verifier.rule, (draft, target, streams), got)
    return got


def unnormalised(rows: LogitRows, logits: torch.Tensor | None = None) -> LogitRows:
    """Rows whose normalisers are not known, with other logits if given."""
    return LogitRows(rows.logits if logits is None else logits, rows.temperature, rows.cutoff, None)


def cutoffs(logits: torch.Tensor, params: RowParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's cutoffs and normalisers."""
    return launch_rows.find_cutoffs(logits, params.temperature, params.top_k, params.top_p, params.min_p)


def changed(instance: T, **others: object) -> T:
    """A copy of a dataclass with other fields, made past the checks of conftest.py: that these do not fit is the point.

    What the instance has derived from its fields is not copied.
    """
    copy = object.__new__(type(instance))
    copy.__dict__.update({attribute.name: getattr(instance, attribute.name) for attribute in fields(instance)} | others)
    return copy


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same form on the device meta, which holds no data."""
    return tensor.to("meta")
