"""What a trace may not hold, and what its message says: the key, the place, and what to do."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.core.errors import ConfigError
from specbench.protocols.replay import check_sampler
from specbench.replay.imports import read_any
from specbench.replay.trace import read_trace
from tests.helpers.broken_files import DEEP, NO_FILE, TEXT, Cases, Make, assert_refused, lines, table
from tests.helpers.markov_pair import IDENTITY
from tests.replay.test_trace import HEADER, json_lines, rows, written

HUGE = 10**400


def entry(**changes: Any) -> Make:
    """A text with other values; an empty line stands before it, so that it is line 3 of the file."""
    return lines(HEADER, "", TEXT | changes)


def of_sampler(**sampler: Any) -> list[dict[str, Any]]:
    return [HEADER | {"sampler": HEADER["sampler"] | sampler}, TEXT]


LINES: Cases = {
    "empty": (lines(), ("the trace is empty",)),
    "header alone": (lines(HEADER), ("the trace is empty",)),
    "latin-1": (lines(HEADER, b"\xe9"), ("line 2 is not UTF-8",)),
    "deep": (lines(HEADER, DEEP), ("line 2 is not JSON (nested too deeply)",)),
    "list": (lines(HEADER, "[]"), ("line 2 is not a JSON object",)),
    "no header": (lines(TEXT), ("the first line does not name the format",)),
    "header of one parameter": (lines(HEADER | {"sampler": {"temperature": 1}}, TEXT), ("does not name the format",)),
    "target a list": (lines(HEADER | {"target": [1]}, TEXT), ("does not say what it is of (target is [1]",)),
    "temperature below 0": (
        lines(*of_sampler(temperature=-1)),
        ("of the first line is not valid (temperature=-1: below 0. Use 0 for greedy",),
    ),
    "temperature infinite": (lines(*of_sampler(temperature=float("inf"))), ("temperature=inf: not a finite number",)),
    "top_p true": (lines(*of_sampler(top_p=True)), ("is not valid (top_p True is not a number",)),
    "top_p 0": (lines(*of_sampler(top_p=0)), ("is not valid (top_p=0: outside (0, 1]",)),
    "top_k a fraction": (lines(*of_sampler(top_k=1.5)), ("is not valid (top_k=1.5: not a count of tokens",)),
    "temperature 0 and another log_p": (
        lines(of_sampler(temperature=0)[0], TEXT | {"target_logprobs": [0.0], "prompt_id": "b"}, TEXT),
        ("log_p is -1 in line 3, but at temperature 0 p is one token", "of temperature 1. Write 0 for log_p"),
    ),
    "draft misspelt": (
        lines({"drfat" if name == "draft" else name: value for name, value in HEADER.items()}, TEXT),
        ("the first line has 'drfat', which is not read there. Did you mean draft?",),
    ),
    "limit in the header": (lines(HEADER | {"max_new_tokens": 9}, TEXT), ("line has 'max_new_tokens', which",)),
    "first_token in a text's line": (entry(first_token="prefill"), ("line 3 has 'first_token', which is not read",)),
    "first_token unknown": (lines(HEADER | {"first_token": 1}, TEXT), ("first_token is 1, neither step nor prefill",)),
    "no steps": (lines(HEADER | {"first_token": "prefill"}, TEXT), ("the trace is empty",)),
    "limit misspelt": (
        entry(max_tokens=9),
        ("line 3 has 'max_tokens', which is not read there. Did you mean max_new",),
    ),
    "sample misspelt": (entry(smaple=1), ("Did you mean sample?",)),
    "no draft": (lines(HEADER, {k: v for k, v in TEXT.items() if k != "draft_logprobs"}), ("line 2 lacks",)),
    "name null": (entry(prompt_id=None), ("line 3: prompt_id None is no name",)),
    "name half a character": (entry(prompt_id="\ud800"), ("line 3: prompt_id '\\ud800' is no name",)),
    "sample a fraction": (entry(sample=1.5), ("line 3: sample 1.5 is not a whole number",)),
    "lists of other lengths": (entry(target_logprobs=[-1.0, -2.0]), ("line 3: lists of different lengths",)),
    "no tokens": (entry(token_ids=[], target_logprobs=[], draft_logprobs=[]), ("3: a text without tokens. Leave",)),
    "limit zero": (entry(max_new_tokens=0), ("line 3: max_new_tokens 0 is no number of at least the text's 1",)),
    "limit a text": (entry(max_new_tokens="9"), ("line 3: max_new_tokens '9'",)),
    "token below 0": (entry(token_ids=[-1]), ("line 3: token -1 is not an id",)),
    "token too large": (entry(token_ids=[2**70]), ("line 3: token 1180591620717411303424 is not an id",)),
    "first entry": (entry(target_logprobs=[None]), ("line 3: no log-probability for token 5, the first. Drop",)),
    "of another token": (entry(target_logprobs=[{"6": {"logprob": -1}}]), ("3: no log-probability for token 5.",)),
    "SGLang's of another": (entry(target_logprobs=[[-1.0, 6]]), ("line 3: a log-probability of token 6, not 5",)),
    "log_p huge": (entry(target_logprobs=[-HUGE]), ("line 3: no log-probability for token 5",)),
    "log_p large": (entry(target_logprobs=[-1e300]), ("log_p is -inf in line 3. Log-prob",)),
    "log_q NaN": (entry(draft_logprobs=[float("nan")]), ("log_q is nan in line 3",)),
    "three above 0": (
        entry(target_logprobs=[0.2] * 3, draft_logprobs=[-1.0] * 3, token_ids=[1] * 3),
        ("log_p is 0.2 in line 3, and 2 other values are impossible too. ",),
    ),
    "text twice": (lines(HEADER, TEXT, TEXT), ("prompt 'a', sample 0, occurs twice, again in line 3. Number the",)),
}


def parquet(**columns: Any) -> Make:
    return lambda path: pq.write_table(table(**columns), path)


def values(**changes: Any) -> Make:
    """A trace with other values in its line 1, counted from 0."""
    return lambda path: written(path.parent, rows(**changes)).rename(path)


def metadata(entry: str | None) -> Make:
    entries = {} if entry is None else {b"specbench.trace": entry}
    return lambda path: pq.write_table(table().replace_schema_metadata(entries), path)


def identity(**changes: Any) -> Make:
    return metadata(json.dumps({"version": 1, **vars(IDENTITY), **changes}))


def cut_off(path: Path) -> None:
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-100])


def no_utf8(path: Path) -> None:
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes().replace(b"sample", b"\xffample"))


def folder_of_a_trace(path: Path) -> None:
    path.mkdir()
    written(path, rows())


TABLES: Cases = {
    **NO_FILE,
    "folder of a trace": (folder_of_a_trace, ("a folder. Give trace.parquet in it: protocol.trace=",)),
    "cut off": (cut_off, ("cannot be read as parquet",)),
    "column not UTF-8": (no_utf8, ("cannot be read as parquet (UnicodeDecodeError",)),
    "no rows": (lambda path: pq.write_table(table().slice(0, 0), path), ("the trace is empty",)),
    "no column": (parquet(token=...), ("no column token",)),
    "column twice": (
        lambda path: pq.write_table(table().append_column("token", table()["token"]), path),
        ("several columns named token",),
    ),
    "limit misspelt": (parquet(max_newtokens=pa.array([2, 2, 2])), ("table has 'max_newtokens'", "mean max_new_tok")),
    "no metadata": (metadata(None), ("its metadata does not say what it is a trace of (no specbench.trace)",)),
    "metadata cut off": (metadata("{"), ("its metadata is not JSON",)),
    "metadata a list": (metadata("[]"), ("what it is a trace of (ValueError: [] is not an object)",)),
    "version from the future": (identity(version=9), ("not of the trace format's version 1",)),
    "key unknown": (identity(more=1), ("does not say what it is a trace of (TypeError",)),
    "target half a character": (identity(target="\ud800"), ("target is '\\ud800', not a text",)),
    "sampler a text": (identity(sampler="x"), ("(ValueError: sampler is 'x', not an object",)),
    "sampler of one parameter": (identity(sampler={"top_k": 1}), ("sampler of top_k, not of temperature",)),
    "shaping a list": (identity(shaping="[]"), ("shaping is '[]', not an object",)),
    "temperature null": (
        identity(sampler={**IDENTITY.sampler, "temperature": None}),
        ("temperature None is not a number",),
    ),
    "prompt floats": (parquet(prompt=pa.array([0.5, 0.5, 0.5])), ("prompt holds double, not texts",)),
    "prompt not UTF-8": (
        parquet(prompt=pa.array([b"\xff"] * 3, pa.binary()).view(pa.string())),
        ("prompt holds no texts",),
    ),
    "prompt with a zero": (
        parquet(prompt=pa.array(["a", "a", "\0"])),
        ("prompt '\\x00' in line 2 cannot be a name", "1 to 200"),
    ),
    "token a text": (parquet(token=pa.array(["x"] * 3)), ("token holds other values than int64",)),
    "sample a fraction": (parquet(sample=pa.array([0.0, 0.5, 0.0])), ("sample holds other values than int64",)),
    "overlap a struct": (
        parquet(overlap=pa.array([{"x": 1}] * 3)),
        ("overlap holds other values than float",),
    ),
    "sample null": (values(sample=None), ("1 nulls in sample",)),
    "token below 0": (values(token=-2), ("token is -2 in line 1. Token ids count from 0",)),
    "log_p NaN": (values(log_p=float("nan")), ("log_p is nan in line 1",)),
    "log_p of nothing": (values(log_p=float("-inf")), ("log_p is -inf in line 1",)),
    "log_q above 0": (values(log_q=0.01), ("log_q is 0.01 in line 1",)),
    "overlap above 1": (values(overlap=1.5), ("overlap is 1.5 in line 1. It is the sum of min",)),
    "target_entropy infinite": (values(target_entropy=float("inf")), ("target_entropy is inf in line 1. Entropies",)),
    "draft_entropy below 0": (values(draft_entropy=-0.5), ("draft_entropy is -0.5",)),
    "draft_confidence above 1": (values(draft_confidence=1.5), ("draft_confidence is 1.5",)),
    "draft_argmax above 1": (values(draft_argmax=7.0), ("draft_argmax is 7 in line 1. Write 1 for yes",)),
    "argmax_agree between": (values(argmax_agree=0.5), ("argmax_agree is 0.5 in line 1. Write 1 for yes",)),
    "limit below the text": (values(max_new_tokens=1), ("max_new_tokens is 1 in line 1",)),
    "limit null": (values(max_new_tokens=None), ("max_new_tokens is null in line 1",)),
    "position 2": (values(position=2), ("line 1 has position 2 where 1 is due",)),
    "a text apart": (values(prompt="b", position=0), ("occurs twice",)),  # the second a is a text, and b comes again
}
CASES = {"trace.jsonl": LINES, "t.parquet": TABLES, "trace.json": {"a name": (lines("{}"), ("name it .jsonl",))}}


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [pytest.param(name, *case, id=f"{name}, {why}") for name, cases in CASES.items() for why, case in cases.items()],
)
def test_traces_that_cannot_be(tmp_path: Path, name: str, make: Make, says: tuple[str, ...]) -> None:
    make(tmp_path / name)
    assert_refused(read_any, "protocol.trace", tmp_path / name, says)


def test_limits_may_be_missing(tmp_path):
    """All of them (older traces), or those of some texts, which then ended by length."""
    whole = pq.read_table(written(tmp_path, rows()))
    pq.write_table(whole.drop_columns(["max_new_tokens"]), tmp_path / "old.parquet")
    old = read_trace(tmp_path / "old.parquet")
    assert old.limits.tolist() == [2, 1, 1]
    assert old.draft_limits.tolist() == [1, 0, 0, 0]
    some = pa.array([None, None, 9, None], pa.int64())
    pq.write_table(whole.set_column(whole.column_names.index("max_new_tokens"), "max_new_tokens", some), tmp_path / "x")
    assert read_trace(tmp_path / "x").limits.tolist() == [2, 9, 1]
    imported = read_any(json_lines(tmp_path, HEADER, TEXT | {"max_new_tokens": 9}, TEXT | {"prompt_id": "b"}))
    assert imported.draft_limits.tolist() == [8, 0]


def test_other_keys_may_stay(tmp_path):
    """As in an engine's own log; a key like an optional one is refused only if the optional one is missing."""
    others = {"text": "a b", "prompt": "x", "prompt_token_ids": [1], "num_tokens": 1, "stop_token": 2}
    line = TEXT | {"sample": 0, "samples": 1, "max_new_tokens": 9, "max_tokens": 9}
    trace = read_any(json_lines(tmp_path, HEADER | {"model": "m"}, TEXT | others | {"prompt_id": "b"}, line | others))
    assert trace.draft_limits.tolist() == [0, 8]


