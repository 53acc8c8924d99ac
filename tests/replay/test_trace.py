"""Traces on disk: what is written is what is read, bad ones are named, imports say the same as a recording."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from specbench.metrics.results import write_rows
from specbench.protocols.scoring import columns_of, trace_table
from specbench.replay.imports import read_any
from specbench.replay.trace import OPTIONAL, read_trace, trace_schema
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers import cli_cases
from tests.helpers.markov_pair import IDENTITY

NUMBERS = ("log_p", "log_q", *OPTIONAL)


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Two texts of prompt a and one of b; ``changes`` go into the second line."""
    places = [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("b", 0, 0)]
    lines = [
        {"prompt": prompt, "sample": sample, "position": position, "token": i, **dict.fromkeys(NUMBERS, 0.5)}
        | {"log_p": -1.0 - i, "log_q": -0.5 * i, "max_new_tokens": 2}
        | {"argmax_agree": 1.0, "draft_argmax": 0.0}
        for i, (prompt, sample, position) in enumerate(places)
    ]
    lines[1] |= changes
    return lines


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    write_rows(path / "trace.parquet", lines, trace_schema(IDENTITY))
    return path / "trace.parquet"


def test_round_trip(tmp_path):
    path = written(tmp_path, rows(log_q=-np.inf))
    trace = read_trace(path)
    assert trace.path == path
    assert trace.identity == IDENTITY
    assert list(trace.prompts) == ["a", "a", "b"]
    assert trace.starts.tolist() == [0, 2, 3, 4]
    assert trace.remaining.tolist() == [2, 1, 1, 1]
    assert trace.draft_limits.tolist() == [1, 0, 1, 1]
    assert trace.acceptance_limits.tolist() == [1, 0, 1, 1]  # the last two are stop tokens, which could be drafted
    assert trace.columns["log_p"].tolist() == [-1, -2, -3, -4]
    assert trace.columns["log_q"].tolist() == [0, -np.inf, -1, -1.5]
    assert set(trace.columns) == set(NUMBERS)
    part = trace.texts(1, 3)
    assert part.draft_limits.tolist() == [1, 1]
    assert (list(part.prompts), part.starts.tolist(), part.tokens.tolist()) == (["a", "b"], [0, 1, 2], [2, 3])


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(temperature=0.7, top_k=5, top_p=0.9)],
    ids=["T=1", "greedy", "truncated"],
)
def test_columns_are_those_of_the_dense_distributions(sampling, monkeypatch):
    """In pieces of two rows, so that a piece scored with another's rows shows."""
    monkeypatch.setattr("specbench.protocols.scoring.CELLS", 64)
    generator = torch.Generator().manual_seed(0)
    target = 2 * torch.randn(7, 32, generator=generator)
    draft = target + torch.randn(7, 32, generator=generator)
    params = RowParams.of([sampling] * 7)
    p, q = (logit_rows(logits, params).probs() for logits in (target, draft))
    tokens = p.argmax(dim=-1)
    got = columns_of(target, draft, tokens, sampling)
    rows = torch.arange(7)
    sure = draft.double().softmax(dim=-1) if sampling.greedy else q  # what policies of draft lengths read
    drafted = q.argmax(dim=-1) if sampling.greedy else tokens
    expected = {
        "log_p": p[rows, tokens].log(),
        "log_q": q[rows, tokens].log(),
        "overlap": torch.minimum(p, q).sum(dim=-1),
        "target_entropy": torch.special.entr(p).sum(dim=-1),
        "draft_entropy": torch.special.entr(sure).sum(dim=-1),
        "draft_confidence": sure[rows, drafted],
        "argmax_agree": (p.argmax(dim=-1) == q.argmax(dim=-1)).double(),
        "draft_argmax": (q.argmax(dim=-1) == tokens).double(),
    }
    for name, values in expected.items():
        assert torch.allclose(got[name].double(), values, atol=1e-6, equal_nan=False), name
        assert got[name].dtype == torch.float32


