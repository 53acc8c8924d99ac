"""Reports and figures from made-up rows: every number shown is a row's own, and any part of a sweep can be shown."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from analysis import gamma_sweep, temperature_sweep
from analysis import report as reports
from specbench import results, theory
from specbench.errors import ConfigError
from specbench.plots import decode as plots
from specbench.results import EMPIRICAL, EMPIRICAL_SCHEMA, RESULT_SCHEMA, RESULTS, RunRow, write_rows

UNCHECKED = dict.fromkeys(("check_tv", "check_tv_noise", "check_tv_noise_q99", "check_p_value"))
NO_OVERLAP = dict.fromkeys(("overlap", "overlap_low", "overlap_high"))
NO_RATE = dict.fromkeys(("acceptance_rate", "acceptance_rate_low", "acceptance_rate_high"))
GAMMA_FIGURES = {"speedup_against_gamma", "acceptance_length_against_gamma", "position_rates"}
TEMPERATURE_FIGURES = {"acceptance_against_temperature", "speedup_against_temperature"}
COMMON_FIGURES = {"time_split", "acceptance_histograms"}
EMPIRICAL_ROWS = [
    {"prefix": prefix, "token_id": i, "token": token, "prob": prob, "count": count, "draws": 64}
    for prefix in ("Once upon", "$x_1$ is \u4e2d\n")
    for i, (token, prob, count) in enumerate([(" a", 0.5, 33), ("\n", 0.3, 18), (" $y$", 0.2, 13), (" no", 0.0, 0)])
]


def make_row(**changes: Any) -> RunRow:
    """A plausible row; gamma decides the lengths of its lists."""
    gamma, job = changes.get("gamma", 4), changes.get("job", 0)
    values: dict[str, Any] = {
        "exp": "gamma_sweep", "job": job, "protocol": "decode",
        "created": f"2026-01-01T00:{job:02d}:00Z", "commit": "0123abc-dirty",
        "hardware": "8 cores of Some_CPU [x]", "threads": 2, "device": "cpu", "dtype": "float32", "python": "3.11.7",
        "torch": "2.13.0", "transformers": "5.23.0", "pair": "embedded", "target": "embedded:target",
        "draft": "embedded:draft", "drafter": "model", "sampler": "temperature", "temperature": 1.0, "top_k": 0,
        "top_p": 1.0, "min_p": 0.0, "verifier": "masked", "lossless": True, "workload": "embedded", "prompts": 16,
        "gamma": gamma, "batch_size": 1, "max_new_tokens": 64, "seed": 0,
        "tokens": 1000, "steps": 400, "drafted": max(400 * gamma, 0), "accepted": 600 if gamma else 0,
        "acceptance_histogram": [400 - 40 * gamma, *([40] * gamma)],
        "joint_rates": [0.8**i for i in range(1, gamma + 1)], "conditional_rates": [0.8] * gamma,
        "acceptance_rate": 0.61, "acceptance_rate_low": 0.581, "acceptance_rate_high": 0.639,
        "acceptance_length": 2.5, "acceptance_length_low": 2.31, "acceptance_length_high": 2.72,
        "overlap": 0.8, "overlap_low": 0.77, "overlap_high": 0.83,
        "seconds": 4.0, "tokens_per_second": 250.0, "plain_tokens": 1000, "plain_seconds": 5.0,
        "plain_tokens_per_second": 200.0, "speedup": 1.25, "speedup_low": 1.2, "speedup_high": 1.3,
        "seconds_draft": 1.0, "seconds_target": 2.0, "seconds_verify": 0.7, "seconds_rest": 0.3,
        "check_prefixes": 4, "check_draws": 64, "check_tv": 0.051, "check_tv_noise": 0.05,
        "check_tv_noise_q99": 0.061, "check_p_value": 0.412,
    }  # fmt: skip
    return RunRow(**{**values, **changes})


def frame(rows: list[RunRow]) -> pd.DataFrame:
    """Rows as W&B would plot them, without a parquet file in between: None stays None."""
    return pd.DataFrame([dataclasses.asdict(row) for row in rows])


def write_run(folder: Path, rows: list[RunRow], empirical: bool = True) -> Path:
    """A sweep's folder as a run leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        job = folder / str(row.job)
        job.mkdir()
        write_rows(job / RESULTS, [row], RESULT_SCHEMA)
        if empirical:
            write_rows(job / EMPIRICAL, EMPIRICAL_ROWS, EMPIRICAL_SCHEMA)
    results.collect(folder)
    return folder


