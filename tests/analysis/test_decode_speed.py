"""The report decode_speed from made-up rows: every number of its table by hand."""

from __future__ import annotations

from pathlib import Path

from specbench.analysis import decode_speed
from specbench.metrics.results import BASELINES, BaselineRow, write_rows
from tests.helpers.made_up_rows import make_row, markdown_report, table_of, write_run

GIB = 10**9


def run_of(folder: Path, **changes: object) -> Path:
    """Two engines, two batch sizes and two gammas; 4 s of which 1 s feeds prompts, in 100 and 200 steps."""
    rows, on_gpu = [], {"copy_bandwidth": 4e12, "weight_bytes_target": 16 * GIB, "weight_bytes_draft": 2 * GIB}
    for engine in ("graph", "eager"):
        for batch in (64, 1):
            for gamma in (4, 2):
                plain = {"eager": 25.0, "graph": 250.0}[engine] * batch
                values = {
                    **{"job": len(rows), "exp": "decode_speed", "engine": engine, "batch_size": batch, "gamma": gamma},
                    **{"tokens_per_second": 2 * plain + gamma, "plain_tokens_per_second": plain},
                    **{"seconds_prompts": 1.0, "plain_seconds_prompts": 1.0, "seconds_prepared": 12.34},
                    **{"batch_steps": [60, 40], "batch_plain_steps": [150, 50], **on_gpu},
                }
                rows.append(make_row(**{**values, **changes}))
    write_run(folder, rows, empirical=False)
    for row in rows:
        size = {"batch": row.batch_size, "texts": 2}
        timed = {"seconds": 1.0, "seconds_prepared": 9.5, "rounds": 1, "equal_texts": 2, **size}
        beside = {"times_plain": 1.2, "times_plain_low": 1.1 if row.job == 0 else 0.9, "times_plain_high": 1.3}
        lines = [BaselineRow(name="transformers", tokens=40, tokens_per_second=40.0 + row.job, **timed, **beside)]
        if row.batch_size == 1:
            lines += [BaselineRow(name="transformers_assisted", tokens=9, tokens_per_second=20.0 + row.gamma, **timed)]
        else:
            lines += [BaselineRow(name="transformers_assisted", note="not possible: one request", **size)]
        write_rows(folder / str(row.job) / BASELINES, lines, BaselineRow)
    return folder


def test_every_number_of_the_table(tmp_path):
    lines = table_of(markdown_report(decode_speed, run_of(tmp_path)))
    settings = [(line["batch"], line["decoder"], line["gamma"]) for line in lines]
    others = {"1": [("transformers", "-"), ("transformers_assisted", "2"), ("transformers_assisted", "4")]}
    others["64"] = others["1"]
    ours = [(engine, gamma) for engine in ("eager", "graph") for gamma in ("2", "4")]
    assert sorted(settings) == sorted((batch, *setting) for batch in ("1", "64") for setting in [*ours, *others[batch]])
    assert settings[:4] == [("1", *setting) for setting in ours]
    assert lines[3] == {
        "batch": "1", "decoder": "graph", "gamma": "4", "tokens/s": "504.0", "plain tokens/s": "250.0",
        "ms a step": "30.00",  # (4 - 1) s / 100 steps
        "floors": "5.0",  # over (16 + 4 * 2) GB / 4 TB/s = 6 ms
        "plain ms a step": "20.00",  # (5 - 1) s / 200 steps
        "prepared s": "12.3",
    }  # fmt: skip
    assert lines[2]["floors"] == "6.0"  # 16 + 2 * 2 GB: 5 ms
    generate, *assisted = sorted(lines[4:7], key=lambda line: (line["decoder"], line["gamma"]))
    assert generate["plain tokens/s"] == "44.5"  # the median of jobs 2, 3, 6 and 7
    assert (generate["tokens/s"], generate["ms a step"], generate["prepared s"]) == ("-", "-", "9.5")
    assert [line["tokens/s"] for line in assisted] == ["22.0", "24.0"]
    assert [line["tokens/s"] for line in lines if line["batch"] == "64" and "assisted" in line["decoder"]] == ["-"] * 2


def test_what_the_report_says(tmp_path):
    text = markdown_report(decode_speed, run_of(tmp_path))
    assert (
        "Batch size 1: at most 504.0 tokens/s speculatively (graph, gamma 4), 250.0 plainly (graph); of transformers' "
        "decoders 44.5 (transformers)." in text
    )
    assert "Batch size 64: at most 32004.0 tokens/s speculatively (graph, gamma 4)" in text
    assert "At temperature 0, 24 of 24 texts of transformers' decoders are those of plain decoding." in text
    assert "transformers_assisted: not possible: one request." in text
    faster = "transformers is faster than plain decoding at batch size 64, 1.20 [1.10, 1.30] times: over it"
    assert text.count("faster than plain decoding") == text.count(faster) == 1  # not where the interval holds 1
    assert "Weights are random" not in text
    assert "machine changed" not in text  # plain decoding differs by engine, and is no sign of a disturbed machine


def test_random_weights_are_said_to_be_random(tmp_path):
    text = markdown_report(decode_speed, run_of(tmp_path, target="random:llama-8b"))
    assert "\n**Weights are random. How many drafted" in text


def test_on_a_cpu_and_in_older_rows_there_are_no_floors_and_no_steps(tmp_path):
    missing = dict.fromkeys(("copy_bandwidth", "batch_steps", "batch_plain_steps", "seconds_prompts"))
    lines = table_of(markdown_report(decode_speed, run_of(tmp_path, **missing)))
    assert {(line["floors"], line["ms a step"]) for line in lines} == {("-", "-")}


def test_without_other_decoders_the_report_is_of_the_engines_alone(tmp_path):
    folder = run_of(tmp_path)
    for path in folder.glob("*/baselines.parquet"):
        path.unlink()
    text = markdown_report(decode_speed, folder)
    assert {line["decoder"] for line in table_of(text)} == {"eager", "graph"}
    assert "transformers' decoders" not in text.split("## Table")[0].split("## Result")[1]