@pytest.mark.parametrize(
    ("sampling", "log_p"),
    [
        (SamplingParams(temperature=0.0), 0.0),
        (SamplingParams(top_k=1), 0.0),
        (SamplingParams(min_p=0.9999), 0.0),
        (SamplingParams(top_k=2), None),
    ],
    ids=["greedy", "top-k", "min-p", "inside"],
)
def test_a_token_that_rounding_moves_over_the_edge_is_no_impossible_one(sampling, log_p):
    """bfloat16 at logits of 20: decoding drew the token whose logit is a unit in the last place below the largest."""
    logits = torch.tensor([[20.0, 19.875, 12.0]]).expand(2, 3).to(torch.bfloat16)
    got = columns_of(logits, logits, torch.tensor([1, 2]), sampling)["log_p"]
    inside = logits[0, :2].double().softmax(0)[1].log()
    assert got[0] == pytest.approx(float(inside) if log_p is None else log_p, abs=1e-6)
    assert got[1] == -torch.inf, "far from the edge a token is one that nothing should have drawn"


def test_rows_of_scored_texts():
    scored = [{"token": torch.tensor([7, 8]), "log_p": torch.tensor([-1.0, -2.0])}, {"token": torch.tensor([9])}]
    scored[1]["log_p"] = torch.tensor([-3.0])
    for columns in scored:
        columns |= {name: torch.zeros(len(columns["token"])) for name in NUMBERS if name not in columns}
    got = trace_table([("a", 0), ("a", 1)], [2, 5], scored, IDENTITY).to_pylist()
    assert [(r["prompt"], r["sample"], r["position"], r["token"], r["log_p"], r["max_new_tokens"]) for r in got] == [
        ("a", 0, 0, 7, -1.0, 2), ("a", 0, 1, 8, -2.0, 2), ("a", 1, 0, 9, -3.0, 5),
    ]  # fmt: skip


# --- Imports ---

HEADER = cli_cases.HEADER | {"source": "engine", "dtype": "bfloat16"}


def json_lines(path: Path, *lines: object) -> Path:
    path = path / "engine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_three_engines_say_the_same(tmp_path):
    plain, tokens = [-0.5, -1.5, -1.0], [17, 4, 9]
    sglang = [[value, token, "x"] for value, token in zip(plain, tokens, strict=True)]
    vllm = [{str(t): {"logprob": v, "rank": 2}, "99": {"logprob": -0.1}} for v, t in zip(plain, tokens, strict=True)]
    lines = [
        {"prompt_id": name, "token_ids": tokens, "target_logprobs": values, "draft_logprobs": [*values[:2], -np.inf]}
        for name, values in (("plain", plain), ("sglang", sglang), ("vllm", vllm))
    ]
    trace = read_any(json_lines(tmp_path, HEADER, *lines))
    assert (trace.identity.target, trace.identity.source, trace.identity.sampler["top_p"]) == ("T", "engine", 1.0)
    assert list(trace.prompts) == ["plain", "sglang", "vllm"]
    assert trace.columns["log_p"].tolist() == plain * 3
    assert trace.columns["log_q"].tolist() == [*plain[:2], -np.inf] * 3  # a draft may exclude a token
    assert set(trace.columns) == {"log_p", "log_q"}  # what engines do not report is missing, not zero


def test_the_first_token_of_a_prefill_is_left_out(tmp_path):
    """The same trace as of texts that begin at the second token, with a limit less by one."""
    tokens, log_p, log_q = [17, 4, 9], [-0.5, -1.5, -1.0], [-0.25, -2.0, -0.75]
    texts = [
        {"prompt_id": name, "token_ids": tokens[:n], "target_logprobs": log_p[:n], "draft_logprobs": log_q[:n]} | limit
        for name, n, limit in (("a", 3, {"max_new_tokens": 8}), ("one token", 1, {"max_new_tokens": 8}), ("b", 2, {}))
    ]
    got = read_any(json_lines(tmp_path, HEADER | {"first_token": "prefill"}, *texts))
    assert (list(got.prompts), got.starts.tolist(), got.tokens.tolist()) == (["a", "b"], [0, 2, 3], [4, 9, 4])
    assert got.columns["log_p"].tolist() == [-1.5, -1.0, -1.5]
    assert got.columns["log_q"].tolist() == [-2.0, -0.75, -2.0]
    assert got.limits.tolist() == [7, 1]
    step = read_any(json_lines(tmp_path, HEADER | {"first_token": "step"}, *texts))
    assert step.lengths.tolist() == [3, 1, 2]


def test_the_schema_is_documented():
    """Every column of the format has its line in the module's description, which is where an importer looks."""
    from specbench.replay import trace

    described = re.findall(r"^    (\w.*?)  ", trace.__doc__ or "", flags=re.MULTILINE)
    assert re.findall(r"\w+", " ".join(described)) == pa.schema(trace.FIELDS).names