def gamma_rows(**changes: Any) -> list[RunRow]:
    """Gammas 1, 3 and 12 for two verifiers; masked is fastest at gamma 3, with intervals apart from all others."""
    speeds = {1: (1.1, 1.15), 3: (1.3, 1.6), 12: (0.8, 0.9)}
    rows = []
    for gamma in (12, 1, 3):
        for verifier, speedup in zip(("naive", "masked"), speeds[gamma], strict=True):
            bounds = {"speedup": speedup, "speedup_low": speedup - 0.011, "speedup_high": speedup + 0.013}
            fields = {"job": len(rows), "gamma": gamma, "verifier": verifier, "acceptance_length": 1 + gamma / 8}
            low_high = {"acceptance_length_low": 0.9 + gamma / 8, "acceptance_length_high": 1.1 + gamma / 8}
            histogram = [300 - 20 * gamma, *([20] * gamma)]
            rows.append(make_row(**{**fields, **low_high, **bounds, "acceptance_histogram": histogram, **changes}))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report folder of gamma_rows(), figures and all."""
    return gamma_sweep.report(write_run(tmp_path_factory.mktemp("run"), gamma_rows())).parent


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lays figures out and draws them, without turning them into pixels and embedded fonts, which takes seconds."""

    def savefig(figure: Figure, path: Path, **_: Any) -> None:
        if path.suffix == ".png":
            figure.draw_without_rendering()
        path.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a report says: its figures are made, but not laid out."""
    monkeypatch.setattr(Figure, "savefig", lambda _figure, path, **_: path.touch())


def table_of(path: Path) -> list[dict[str, str]]:
    """The lines of the first Markdown table of a file by their headings."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, line, strict=True)) for line in body]


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
    table = pd.read_csv(folder / "table.csv").sort_values("job")
    assert table["speedup_low"].tolist() == [row.speedup_low for row in gamma_rows()]
    assert set(table) == {field.name for field in dataclasses.fields(RunRow)}
    latex = (folder / "table.tex").read_text(encoding="utf-8").splitlines()
    marks = [line for line in latex if line.startswith("\\")]
    assert marks == ["\\begin{tabular}{rlrrrrrrrrr}", "\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}"]
    assert [line.count("&") for line in latex if line.endswith("\\\\")] == [10] * 7


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
    gamma_sweep.report(folder.parent)
    assert [path.read_bytes() for path in files] == first


def test_the_fastest_setting_and_where_it_ran(folder: Path) -> None:
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "**gamma 3 with masked**, 1.60 [1.59, 1.61] over plain decoding, 250.0 against 200.0 tokens/s.\n" in report
    for text in ("8 cores of Some_CPU [x]", "2 threads", "PyTorch 2.13.0", "0123abc-dirty", "transformers 5.23.0"):
        assert text in report


@pytest.mark.usefixtures("undrawn")
def test_latex_escapes_what_latex_would_read(tmp_path: Path) -> None:
    rows = [make_row(job=i, verifier=name) for i, name in enumerate(("block_rule", "50%&more"))]
    latex = (gamma_sweep.report(write_run(tmp_path, rows)).parent / "table.tex").read_text(encoding="utf-8")
    assert "block\\_rule" in latex
    assert "50\\%\\&more" in latex


def test_settings_that_the_intervals_do_not_tell_apart_are_named() -> None:
    rows = [make_row(job=1, gamma=2, speedup_high=1.31), make_row(job=2, gamma=4, speedup=1.32, speedup_low=1.31)]
    results_ = frame([*rows, make_row(job=3, gamma=6, speedup_high=1.3099)]).assign(series="masked")
    assert reports.fastest(results_, "gamma").endswith("Its interval overlaps with those of gamma 2 (masked).")


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ([(0.8, 0.7, 0.9)], " That is slower. Nothing here is shown to be faster than plain decoding."),
        ([(1.1, 0.9, 1.3)], " The interval holds 1. Nothing here is shown to be faster than plain decoding."),
        ([(1.1, 1.01, 1.3)], "tokens/s."),
        ([(1.2, 1.2, 1.2), (1.1, 1.1, 1.1)], "one. Nothing here is shown to be faster than plain decoding."),
        ([(1.4, 0.9, 1.9), (1.2, 1.1, 1.3)], " The interval holds 1. Its interval overlaps with those of gamma 4 (a)."),
    ],
)
def test_no_gain_is_not_called_one(bounds: list[tuple[float, float, float]], said: str) -> None:
    names = ("speedup", "speedup_low", "speedup_high")
    rows = frame([make_row(**dict(zip(names, values, strict=True))) for values in bounds]).assign(series="a")
    assert reports.fastest(rows, "gamma").endswith(said)
    assert "[1.20, 1.20]" not in reports.fastest(rows, "gamma")  # one batch: not an interval of width 0


