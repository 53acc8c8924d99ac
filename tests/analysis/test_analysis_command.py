"""An analysis as a command: what it prints, and runs and rows that it cannot read."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.analysis import (
    engines,
    exactness,
    gamma_sweep,
    metrics,
    predicted_speedup,
    replay_sweep,
    verifier_agreement,
    verifier_latency,
)
from specbench.analysis.command import main
from specbench.core.errors import ConfigError
from specbench.metrics.results import RESULT_SCHEMA, RESULTS, write_rows
from specbench.reports import markdown, templates
from tests.helpers.command_lines import ROOT, new_process
from tests.helpers.made_up_rows import gamma_rows, make_row, markdown_report, table_of, write_run


def test_the_command_prints_the_table_and_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    write_run(tmp_path / "outputs" / "gamma_sweep" / "latest", gamma_rows())
    monkeypatch.setattr("specbench.analysis.command.write", lambda _, run_dir: run_dir / "report" / "report.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gamma_sweep"])
    main("gamma_sweep", gamma_sweep.build)
    printed = capsys.readouterr().out
    assert "1.60 [1.59, 1.61]" in printed
    assert printed.rstrip().endswith("outputs/gamma_sweep/latest/report/report.md")


def refused(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> str:
    """What the command says to a run that it refuses."""
    monkeypatch.setattr(sys, "argv", ["gamma_sweep", str(run)])
    with pytest.raises(SystemExit) as stopped:
        main("gamma_sweep", gamma_sweep.build)
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


@pytest.mark.parametrize(("made", "message"), [(False, "no such folder"), (True, "no results.parquet")])
def test_a_run_that_is_not_there_is_a_message_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, made: bool, message: str
) -> None:
    if made:
        (tmp_path / "gone").mkdir()
    error = refused(tmp_path / "gone", monkeypatch, capsys)
    assert error.startswith(f"RUN_DIR={tmp_path / 'gone'}: {message}")


def test_a_report_that_cannot_be_written_is_a_message_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = write_run(tmp_path / "run", gamma_rows())
    (run / "report").write_text("in the way")
    error = refused(run, monkeypatch, capsys)
    assert error.startswith(f"cannot write to {run / 'report'} (File exists). Free space there, make it writable, or")
    assert "resume" not in error


def test_a_run_without_rows_is_an_error(tmp_path: Path) -> None:
    write_rows(tmp_path / RESULTS, [], RESULT_SCHEMA)
    with pytest.raises(ConfigError, match="empty"):
        gamma_sweep.build(tmp_path)


def test_rows_of_another_protocol_or_schema_are_named(tmp_path: Path) -> None:
    """A table of other columns, of one whose type has changed since, and a file cut short."""
    run = write_run(tmp_path / "run", [make_row(protocol="cost", speedup=None, version=None)], empirical=False)
    with pytest.raises(
        ConfigError, match=r"no speedup in its rows, which are of cost, specbench older than 0.1\. Give"
    ):
        gamma_sweep.build(run)
    path = run / "0" / RESULTS
    pq.write_table(pa.table({"job": ["zero"], "exp": ["gamma_sweep"]}), path)
    with pytest.raises(ConfigError, match=r"rows of another version of specbench, or damaged .*run it again"):
        gamma_sweep.build(run)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"rows of another version of specbench, or damaged"):
        gamma_sweep.build(run)


@pytest.mark.parametrize(("analysis", "name"), [(gamma_sweep, "steps.parquet"), (exactness, "certificate.json")])
def test_a_damaged_file_of_a_job_is_named(analysis: types.ModuleType, name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path, [make_row()], empirical=False)
    (run / "0" / name).write_bytes(b"cut off")
    with pytest.raises(ConfigError, match=rf"RUN_DIR=.*/0/{name}: .*damaged"):
        analysis.build(run)


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        (replay_sweep, r"no points\.parquet in its jobs"),
        (predicted_speedup, r"no predicted\.parquet in its jobs"),
        (verifier_latency, r"no verifier was timed in it"),
        (verifier_agreement, r"no agreement\.parquet in its jobs"),
        (metrics, r"no steps\.parquet"),
        (engines, r"0/certificate\.json: no certificate of an engine .*of protocol=judge"),
    ],
)
def test_a_run_of_another_experiment_is_named(analysis: types.ModuleType, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"RUN_DIR=.*{message}"):
        analysis.build(write_run(tmp_path, [make_row(source="openvino")], empirical=False))


def test_a_certificate_of_an_engine_is_not_read_as_a_verifiers(tmp_path: Path) -> None:
    run = write_run(tmp_path, [make_row()], empirical=False)
    (run / "0" / "certificate.json").write_text('{"engine": "llama.cpp", "findings": []}')
    with pytest.raises(ConfigError, match=r"RUN_DIR=.*json: no certificate of a verifier\. Use protocol=exactness"):
        exactness.build(run)


@pytest.mark.usefixtures("blank_figures")
def test_certificates_of_one_verifier_have_figures_of_their_own(tmp_path: Path) -> None:
    """As of two seeds: the second figure of a name had no place on the page, and there was no report."""
    run = write_run(tmp_path, [make_row(job=job) for job in range(3)], empirical=False)
    for job, verifier in enumerate(("masked", "masked", "naive")):
        certificate = {
            "verifier": verifier, "rule": "token", "verdict": "lossless", "headline": "lossless",
            "words": ["The tokens of a `my_rule` depend on `streams.uniform` alone.", "It said: ` *a_b*."],
            "bounds": [{"method": "located", "located": 0.0, "proved": True}], "tv_upper_bound": 1e-3,
            "inputs_upper_bound": 1e-3, "draws": 10, "seconds": 1.0, "suite": "small", "seed": 0, "covered": [],
            "not_covered": ["padded drafts: `takes_padded` is not set", "the sky"], "environment": {}, "settings": {},
        }  # fmt: skip
        (run / str(job) / "certificate.json").write_text(json.dumps(certificate))
        cell = {"fixture": "a", "draws": 100, "prob": 1.0, "share": 1.0}
        pq.write_table(pa.Table.from_pylist([cell]), run / str(job) / "joint_cells.parquet")
    report = exactness.build(run)
    assert [picture.name for picture in report.pictures] == ["joint_masked_0", "joint_masked_1", "joint_naive"]
    text = markdown.render(report)
    assert "of a `my_rule` depend on `streams.uniform` alone. It said: \\` \\*a_b\\*." in text
    assert "- not: padded drafts: `takes_padded` is not set; the sky" in text
    assert all(f"\n- **{name}**: lossless" in text for name in ("masked (job 0)", "masked (job 1)", "naive"))


def test_the_analysis_of_contributing_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a sampler, a pair, an experiment\n")
    block, template = (rest.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "jinja"))
    (tmp_path / "sky.md").write_text(template)
    monkeypatch.setattr(templates.LOADER, "searchpath", [str(tmp_path), *templates.LOADER.searchpath])
    module = types.ModuleType("specbench.analysis.sky")
    module.__package__ = "specbench.analysis"
    exec(compile(block, "CONTRIBUTING.md", "exec"), vars(module))
    text = markdown_report(module, write_run(tmp_path / "run", [make_row()]))
    assert "\nIt is **blue** in 1 runs.\n" in text
    assert table_of(text) == [{"verifier": "masked", "speedup": "1.25 [1.20, 1.30]"}]
    assert "## Where it ran" in text


def test_reports_load_no_model_library_and_no_window_system(tmp_path: Path) -> None:
    """As the command, in a process of its own, since these tests have loaded PyTorch already."""
    code = "import sys, analysis.gamma_sweep, analysis.temperature_sweep; print(*sys.modules)"
    loaded = new_process(tmp_path, "-c", code).stdout.split()
    assert "matplotlib.figure" in loaded
    assert not {"torch", "transformers", "hydra", "wandb", "matplotlib.pyplot"} & set(loaded)
