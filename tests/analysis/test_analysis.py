"""Reports from made-up rows: every number shown is a row's own, and any part of a sweep can be shown."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from specbench.analysis import (
    decode_speed,
    decoding,
    drafters,
    gamma_sweep,
    parameters,
    temperature_sweep,
    vocabularies,
)
from specbench.analysis.decoding import telling
from specbench.core.machine.progress import console
from specbench.metrics import results
from specbench.metrics.results import STEPS, RunRow, StepRow, write_rows
from specbench.reports import Section, markdown
from specbench.reports.plots.style import style
from specbench.reports.templates import words
from specbench.reports.writing import write
from specbench.runs import summary
from tests.helpers.made_up_rows import (
    NO_OVERLAP,
    NO_RATE,
    UNCHECKED,
    frame,
    gamma_rows,
    make_row,
    markdown_report,
    table_of,
    write_run,
)

GAMMA_FIGURES = {"speedup_against_gamma", "acceptance_length_against_gamma", "position_rates"}
TEMPERATURE_FIGURES = {"acceptance_against_temperature", "speedup_against_temperature"}
COMMON_FIGURES = {"time_split", "acceptance_histograms"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report folder of gamma_rows(), figures and all."""
    run = write_run(tmp_path_factory.mktemp("run"), gamma_rows())
    return write(gamma_sweep.build(run), run).parent


def test_the_table_holds_the_rows_numbers(folder: Path) -> None:
    lines = table_of(folder / "report.md")
    order = [(gamma, verifier) for gamma in ("1", "3", "12") for verifier in ("naive", "masked")]
    assert [(line["gamma"], line["verifier"]) for line in lines] == order
    assert lines[3] == {
        "gamma": "3", "verifier": "masked", "acceptance rate": "0.61 [0.58, 0.64]",
        "acceptance length": "1.38 [1.27, 1.48]", "overlap": "0.80 [0.77, 0.83]", "tokens/s": "250.0",
        "plain tokens/s": "200.0", "speedup": "1.60 [1.59, 1.61]", "check TV": "0.051",
        "noise mean / q99": "0.050 / 0.061", "p": "0.412",
    }  # fmt: skip
    assert table_of(folder / "table.md") == lines


def test_csv_is_unrounded_and_latex_is_whole(folder: Path) -> None:
    table = pd.read_csv(folder / "table.csv", dtype={"speedup_low": str}).sort_values(
        "job"
    )  # pandas rounds as it reads
    assert table["speedup_low"].map(float).tolist() == [row.speedup_low for row in gamma_rows()]
    assert set(table) == {field.name for field in dataclasses.fields(RunRow)}
    latex = (folder / "table.tex").read_text(encoding="utf-8").splitlines()
    marks = [line for line in latex if line.startswith("\\")]
    assert marks == ["\\begin{tabular}{@{}rlrrrrrrrrr@{}}", "\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}"]
    assert [line.count("&") for line in latex if line.endswith("\\\\")] == [10] * 7


def test_lists_in_the_csv_are_json(folder: Path) -> None:
    table = pd.read_csv(folder / "table.csv").set_index("job")
    for job, row in enumerate(gamma_rows()):
        for name in ("acceptance_histogram", "joint_rates", "batch_seconds"):
            assert json.loads(table.loc[job, name]) == getattr(row, name)


@pytest.mark.usefixtures("blank_figures")
def test_a_rate_that_is_missing_is_null_in_the_csv(tmp_path: Path) -> None:
    run = write_run(tmp_path, [make_row(gamma=2, joint_rates=[0.5, None])])
    table = pd.read_csv(write(gamma_sweep.build(run), run).parent / "table.csv")
    assert json.loads(table["joint_rates"][0]) == [0.5, None]


def test_every_figure_is_written_and_linked(folder: Path) -> None:
    report = (folder / "report.md").read_text(encoding="utf-8")
    stems = GAMMA_FIGURES | COMMON_FIGURES | {"empirical_against_target"}
    files = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert set(files) == {stem + suffix for stem in stems for suffix in (".pdf", ".png")}
    for name, content in files.items():
        assert content.startswith(b"%PDF" if name.endswith("pdf") else b"\x89PNG")
        assert name.endswith("pdf") or f"](figures/{name})" in report