def test_the_closed_form_uses_the_fastest_runs_overlap_and_cost() -> None:
    text = gamma_sweep.closed_form(frame([make_row(gamma=4, drafted=2000), make_row(gamma=8, speedup=1.1)]))
    # 1 s for 2000 drafted tokens, 5 s for 1000 plain ones
    assert "drafting a token took 0.10 of" in text
    assert f"the speedup would be {theory.expected_speedup(0.8, 4, 0.1):.2f} there" in text
    best = theory.best_gamma(0.8, 0.1)
    assert f"at most {theory.expected_speedup(0.8, best, 0.1):.2f}, at gamma {best} " in text


@pytest.mark.parametrize(
    "rows",
    [
        [make_row(gamma=3)],
        [make_row(gamma=0, drafted=0, joint_rates=[], conditional_rates=[], **NO_RATE, **NO_OVERLAP)],
        [make_row(job=i, gamma=gamma, drafter="prompt_lookup", **NO_OVERLAP) for i, gamma in enumerate((1, 2))],
        [make_row(job=i, gamma=gamma, check_draws=0, **UNCHECKED) for i, gamma in enumerate((2, 5))],
        [make_row(job=0), make_row(job=1, verifier="naive", check_draws=0, **UNCHECKED, **NO_OVERLAP)],
        [make_row(job=0, overlap=1 + 1e-9, overlap_high=1 + 1e-9, speedup_low=1.25, speedup_high=1.25 - 1e-15)],
        [make_row(job=0, gamma=2, joint_rates=[0.5, None], conditional_rates=[0.5, None])],
        [make_row(job=i, gamma=2, verifier=f"rule_{i}") for i in range(9)],
    ],
    ids=["one row", "gamma 0", "no overlap", "no check", "mixed", "rounding", "position not reached", "many verifiers"],
)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("module", [gamma_sweep, temperature_sweep])
def test_any_part_of_a_sweep_is_reported(module: Any, rows: list[RunRow], tmp_path: Path) -> None:
    report = module.report(write_run(tmp_path, rows, empirical=False)).read_text(encoding="utf-8")
    assert "nan" not in report.lower()
    assert "None" not in report
    assert len(table_of(tmp_path / "report" / "table.md")) == len(rows)
    figures = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert figures >= COMMON_FIGURES
    assert "empirical_against_target" not in figures


@pytest.mark.usefixtures("undrawn")
def test_a_number_that_is_missing_is_a_dash(tmp_path: Path) -> None:
    gamma_sweep.report(write_run(tmp_path, [make_row(check_draws=0, **UNCHECKED, **NO_OVERLAP, **NO_RATE)]))
    (line,) = table_of(tmp_path / "report" / "table.md")
    names = ("acceptance rate", "overlap", "check TV", "noise mean / q99", "p")
    assert [line[name] for name in names] == ["-"] * 5
    assert line["speedup"] == "1.25 [1.20, 1.30]"


@pytest.mark.usefixtures("undrawn")
def test_what_else_varies_tells_rows_apart(tmp_path: Path) -> None:
    rows = [make_row(job=i, gamma=2, seed=seed, temperature=t) for i, (seed, t) in enumerate([(0, 0.5), (7, 0.5)])]
    report = gamma_sweep.report(write_run(tmp_path, rows))
    assert [(line["verifier"], line["seed"]) for line in table_of(report)] == [("masked", "0"), ("masked", "7")]
    assert set(reports.read_run(tmp_path, "gamma")["series"]) == {"masked, seed 0", "masked, seed 7"}


@pytest.mark.usefixtures("undrawn")
def test_a_rule_that_is_not_lossless_is_marked(tmp_path: Path) -> None:
    rows = [make_row(job=0), make_row(job=1, verifier="greedy_bug", lossless=False, check_tv=0.2, check_p_value=0.001)]
    report = gamma_sweep.report(write_run(tmp_path, rows))
    assert [line["lossless"] for line in table_of(report)] == ["True", "False"]
    text = report.read_text(encoding="utf-8")
    assert "1 of 2 runs lie beyond" in text
    assert "Beyond it: greedy_bug (not declared lossless), in 1 of its runs." in text