def test_samplers_that_are_the_same(tmp_path):
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    trace = read_any(json_lines(tmp_path, *of_sampler(top_k=-1)))
    check_sampler(trace, off, "x")
    with pytest.raises(
        ConfigError, match=r"sampler.top_p=0.9: the trace x was sampled with top_p 1, .*sampler.top_p=1 to"
    ):
        check_sampler(trace, off | {"top_p": 0.9}, "x")
    header, _ = of_sampler(temperature=0, top_p=0.5, top_k=7)
    greedy = read_any(json_lines(tmp_path, header, TEXT | {"target_logprobs": [0.0]}))
    check_sampler(greedy, off | {"temperature": 0}, "x")  # whatever it would truncate, greedy takes the first
    with pytest.raises(ConfigError, match="temperature"):
        check_sampler(greedy, off, "x")


def test_an_engines_own_entries_are_of_temperature_1(tmp_path):
    """vLLM's and SGLang's prompt log-probabilities ignore the sampler; numbers are taken at their word."""
    cooler = HEADER | {"sampler": HEADER["sampler"] | {"temperature": 0.7}}
    for entries in ([{"5": {"logprob": -1.0}}], [[-1.0, 5, "x"]]):
        line = TEXT | {"draft_logprobs": entries}
        assert len(read_any(json_lines(tmp_path, HEADER, line))) == 1
        with pytest.raises(ConfigError, match="line 2 has an engine's own entries.*Score the texts again"):
            read_any(json_lines(tmp_path, cooler, line))
    assert len(read_any(json_lines(tmp_path, cooler, TEXT))) == 1


def test_a_trace_may_lie_in_a_folder_named_like_a_column(tmp_path):
    """As sweeps name them; pyarrow would take the folder's token for the file's."""
    folder = tmp_path / "token=3"
    folder.mkdir()
    pq.write_table(table(), folder / "trace.parquet")
    assert read_any(folder / "trace.parquet").tokens.tolist() == [5, 6, 7]


def test_names_may_be_numbers_or_categories(tmp_path):
    for prompt in (pa.array([1, 1, 2]), pa.array(["1", "1", "2"]).dictionary_encode()):
        pq.write_table(table(prompt=prompt), tmp_path / "t.parquet")
        assert list(read_any(tmp_path / "t.parquet").prompts) == ["1", "2"]
