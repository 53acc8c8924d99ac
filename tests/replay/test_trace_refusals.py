"""What a trace may not hold, and what its message says: the key, the place, and what to do."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.core.errors import ConfigError
from specbench.protocols.replay import check_sampler
from specbench.replay.imports import read_any
from specbench.replay.trace import read_trace
from tests.helpers.markov_pair import IDENTITY
from tests.replay.test_trace import GOOD, HEADER, json_lines, rows, written


def entry(**changes: Any) -> list[Any]:
    return [HEADER, "", GOOD | changes]  # an empty line: the bad one is line 3 of the file


def of_sampler(**sampler: Any) -> list[Any]:
    return [HEADER | {"sampler": HEADER["sampler"] | sampler}, GOOD]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (entry(sample="x"), "line 3: sample 'x' is not a whole number"),
        (entry(sample=None), "line 3: sample None"),
        (entry(sample=1.5), "line 3: sample 1.5"),
        (entry(token_ids=[2**70]), "line 3: token 1180591620717411303424 is not an id"),
        (entry(token_ids=[-1]), "line 3: token -1 is not an id"),
        (entry(token_ids=[], target_logprobs=[], draft_logprobs=[]), "line 3: a text without tokens. Leave"),
        (entry(prompt_id=None), "line 3: prompt_id None"),
        (entry(target_logprobs=[-(10**400)]), "line 3: no log-probability for token 5"),
        (entry(target_logprobs=[-1e300]), "log_p is -inf in line 3"),
        (entry(target_logprobs=[None]), "line 3: .* the first. Drop the prompt"),
        (entry(draft_logprobs=[float("nan")]), "log_q is nan in line 3"),
        (entry(max_new_tokens=0), "line 3: max_new_tokens 0 is no number of at least the text's 1"),
        (entry(max_new_tokens="9"), "line 3: max_new_tokens '9'"),
        ([HEADER, GOOD, GOOD], "prompt 'a', sample 0, occurs twice, again in line 3. Number the samples"),
        (of_sampler(temperature=-1), "temperature -1 is not a number from 0"),
        (of_sampler(temperature=float("nan")), "temperature nan"),
        (of_sampler(temperature=float("inf")), "temperature is infinite"),
        (of_sampler(top_p=True), "top_p True"),
        ([GOOD], "the first line does not name the format"),
        ([HEADER | {"sampler": {"temperature": 1}}, GOOD], "the first line does not name the format"),
        (of_sampler(top_k="x"), "no set of numbers"),
        ([HEADER, {k: v for k, v in GOOD.items() if k != "draft_logprobs"}], "line 2 lacks"),
        ([HEADER, GOOD | {"target_logprobs": [-1.0, -2.0]}], "line 2: lists of different lengths"),
        ([HEADER, GOOD | {"target_logprobs": [None]}], "line 2: no log-probability for token 5"),
        ([HEADER, GOOD | {"target_logprobs": [{"6": {"logprob": -1}}]}], "line 2: no log-probability for token 5"),
        ([HEADER, GOOD | {"target_logprobs": [[-1.0, 6]]}], "line 2: a log-probability of token 6, not 5"),
        ([HEADER, GOOD | {"token_ids": ["5"]}], "line 2: token '5' is not an id"),
        ([HEADER, GOOD | {"target_logprobs": [0.2]}], "log_p is 0.2 in line 2. Log-prob"),
        (
            [HEADER, GOOD | {"target_logprobs": [0.2] * 3, "draft_logprobs": [-1.0] * 3, "token_ids": [1] * 3}],
            "log_p is 0.2 in line 2, and 2 other values are impossible too. ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_lines_that_cannot_be(tmp_path, lines, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read_any(json_lines(tmp_path, *lines))
    assert caught.value.key == "protocol.trace"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"draft_argmax": 7.0}, "draft_argmax is 7 in line 1. Write 1 for yes"),
        ({"argmax_agree": float("inf")}, "argmax_agree is inf in line 1"),
        ({"target_entropy": float("inf")}, "target_entropy is inf .*in nats"),
        ({"overlap": 1.5}, "sum of min"),
        ({"token": -2}, "token is -2 in line 1. Token ids count from 0"),
        ({"sample": None}, "1 nulls in sample"),
        ({"log_p": 0.01}, "log_p is 0.0"),
        ({"log_p": float("nan")}, "log_p is nan in line 1"),
        ({"log_p": float("-inf")}, "log_p is -inf in line 1"),
        ({"log_q": 0.01}, "log_q is 0.0"),
        ({"log_q": float("nan")}, "log_q is nan in line 1"),
        ({"log_q": None}, "1 nulls in log_q"),
        ({"draft_entropy": -0.5}, "draft_entropy is -0.5"),
        ({"draft_confidence": 1.5}, "draft_confidence is 1.5"),
        ({"max_new_tokens": 1}, "max_new_tokens is 1 in line 1"),
        ({"max_new_tokens": None}, "max_new_tokens is null in line 1"),
        ({"position": 2}, "line 1 has position 2 where 1 is due"),
        ({"prompt": "b", "position": 0}, "occurs twice"),  # the second a is then a text of its own, and b comes again
    ],
    ids=str,
)
def test_columns_that_cannot_be(tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read_trace(written(tmp_path, rows(**changes)))
    assert "protocol.trace=" in str(caught.value)


@pytest.mark.parametrize("value", ["x", None, -1, float("nan"), [1]], ids=str)
def test_samplers_in_parquet_that_cannot_be(tmp_path, value):
    sampler = json.dumps({"version": 1, **vars(IDENTITY), "sampler": {**IDENTITY.sampler, "temperature": value}})
    table = pq.read_table(written(tmp_path, rows()))
    pq.write_table(table.replace_schema_metadata({b"specbench.trace": sampler.encode()}), tmp_path / "odd.parquet")
    with pytest.raises(ConfigError, match="temperature"):
        read_trace(tmp_path / "odd.parquet")


def test_limits_may_be_missing(tmp_path):
    """All of them (older traces), or those of some texts, which then ended by length."""
    table = pq.read_table(written(tmp_path, rows()))
    pq.write_table(table.drop_columns(["max_new_tokens"]), tmp_path / "old.parquet")
    old = read_trace(tmp_path / "old.parquet")
    assert old.limits is None
    assert old.draft_limits.tolist() == [1, 0, 0, 0]
    some = pa.array([None, None, 9, None], pa.int64())
    pq.write_table(table.set_column(table.column_names.index("max_new_tokens"), "max_new_tokens", some), tmp_path / "x")
    limits = read_trace(tmp_path / "x").limits
    assert limits is not None
    assert limits.tolist() == [2, 9, 1]
    imported = read_any(json_lines(tmp_path, HEADER, GOOD | {"max_new_tokens": 9}, GOOD | {"prompt_id": "b"}))
    assert imported.draft_limits.tolist() == [8, 0]


def test_paths_that_are_no_traces(tmp_path):
    written(tmp_path, rows())
    (tmp_path / "empty").mkdir()
    (tmp_path / "lines.json").write_text("{}")
    for path, says in (
        (tmp_path / "nothing.jsonl", "no such file"),
        (tmp_path, "a folder. Give trace.parquet in it: protocol.trace="),
        (tmp_path / "empty", "a folder. Record one"),
        (tmp_path / "lines.json", "name it .jsonl"),
    ):
        with pytest.raises(ConfigError, match=says):
            read_any(path)


def test_samplers_that_are_the_same(tmp_path):
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    trace = read_any(json_lines(tmp_path, *of_sampler(top_k=-1)))
    check_sampler(trace, off, "x")
    with pytest.raises(
        ConfigError, match=r"sampler.top_p=0.9: the trace x was sampled with top_p 1, .*sampler.top_p=1 to"
    ):
        check_sampler(trace, off | {"top_p": 0.9}, "x")
    greedy = read_any(json_lines(tmp_path, *of_sampler(temperature=0, top_p=0.5, top_k=7)))
    check_sampler(greedy, off | {"temperature": 0}, "x")  # whatever it would truncate, greedy takes the first
    with pytest.raises(ConfigError, match="temperature"):
        check_sampler(greedy, off, "x")


def test_an_engines_own_entries_are_of_temperature_1(tmp_path):
    """vLLM's and SGLang's prompt log-probabilities ignore the sampler; numbers are taken at their word."""
    cooler = HEADER | {"sampler": HEADER["sampler"] | {"temperature": 0.7}}
    for entries in ([{"5": {"logprob": -1.0}}], [[-1.0, 5, "x"]]):
        line = GOOD | {"draft_logprobs": entries}
        assert len(read_any(json_lines(tmp_path, HEADER, line))) == 1
        with pytest.raises(ConfigError, match="line 2 has an engine's own entries.*Score the texts again"):
            read_any(json_lines(tmp_path, cooler, line))
    assert len(read_any(json_lines(tmp_path, cooler, GOOD))) == 1