def test_the_same_rows_give_the_same_bytes(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    first = [path.read_bytes() for path in files]
    write(gamma_sweep.build(folder.parent), folder.parent)
    assert [path.read_bytes() for path in files] == first


def test_the_fastest_setting_and_where_it_ran(folder: Path) -> None:
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "Fastest: **gamma 3 with masked**, 1.60 [1.59, 1.61] times plain decoding, 250.0 against 200.0 tok" in report
    for text in (
        "specbench 0.1.0, commit",
        "8 cores of Some_CPU [x]",
        "2 threads",
        "PyTorch 2.13.0",
        "0123abc-dirty",
        "transformers 5.23.0",
        "- timed in 3 rounds of plain and speculative decoding",
    ):
        assert text in report


def test_latex_escapes_what_latex_would_read(tmp_path: Path) -> None:
    rows = [make_row(job=i, verifier=name) for i, name in enumerate(("block_rule", "50%&more"))]
    report = gamma_sweep.build(write_run(tmp_path, rows))
    write(dataclasses.replace(report, sections=(Section("Table", report.tables),)), tmp_path)
    latex = (tmp_path / "report/table.tex").read_text(encoding="utf-8")
    assert "block\\_rule" in latex
    assert "50\\%\\&more" in latex


def test_rates_by_position_have_intervals_where_the_step_log_is_there(tmp_path: Path) -> None:
    """Without it they are the row's, as in all other tests here: the log's reader got numpy's int for a gamma."""
    run = write_run(tmp_path, [make_row(gamma=2)])
    labels = {"category": "", "turn": 1, "num_draft_tokens": 2, "draft_depth": 2}
    steps = [
        {"prompt": f"p{i % 4}", "conversation": f"p{i % 4}", "step": i, "num_accepted": i % 3, "num_emitted": i % 3 + 1}
        for i in range(15)
    ]
    write_rows(run / "0" / STEPS, [{**step, **labels} for step in steps], StepRow)
    joint, conditional = gamma_sweep._estimates(run, make_row(gamma=2))
    assert [estimate.value for estimate in joint] == pytest.approx([10 / 15, 5 / 15])
    assert [estimate.value for estimate in conditional] == pytest.approx([10 / 15, 5 / 10])
    assert all(estimate.low < estimate.value < estimate.high for estimate in (*joint, *conditional))


ENDS = [f"{name}_{end}" for name in ("speedup", "acceptance_length", "drafted_per_step") for end in ("low", "high")]
ONE_PROMPT = {"prompts": 1, "rounds": 1, **dict.fromkeys(["round_error", "plain_round_error", *ENDS])}


@pytest.mark.cases(3, 13)
@pytest.mark.parametrize(
    "rows",
    [
        [make_row(gamma=3)],
        [make_row(gamma=0, drafted=0, joint_rates=[], conditional_rates=[], **NO_RATE, **NO_OVERLAP)],
        [make_row(job=i, gamma=gamma, drafter="prompt_lookup", **NO_OVERLAP) for i, gamma in enumerate((1, 2))],
        [make_row(job=i, gamma=gamma, check_draws=0, **UNCHECKED) for i, gamma in enumerate((2, 5))],
        [make_row(job=0), make_row(job=1, verifier="naive", check_draws=0, **UNCHECKED, **NO_OVERLAP)],
        [make_row(job=0, overlap=1 + 1e-9, overlap_high=1 + 1e-9, speedup_low=1.25, speedup_high=1.25 - 1e-15)],
        [make_row(job=i, gamma=i + 2, speedup_low=None, speedup_high=None) for i in range(2)],
        [make_row(job=0, gamma=2, joint_rates=[0.5, None], conditional_rates=[0.5, None])],
        [make_row(job=i, gamma=2, verifier=f"rule_{i}") for i in range(9)],
        [make_row(gamma=2, **ONE_PROMPT)],
        [make_row(gamma=2, **ONE_PROMPT, **NO_OVERLAP)],
    ],
    ids=[
        *("one row", "gamma 0", "no overlap", "no check", "mixed", "rounding", "one batch", "position not reached"),
        *("many verifiers", "one prompt", "one prompt and no overlap"),
    ],
)
@pytest.mark.parametrize("module", [gamma_sweep, temperature_sweep])
def test_any_part_of_a_sweep_is_reported(module: Any, rows: list[RunRow], tmp_path: Path) -> None:
    report = module.build(write_run(tmp_path, rows, empirical=False))
    text = markdown.render(report)
    assert "nan" not in text.lower()
    assert "None" not in text
    assert len(table_of(text)) == len(rows)
    assert {picture.name for picture in report.pictures} >= COMMON_FIGURES
    assert "empirical_against_target" not in {picture.name for picture in report.pictures}
    with style():
        for picture in report.pictures:  # laid out, and not turned into pixels, which takes seconds
            picture.figure.draw_without_rendering()


@pytest.mark.parametrize("module", [drafters, parameters, vocabularies, temperature_sweep])
def test_every_report_cites_the_rules_of_its_verifiers_and_warns_of_synthetic_rows(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are read once."""
    rows = [make_row(job=i, verifier=name, synthetic=i == 1) for i, name in enumerate(("naive", "block", "masked"))]
    run, reads, read = write_run(tmp_path, rows, empirical=False), list[Path](), results.read_rows
    monkeypatch.setattr(results, "read_rows", lambda run_dir: reads.append(run_dir) or read(run_dir))
    report = module.build(run)
    assert report.rules == ("token", "block")
    assert report.warning.startswith("1 of 3 runs are synthetic")
    assert reads == [run]


@pytest.mark.parametrize(
    "rates", [{"gamma": 0, "joint_rates": []}, {"gamma": 2, "joint_rates": [None, None]}], ids=["gamma 0", "no drafts"]
)
def test_without_drafts_the_page_has_no_figure_of_positions(rates: dict[str, Any], tmp_path: Path) -> None:
    rows = [make_row(**rates, conditional_rates=rates["joint_rates"], drafted=0, **NO_RATE, **NO_OVERLAP)]
    report = gamma_sweep.build(write_run(tmp_path, rows, empirical=False))
    assert "position_rates" not in {picture.name for picture in report.pictures}
    assert "position by position" not in markdown.render(report)


def test_a_number_that_is_missing_is_a_dash(tmp_path: Path) -> None:
    run = write_run(tmp_path, [make_row(check_draws=0, **UNCHECKED, **NO_OVERLAP, **NO_RATE)])
    (line,) = table_of(markdown_report(gamma_sweep, run))
    names = ("acceptance rate", "overlap", "check TV", "noise mean / q99", "p")
    assert [line[name] for name in names] == ["-"] * 5
    assert line["speedup"] == "1.25 [1.20, 1.30]"


DIFFERENCES = {
    "gamma": (2, 4),
    "seed": (0, 7),
    "prompt_chunk": (512, None),
    "sampling": ('{"thinking_token_budget": 2}', '{"thinking_token_budget": 8}'),  # which has no column
}


@pytest.mark.cases(8)
@pytest.mark.parametrize("column", DIFFERENCES)
@pytest.mark.parametrize(
    "module", [decode_speed, drafters, gamma_sweep, parameters, temperature_sweep, vocabularies, summary]
)
def test_what_else_varies_tells_rows_apart(
    module: ModuleType, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every table of a report, and in the console's."""
    rows = [make_row(job=job, engine="eager", **{column: value}) for job, value in enumerate(DIFFERENCES[column])]
    shown: list[pd.DataFrame] = []
    if module is summary:
        monkeypatch.setattr(summary, "print_table", lambda table, _: shown.append(table))
        summary.print_summary(frame(rows))
    else:
        shown += [table.shown for table in module.build(write_run(tmp_path, rows)).tables]
    assert [len(table.drop_duplicates()) for table in shown] == [2] * len(shown)
    assert shown


def test_series_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path, [make_row(job=job, gamma=2, seed=seed) for job, seed in enumerate((0, 7))])
    assert set(decoding.read_run(run, "gamma")["series"]) == {"masked, seed 0", "masked, seed 7"}


def test_decoded_prompts_have_a_column_where_rows_differ_in_them(tmp_path: Path) -> None:
    """A setting that is beaten ends earlier, so that its numbers are of fewer prompts."""
    rows, heading = two(prompts_decoded=(6, 9)), "prompts decoded"
    page = markdown_report(gamma_sweep, write_run(tmp_path / "early", rows))
    assert [line[heading] for line in table_of(page)] == ["6", "9"]
    with console.capture() as shown:
        summary.print_summary(frame(rows))
    assert "decoded" in shown.get()
    for name, counts in {"whole": (16, 16), "alike": (6, 6), "older": (None, None)}.items():
        page = markdown_report(gamma_sweep, write_run(tmp_path / name, two(prompts_decoded=counts)))
        assert heading not in table_of(page)[0]


def test_a_rule_that_is_not_lossless_is_marked(tmp_path: Path) -> None:
    rows = [make_row(job=0), make_row(job=1, verifier="greedy_bug", lossless=False, check_tv=0.2, check_p_value=0.001)]
    text = markdown_report(gamma_sweep, write_run(tmp_path, rows))
    assert [line["lossless"] for line in table_of(text)] == ["True", "False"]
    assert "1 of 2 runs lie beyond" in text
    assert "Beyond it: greedy_bug (not declared lossless), in 1 of its runs." in text


def test_certain_tokens_are_not_beyond_noise() -> None:
    zero = {"check_tv": 1e-17, "check_tv_noise": 0.0, "check_tv_noise_q99": 0.0, "check_p_value": 1.0}
    assert "0 of 1 runs lie beyond" in words("shared.drawn", frame([make_row(**zero)]).assign(series="masked"))


def test_at_temperature_0_the_report_says_what_was_checked() -> None:
    certain = {"check_tv": 0.0, "check_tv_noise": 0.0, "check_tv_noise_q99": 0.0, "check_p_value": 1.0}
    rows = [make_row(temperature=0.0, **certain), make_row(temperature=0.0, gamma=2, **{**certain, "check_tv": 0.125})]
    assert telling(frame(rows).assign(series="masked")) is None  # one token a prefix is no distribution to draw
    text = words("shared.drawn", frame(rows[:1]).assign(series="masked"))
    assert "taken 64 times after each of 4 prefixes, has to be the target's likeliest. It was, in 1 of 1 runs." in text
    assert "quantile" not in text
    text = words("shared.drawn", frame([*rows, make_row()]).assign(series="masked"))
    assert "0 of 1 runs lie beyond" in text
    assert "Others came in 1 of 2 runs: 12.5% with masked." in text


def test_the_figure_of_drawn_tokens_is_of_the_run_that_would_show_a_bias() -> None:
    """The fastest run, often at temperature 0, would show nothing."""
    spread = [(0.0, 1.0, 2.0), (0.5, 0.01, 1.5), (1.2, 0.9, 1.0), (1.2, 0.2, 0.8)]
    rows = [
        make_row(job=i, temperature=t, check_p_value=p, speedup=speedup) for i, (t, p, speedup) in enumerate(spread)
    ]
    row, why = telling(frame(rows).assign(series="masked"))
    assert (row.job, why) == (3, "of all, at the highest temperature, the run of the lowest p-value")
    rows[1] = dataclasses.replace(rows[1], check_tv=0.2)
    row, why = telling(frame(rows).assign(series="masked"))
    assert row.job == 1
    assert why.startswith("of the runs beyond the 99% quantile of sampling noise")


def test_agreement_of_verifiers_that_promise_the_same_tokens(tmp_path: Path) -> None:
    rows = [*gamma_rows(), make_row(job=6, gamma=3, verifier="block", acceptance_histogram=[1, 2, 3, 4])]
    report = markdown_report(gamma_sweep, write_run(tmp_path / "same", rows))
    assert "naive and masked promise the same tokens" in report
    assert "identical in all 3 settings" in report
    rows[4] = dataclasses.replace(rows[4], acceptance_histogram=[239, 21, 20, 20])
    report = markdown_report(gamma_sweep, write_run(tmp_path / "other", rows))
    assert "their acceptance histograms differ at gamma 3: rounding" in report


def test_agreement_is_asked_of_runs_of_the_same_sampling(tmp_path: Path) -> None:
    """Under other penalties verifiers accept otherwise, which is no finding about them."""
    rows = [
        make_row(
            job=i, verifier=verifier, frequency_penalty=penalty, acceptance_histogram=[300 - many, many, 50, 25, 9]
        )
        for i, (verifier, (penalty, many)) in enumerate(itertools.product(("naive", "masked"), ((0.0, 90), (1.5, 70))))
    ]
    report = markdown_report(gamma_sweep, write_run(tmp_path, rows))
    assert "identical in all 2 settings" in report


def two(**columns: tuple[Any, Any]) -> list[RunRow]:
    return [make_row(job=i, gamma=1 + i, **{name: values[i] for name, values in columns.items()}) for i in range(2)]


SAMPLING = tuple(json.dumps({"frequency_penalty": 0.5, **stop}) for stop in ({"stop": ["def "]}, {}))
DISTURBED = [dataclasses.replace(row, other_cores=1.5, differing_texts=2 * (row.job == 3)) for row in gamma_rows()]
PHRASES = {  # that a report has for the first rows, and not for the second
    "; **which is the fastest cannot be told**, since the machine was disturbed.": (DISTURBED, gamma_rows()),
    "\n\nOther processes used up to 1.5 of 8 cores, in 6 of 6 runs": (DISTURBED, gamma_rows()),
    "2 texts of later rounds, in 1 of 6 runs, are not those of the first round": (DISTURBED, gamma_rows()),
    'min_p 0, frequency_penalty 0.5, stop ["def "], off; seed 0': (two(sampling=SAMPLING), two()),
    # A sweep may be gone on with after the code has changed, and on another machine.
    "**Rows come from different commits: ": (two(commit=("a", "b")), two(commit=("a", "a"))),
    "**Rows come from different hardware: ": (two(hardware=("a", "b")), two(hardware=("a", "a"))),
    "gamma 4; 6 of the prompts have sampling parameters of": ([make_row(own_sampling=6)], [make_row(own_sampling=0)]),
    "6 to 9 of 16 prompts of embedded": (two(prompts_decoded=(6, 9)), two(prompts_decoded=(16, 16))),
    "; 6 of 16 prompts of embedded": (two(prompts_decoded=(6, 6)), two()),
    "embedded: 6 to 9 of 16 prompts in batches": (two(prompts_decoded=(6, 9)), two(prompts_decoded=(6, 6))),
    "for speedups by Student's t over groups of requests, which were decoded once both ways. Acceptance rate": (
        two(rounds=(1, 1), round_error=(None, None)),
        two(),
    ),
    "for speedups, which are medians of paired rounds, by the scatter of batches and of rounds. Acceptance rate": (
        two(rounds=(1, 3), round_error=(None, 0.002)),
        two(rounds=(1, 1), round_error=(None, None)),
    ),
    "of their own": ([make_row(own_sampling=6)], [make_row(own_sampling=None)]),  # an older row
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_stands_where_rows_give_reason_for_it(phrase: str, tmp_path: Path) -> None:
    texts = [markdown_report(gamma_sweep, write_run(tmp_path / str(i), rows)) for i, rows in enumerate(PHRASES[phrase])]
    assert [phrase in text.replace("\\", "") for text in texts] == [True, False]


def test_temperatures_are_ordered_and_their_extremes_named(tmp_path: Path) -> None:
    overlaps = {1.2: 0.7, 0.0: 0.9, 0.85: 0.8}
    rows = [
        make_row(job=i, temperature=t, overlap=o, exp="temperature_sweep") for i, (t, o) in enumerate(overlaps.items())
    ]
    report = temperature_sweep.build(write_run(tmp_path, rows))
    text = markdown.render(report)
    assert [line["temperature"] for line in table_of(text)] == ["0", "0.85", "1.2"]
    low = "Overlap goes from 0.70 [0.77, 0.83] at temperature 1.2 (masked)"
    assert f"{low} to 0.90 [0.77, 0.83] at temperature 0 (masked)." in text
    figures = {picture.name for picture in report.pictures}
    assert figures == TEMPERATURE_FIGURES | COMMON_FIGURES | {"empirical_against_target"}


@pytest.mark.cases(2)
@pytest.mark.parametrize("module", [gamma_sweep, decode_speed, drafters, parameters, vocabularies])
def test_latency_is_shown_where_rows_have_it(tmp_path, module):
    """Rows of an earlier version have no latencies, so their report has no such section."""
    names = [f"{statistic}_{name}_ms" for name in ("ttft", "tpot") for statistic in ("mean", "p50", "p99")]
    values = {name: 10.0 + place for place, name in enumerate(names)}
    page = markdown_report(module, write_run(tmp_path / "new", gamma_rows(engine="eager", **values)))
    lines = table_of(page.split("## Latency")[1])
    assert {line["TTFT p99"] for line in lines} == {"12.00"}
    assert {line["TPOT mean"] for line in lines} == {"13.00"}
    assert len({tuple(line.values()) for line in lines}) == len(gamma_rows())  # no two rows are alike
    assert "## Latency" not in markdown_report(module, write_run(tmp_path / "old", gamma_rows(engine="eager")))


def test_drafts_of_the_targets_vocabulary_alone_are_reported(tmp_path):
    """A sweep that was narrowed to them had no report, and ended with exit status 1."""
    text = markdown_report(vocabularies, write_run(tmp_path, [make_row(exp="vocabularies")]))
    assert "No draft of this run has a vocabulary of its own." in text
    assert [row["shared tokens"] for row in table_of(text)] == ["all"]
