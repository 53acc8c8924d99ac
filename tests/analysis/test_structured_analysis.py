"""The report of +exp=structured: texts against their structure, and greedy texts against plain decoding."""

import json

from specbench.analysis import parameters, structured
from specbench.metrics.results import TEXTS, TextRow, write_rows
from tests.helpers.made_up_rows import frame, make_row, markdown_report, table_of, write_run

COMPLETIONS = {  # sampler, temperature, gamma: two texts, and how the second ended
    ("json", 0.0, 0): ('{"a": 1}', '{"a": 2}', "stop"),
    ("json", 0.0, 4): ('{"a": 1}', '{"a": 2', "stop"),
    ("regex", 0.0, 4): ("ab", "abc", "length"),
    ("choice", 1.0, 4): ("yes", "ye", "stop"),
    ("temperature", 1.0, 4): ("x", "y", "length"),
}
WANTED = {"json": {"json": {"type": "object"}}, "regex": {"regex": "[ab]+"}, "choice": {"choice": ["yes", "no"]}}


def test_texts_that_break_their_structure_or_differ_are_counted(tmp_path):
    rows = [
        make_row(
            job=job, exp="structured", sampler=sampler, temperature=temperature, gamma=gamma,
            sampling=json.dumps({"structured_outputs": WANTED.get(sampler)}),
        )
        for job, (sampler, temperature, gamma) in enumerate(COMPLETIONS)
    ]  # fmt: skip
    write_run(tmp_path, rows, empirical=False)
    for job, (first, second, finished) in enumerate(COMPLETIONS.values()):
        ends = (("p", first, "stop"), ("q", second, finished))
        texts = [TextRow(name, "", text, 3, how, conversation=name) for name, text, how in ends]
        write_rows(tmp_path / str(job) / TEXTS, texts, TextRow)
    text = markdown_report(structured, tmp_path)
    lines = {(row["sampler"], row["gamma"]): row for row in table_of(text)}
    counts = {key: (row["ended"], row["keep to it"], row["as plain"]) for key, row in lines.items()}
    assert counts == {
        ("choice", "4"): ("2 of 2", "1 of 2", "-"),
        ("json", "0"): ("2 of 2", "2 of 2", "-"),
        ("json", "4"): ("2 of 2", "1 of 2", "1 of 2"),
        ("regex", "4"): ("1 of 2", "1 of 1", "-"),
        ("temperature", "4"): ("1 of 2", "-", "-"),
    }
    assert "5 of 7 texts that ended keep to their structure" in text
    assert "max_new_tokens cut off 1 others" in text
    assert "1 of 2 greedy texts are those of plain decoding" in text


def test_greedy_texts_are_held_to_plain_ones_of_their_own_length(tmp_path):
    """With several lengths in a sweep, the first plain run was taken for all."""
    jobs = [(length, gamma) for length in (1, 2) for gamma in (0, 4)]
    rows = [
        make_row(job=job, exp="structured", temperature=0.0, gamma=gamma, max_new_tokens=length)
        for job, (length, gamma) in enumerate(jobs)
    ]
    write_run(tmp_path, rows, empirical=False)
    for job, (length, _) in enumerate(jobs):
        text = TextRow("p", "", "ab"[:length], length, "length", conversation="p")
        write_rows(tmp_path / str(job) / TEXTS, [text], TextRow)
    lines = table_of(markdown_report(structured, tmp_path))
    cells = [(row["max_new_tokens"], row["gamma"], row["as plain"]) for row in lines]
    assert cells == [("1", "0", "-"), ("2", "0", "-"), ("1", "4", "1 of 1"), ("2", "4", "1 of 1")]


def test_temperatures_apart_are_compared_with_the_same_temperature(tmp_path):
    overlaps = {(0.7, 0.7): 0.7, (0.7, 1.3): 0.5, (1.0, 0.5): 0.6, (1.0, None): 0.8}
    rows = [
        make_row(
            job=job, exp="parameters", temperature=target, draft_temperature=draft, overlap=value,
            overlap_low=value - 0.01, overlap_high=value + 0.01,
        )
        for job, ((target, draft), value) in enumerate(overlaps.items())
    ]  # fmt: skip
    text = markdown_report(parameters, write_run(tmp_path, rows))
    assert "not touch: temperature, T=0.7, drafts at 1.3 0.50 [0.49, 0.51]." in text
    assert "not touch: temperature, T=1, drafts at 0.5 0.60 [0.59, 0.61]." in text
    assert "T=0.7 draft T=1.3" in text


def test_parameters_without_a_column_tell_samplers_apart() -> None:
    """A run with a budget of thinking has the sampler's name, and is no run of a temperature alone."""
    budgets = (None, 2, 8)
    rows = [make_row(job=i, sampling=json.dumps({"thinking_token_budget": budget})) for i, budget in enumerate(budgets)]
    results = frame(rows)
    assert parameters.labels(results) == ["temperature (T=1)"] + [
        f"temperature (T=1 thinking_token_budget={budget})" for budget in (2, 8)
    ]
    assert parameters.own_bases(results).tolist() == [True, False, False]


def test_samplers_are_compared_with_a_temperature_alone_in_their_own_setting(tmp_path):
    """Overlap under a model of its own was held to that of another: here no sampler changes anything."""
    jobs = [(pair, top_k) for pair in ("one", "two") for top_k in (0, 5)]
    rows = [
        make_row(
            job=job, exp="parameters", sampler="top_k" if top_k else "temperature", top_k=top_k, pair=pair,
            sampling=json.dumps({"temperature": 1.0, "top_k": top_k}), overlap=0.5 if pair == "one" else 0.9,
            overlap_low=0.4 if pair == "one" else 0.8, overlap_high=0.6 if pair == "one" else 1.0,
        )
        for job, (pair, top_k) in enumerate(jobs)
    ]  # fmt: skip
    text = markdown_report(parameters, write_run(tmp_path, rows))
    assert text.count("not touch: none.") == 4
    assert "alone, pair two, 0.90" in text
    assert [row["pair"] for row in table_of(text)] == ["one", "one", "two", "two"]
