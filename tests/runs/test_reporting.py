"""Which module reports on an experiment."""

import pyarrow as pa
import pytest

from specbench.runs import ending
from specbench.runs.ending import tell
from specbench.runs.reporting import analysis_module, analysis_of, fitting
from specbench.runs.state import JobState, Status
from tests.helpers.command_lines import new_process
from tests.helpers.made_up_rows import frame, make_row, write_run
from tests.helpers.small_sweeps import planned_sweep


@pytest.mark.parametrize("exp", ["smoke", "adhoc", "command", "folder", "my/sweep", "a.b", "..", "", "os"])
def test_what_is_no_experiment_has_none(exp):
    assert analysis_module(exp) is None


@pytest.mark.parametrize(
    ("varied", "exp"),
    [
        ({"gamma": (2, 4)}, "gamma_sweep"),
        ({"drafter": ("model", "prompt_lookup"), "gamma": (2, 4)}, "gamma_sweep"),
        ({"temperature": (0.0, 1.0), "drafter": ("model", "prompt_lookup")}, "temperature_sweep"),
        ({"drafter": ("model", "prompt_lookup")}, "drafters"),
        ({"engine": ("eager", "static")}, "decode_speed"),
        ({"verifier": ("masked", "block")}, "gamma_sweep"),
        ({"protocol": ("latency", "latency")}, "verifier_latency"),
        ({"protocol": ("latency", "decode")}, ""),
        ({"protocol": ("cost", "cost")}, ""),
    ],
)
def test_a_sweep_of_ones_own_has_the_report_of_what_it_varies(varied, exp):
    rows = frame([make_row(**{name: values[i] for name, values in varied.items()}) for i in range(2)])
    assert fitting(rows) == exp
    table = pa.Table.from_pandas(rows)
    analysis = analysis_of("adhoc", table)
    assert (analysis.__name__ if analysis else "") == (f"specbench.analysis.{exp}" if exp else "")
    assert analysis_of("verifier_latency", table).__name__ == "specbench.analysis.verifier_latency"
    assert analysis_of("smoke", table) is None
    assert analysis_of("adhoc", None) is None


def adhoc(folder, rows):
    """A sweep of one's own that is done."""
    states = [JobState(f"id{row.job}", Status.DONE) for row in rows]
    return planned_sweep(write_run(folder, rows), *states, exp="adhoc")


@pytest.mark.usefixtures("blank_figures")
def test_a_sweep_of_ones_own_ends_with_its_report(tmp_path, capsys):
    """And a single run with the command that makes one."""
    run = adhoc(tmp_path / "two", [make_row(job=i, gamma=2 + i, exp="adhoc") for i in range(2)])
    assert tell(run, just_ran=False) == 0
    assert (run / "report/report.md").read_text().startswith("# Gamma sweep")
    assert "report/report.md" in capsys.readouterr().err
    run = adhoc(tmp_path / "one", [make_row(exp="adhoc")])
    assert tell(run, just_ran=False) == 0
    assert not (run / "report").exists()
    printed = " ".join(capsys.readouterr().err.split())
    assert "python -m specbench.analysis.gamma_sweep " in printed
    assert printed.count("makes a report of it.") == 1


def test_rows_that_the_fitting_analysis_cannot_read_cost_no_exit_status(tmp_path, capsys):
    run = adhoc(
        tmp_path / "run", [make_row(job=i, gamma=2 + i, exp="adhoc", acceptance_histogram=None) for i in (0, 1)]
    )
    assert tell(run, just_ran=False) == 0
    assert "no report: RUN_DIR=" in " ".join(capsys.readouterr().err.split())


def test_a_users_own_analysis_is_left_alone(tmp_path):
    """The command, in a folder that has a package of that name."""
    (tmp_path / "analysis").mkdir()
    for name in ("__init__", "metrics"):
        (tmp_path / f"analysis/{name}.py").write_text("raise RuntimeError('not this one')")
    done = new_process(tmp_path, "-m", "specbench.analysis.metrics", "gone", status=2)
    assert done.stderr.startswith("RUN_DIR=gone: ")


@pytest.mark.usefixtures("unchecked")
def test_a_fault_in_the_report_keeps_no_killed_job_from_its_run(monkeypatch, capfd):
    def broken(*_):
        raise RuntimeError("broken on purpose")
        yield

    monkeypatch.setattr(ending, "track_report", broken)
    monkeypatch.setattr(ending, "track_sweep", lambda *_: ["job 0 was killed"])
    ending._track(None, True, ended=True, online=False)
    output = "".join(capfd.readouterr())
    assert "broken on purpose" in output
    assert "job 0 was killed" in output