def test_certain_tokens_are_not_beyond_noise() -> None:
    zero = {"check_tv": 1e-17, "check_tv_noise": 0.0, "check_tv_noise_q99": 0.0, "check_p_value": 1.0}
    assert "0 of 1 runs lie beyond" in reports.exactness(frame([make_row(**zero)]).assign(series="masked"))


@pytest.mark.usefixtures("undrawn")
def test_agreement_of_verifiers_that_promise_the_same_tokens(tmp_path: Path) -> None:
    rows = [*gamma_rows(), make_row(job=6, gamma=3, verifier="block", acceptance_histogram=[1, 2, 3, 4])]
    report = gamma_sweep.report(write_run(tmp_path / "same", rows)).read_text(encoding="utf-8")
    assert "naive and masked promise the same tokens" in report
    assert "identical in all 3 settings" in report
    rows[4] = dataclasses.replace(rows[4], acceptance_histogram=[239, 21, 20, 20])
    report = gamma_sweep.report(write_run(tmp_path / "other", rows)).read_text(encoding="utf-8")
    assert "their acceptance histograms differ at gamma 3: rounding" in report


@pytest.mark.usefixtures("undrawn")
def test_temperatures_are_ordered_and_their_extremes_named(tmp_path: Path) -> None:
    overlaps = {1.2: 0.7, 0.0: 0.9, 0.85: 0.8}
    rows = [
        make_row(job=i, temperature=t, overlap=o, exp="temperature_sweep") for i, (t, o) in enumerate(overlaps.items())
    ]
    report = temperature_sweep.report(write_run(tmp_path, rows))
    assert [line["temperature"] for line in table_of(report)] == ["0", "0.85", "1.2"]
    text = report.read_text(encoding="utf-8")
    low = "Overlap goes from 0.70 [0.77, 0.83] at temperature 1.2 (masked)"
    assert f"{low} to 0.90 [0.77, 0.83] at temperature 0 (masked)." in text
    figures = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert figures == TEMPERATURE_FIGURES | COMMON_FIGURES | {"empirical_against_target"}


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_the_table_and_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    write_run(tmp_path / "outputs" / "gamma_sweep" / "latest", gamma_rows())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gamma_sweep"])
    reports.main("gamma_sweep", "gamma", gamma_sweep.report)
    printed = capsys.readouterr().out
    assert "1.60 [1.59, 1.61]" in printed
    assert printed.rstrip().endswith("outputs/gamma_sweep/latest/report/report.md")


@pytest.mark.parametrize(("made", "said"), [(False, "no such folder"), (True, "no results.parquet")])
def test_a_run_that_is_not_there_is_a_message_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, made: bool, said: str
) -> None:
    if made:
        (tmp_path / "gone").mkdir()
    monkeypatch.setattr(sys, "argv", ["gamma_sweep", str(tmp_path / "gone")])
    with pytest.raises(SystemExit) as stopped:
        reports.main("gamma_sweep", "gamma", gamma_sweep.report)
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"RUN_DIR={tmp_path / 'gone'}: {said}")


def test_a_run_without_rows_is_an_error(tmp_path: Path) -> None:
    write_rows(tmp_path / RESULTS, [], RESULT_SCHEMA)
    with pytest.raises(ConfigError, match="empty"):
        gamma_sweep.report(tmp_path)


def test_reports_load_no_model_library_and_no_window_system() -> None:
    """As the command, in a process of its own, since these tests have loaded PyTorch already."""
    code = "import sys, analysis.gamma_sweep, analysis.temperature_sweep; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "matplotlib.figure" in loaded
    assert not {"torch", "transformers", "hydra", "wandb", "matplotlib.pyplot"} & set(loaded)


def lines_of(figure: Figure) -> dict[str, np.ndarray]:
    """x and y of each labelled line."""
    return {str(line.get_label()): np.array(line.get_xydata()) for line in figure.axes[0].lines}


def heights(axes: Axes) -> list[float]:
    """Of all bars."""
    return [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]


def segments(axes: Axes) -> list[np.ndarray]:
    """x and y of both ends of each interval, or other unlabelled line."""
    return [line for lines in axes.collections if isinstance(lines, LineCollection) for line in lines.get_segments()]


def test_speedup_figure_shows_rows_intervals_and_the_best() -> None:
    figure = plots.speedup_against_gamma(frame(gamma_rows()))
    naive, masked = lines_of(figure)["naive"], lines_of(figure)["masked"]
    assert naive[:, 1].tolist() == [1.1, 1.3, 0.8]
    assert masked[:, 1].tolist() == [1.15, 1.6, 0.9]
    assert any(np.allclose(line[:, 1], [1.589, 1.613]) for line in segments(figure.axes[0]))
    assert [text.get_text() for text in figure.axes[0].texts] == [r"$\gamma$ = 3: 1.60$\times$"]


