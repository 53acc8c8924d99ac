"""Reported log-probabilities equal those of plain decoding, one token at a time, with every drafter."""

import dataclasses

import pytest
import torch

import specbench
from specbench.decoding import Completion, Request
from specbench.metrics.results import write_rows
from specbench.protocols.decode import LOGPROBS, LogprobRow, logprob_table
from specbench.sampling import SamplingParams
from tests.helpers.by_definition import shaped_logits
from tests.protocols.test_honest_rows import context

pytestmark = pytest.mark.usefixtures("unchecked")  # tests/decoding/test_decoding.py decodes with the checks of shapes
PROMPT = "def add(a, b):\n    return"


def one_at_a_time(pair, tokens, first):
    """The target's logits before each token from place ``first``, each from a pass over all before it: float64."""
    with torch.inference_mode():
        rows = [pair.target(torch.tensor([tokens[:i]])).logits[0, -1].double() for i in range(first, len(tokens))]
    return torch.stack(rows)[:, : pair.vocab_size]


def assert_logprobs(logprobs, rows, tokens, count):
    """Each token with the log-probability, the rank and the most likely ones of its row."""
    assert [entry.token_id for entry in logprobs] == list(tokens)
    for entry, row in zip(logprobs, rows, strict=True):
        expected = float(row[entry.token_id])
        assert entry.logprob == pytest.approx(expected, abs=1e-9)
        assert entry.rank == 1 + int((row > expected + 1e-9).sum())
        best = row.sort(descending=True).values[:count]
        assert [value for _, value in entry.top] == pytest.approx(best[best > -torch.inf].tolist(), abs=1e-9)
        assert all(float(row[token]) == pytest.approx(value, abs=1e-9) for token, value in entry.top)


@pytest.fixture(scope="module")
def raw_and_processed(exact):
    """A sampled text of several blocks, with raw and with processed log-probabilities."""
    params = SamplingParams(temperature=0.7, top_k=8, logprobs=3, prompt_logprobs=2)
    both = (params, dataclasses.replace(params, logprobs_mode="processed_logprobs"))
    return [
        specbench.decode(exact, PROMPT, sampling=sampling, max_new_tokens=6, gamma=3, seed=4)[0] for sampling in both
    ]


def test_they_are_those_of_a_target_that_reads_one_token_at_a_time(exact, raw_and_processed):
    raw, processed = raw_and_processed
    assert raw.token_ids == processed.token_ids
    tokens, n = [*raw.prompt, *raw.token_ids], len(raw.prompt)
    logits = one_at_a_time(exact, tokens, n)
    assert_logprobs(raw.logprobs, logits.log_softmax(-1), raw.token_ids, 3)
    lowest = logits.sort(descending=True).values[:, 7:8]
    drawn_from = (logits / 0.7).masked_fill(logits < lowest, -torch.inf).log_softmax(-1)
    assert_logprobs(processed.logprobs, drawn_from, raw.token_ids, 3)


def test_processed_ones_know_what_the_prompt_holds(exact):
    params = SamplingParams(repetition_penalty=1.5, logprobs=2, logprobs_mode="processed_logprobs")
    (text,) = specbench.decode(exact, PROMPT, sampling=params, max_new_tokens=3)
    rows = one_at_a_time(exact, [*text.prompt, *text.token_ids], len(text.prompt)).tolist()
    shaped = [shaped_logits(row, params, text.prompt, text.token_ids[:i]) for i, row in enumerate(rows)]
    drawn_from = torch.tensor(shaped).double().log_softmax(-1)  # penalties round to float32
    assert_logprobs(text.logprobs, drawn_from, text.token_ids, 2)


def test_those_of_the_prompt_are_raw_and_its_first_token_has_none(exact, raw_and_processed):
    for text in raw_and_processed:
        first, *rest = text.prompt_logprobs
        assert (first.token_id, first.logprob, first.rank, first.top) == (text.prompt[0], None, None, [])
        assert_logprobs(rest, one_at_a_time(exact, text.prompt, 1).log_softmax(-1), text.prompt[1:], 2)


def test_nothing_is_told_that_nobody_asked_for_and_greedy_tokens_are_certain(exact):
    (plain,) = specbench.decode(exact, PROMPT, max_new_tokens=2)
    assert (plain.logprobs, plain.prompt_logprobs) == (None, None)
    greedy = SamplingParams(temperature=0.0, logprobs=5, logprobs_mode="processed_logprobs")
    (certain,) = specbench.decode(exact, PROMPT, sampling=greedy, max_new_tokens=2)
    expected = [(0.0, 1, [(token, 0.0)]) for token in certain.token_ids]
    assert [(entry.logprob, entry.rank, entry.top) for entry in certain.logprobs] == expected


def test_a_run_writes_them_as_a_table(exact, tmp_path):
    prompt = tuple(exact.encode(PROMPT))
    made = [
        Completion(Request("asked", prompt, 0, SamplingParams(logprobs=1), 2), [5, 6]),
        Completion(Request("not", prompt, 0, SamplingParams(), 2), [5, 6]),
    ]
    (table,) = logprob_table(context(exact, needs_models=True), made).values()
    assert [(row.prompt, row.part, row.position, row.token_id) for row in table.rows] == [
        ("asked", "completion", 0, 5),
        ("asked", "completion", 1, 6),
    ]
    write_rows(tmp_path / LOGPROBS, table.rows, LogprobRow)
    assert logprob_table(context(exact, needs_models=True), made[1:]) == {}