def test_verifiers_of_equal_acceptance_are_both_visible() -> None:
    lines = lines_of(plots.acceptance_length_against_gamma(frame(gamma_rows())))
    assert (lines["naive"][:, 1] == lines["masked"][:, 1]).all()
    assert (lines["masked"][:, 0] - lines["naive"][:, 0]).min() > 0.1


def test_acceptance_length_is_shown_with_theory_and_ceiling() -> None:
    lines = lines_of(plots.acceptance_length_against_gamma(frame(gamma_rows())))
    expected = [theory.expected_tokens(0.8, gamma) for gamma in (1, 3, 12)]
    assert lines["independent acceptance at the overlap"].tolist() == [
        list(p) for p in zip((1, 3, 12), expected, strict=True)
    ]
    assert lines[r"ceiling $\gamma + 1$"].tolist() == [[1, 2], [3, 4], [12, 13]]


def test_time_split_stacks_to_the_time_of_a_token() -> None:
    (axes,) = plots.time_split(frame([make_row(gamma=2)])).axes
    assert heights(axes) == pytest.approx([1.0, 2.0, 0.7, 0.3])
    assert [bar.get_y() for bar in axes.patches if isinstance(bar, Rectangle)] == pytest.approx([0, 1.0, 3.0, 3.7])
    (plain,) = segments(axes)
    assert plain[:, 1].tolist() == [5.0, 5.0]


def test_position_rates_are_both_visible_where_they_are_equal() -> None:
    lines = list(lines_of(plots.position_rates([0.9, 0.5, None], [0.9, 0.6, None])).values())
    assert [line[:2, 1].tolist() for line in lines] == [[0.9, 0.6], [0.9, 0.5]]
    assert lines[1][0, 0] - lines[0][0, 0] > 0.05


def test_histograms_are_shares_of_steps() -> None:
    figure = plots.acceptance_histograms(frame(gamma_rows()))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [rf"$\gamma$ = {gamma}" for gamma in (1, 3, 12)]
    assert heights(figure.axes[1]) == pytest.approx(2 * [0.8, *3 * [20 / 300]])


def test_a_forbidden_token_shows_among_all_others() -> None:
    rows = pd.DataFrame(EMPIRICAL_ROWS[:4]).assign(count=[28, 18, 13, 5])
    axes = plots.empirical_against_target(rows, top=3).axes[0]
    outside = next(line for line in axes.lines if "outside" in str(line.get_label()))
    assert np.array(outside.get_xydata()).tolist() == [[5 / 64, 3]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["' a'", r"'\n'", "' $y$'", "all others"]


def test_shares_and_band_of_the_empirical_check() -> None:
    axes = plots.empirical_against_target(pd.DataFrame(EMPIRICAL_ROWS)).axes[1]
    inside = next(line for line in axes.lines if "inside" in str(line.get_label()))
    assert np.array(inside.get_xdata()).tolist() == [33 / 64, 18 / 64, 13 / 64, 0, 0]
    bars, bands = axes.containers
    assert [bar.get_width() for bar in bars] == pytest.approx([0.5, 0.3, 0.2, 0, 0])
    low, high = theory.binomial_band(0.3, 64)
    assert (bands[1].get_x(), bands[1].get_width()) == pytest.approx((float(low), float(high - low)))
    assert axes.get_title(loc="left") == r"prefix '$x_1$ is \u4e2d\n'"
    dollars = [text for text in axes.findobj(Text) if "$" in text.get_text()]
    assert len(dollars) >= 2  # a token and the prefix
    assert not any(text.get_parse_math() for text in dollars)  # which are no formulas


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.acceptance_histogram([3, 0, 7], f"a $ title_ {60 * 'long'}"),
        lambda: plots.acceptance_histogram([0], "gamma 0, nothing counted"),
        lambda: plots.position_rates([0.9, 0.5, None], [0.9, 0.6, None]),
        lambda: plots.position_rates([], []),
        lambda: plots.empirical_against_target(pd.DataFrame([{**EMPIRICAL_ROWS[0], "prob": 1 + 1e-12}])),
    ],
)
def test_figures_of_one_run_are_drawn_and_leave_no_setting_behind(draw: Any, tmp_path: Path) -> None:
    with mpl.rc_context({"font.size": 13}):
        before = dict(mpl.rcParams)
        draw().savefig(tmp_path / "figure.png")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "figure.png").stat().st_size > 1000
