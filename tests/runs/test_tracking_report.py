"""A report as W&B has it: of report.md, and as wandb-workspaces writes it, read back by wandb-workspaces."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from specbench.core.errors import ConfigError
from specbench.metrics import results
from specbench.reports import Picture, Report, Section, Table
from specbench.reports.markdown import block, bullets, lines, render
from specbench.runs import ending
from specbench.runs.state import JobState, Status
from specbench.runs.status import SweepStatus
from specbench.runs.tracking.sweeps import group_of, publish, track_report
from specbench.runs.tracking.wandb_report import parts_of
from tests.cli.test_tracking_endings import CONFIG
from tests.cli.test_tracking_endings import sweep_of as ended_sweep
from tests.helpers.made_up_rows import make_row
from tests.helpers.wandb_server import Server, wandb_server

WILD = "a|b <script>alert(1)</script> $x$ \\input{y} [z](w) *e*"
REPORT = Report(
    name="mine",
    title="How fast is it? " + "x" * 200,
    question="Is `gamma=4` **fast**? See [the paper](https://arxiv.org/abs/1)",
    warning="1 of 3 jobs is missing",
    sections=(
        Section(
            "Answer",
            (
                "A path: [rows](results.parquet), and code `[a](b)`",
                bullets(["one", Markup("two `x|y`")]),
                lines(["python -m specbench", "[second](line)"]),
                Table(
                    name="table",
                    shown=pd.DataFrame({"verifier": [WILD, "naive"], "speedup": ["1.2", "-"]}),
                    caption="A caption",
                    note="Rows: [table.csv](table.csv)",
                    left=("verifier",),
                ),
                Picture("speed", Figure(), "How fast?", "By gamma, 95% intervals."),
            ),
        ),
    ),
)
WORDS = "\n\n".join(
    (
        "A path: rows, and code `[a](b)`",
        "- one\n- two `x|y`",
        "```\npython -m specbench\n[second](line)\n```",
        block(replace(REPORT.tables[0], note="Rows: table.csv")),
    )
)
SAVED_TITLE = f"{REPORT.title[:125]}..."


def test_all_of_a_report_is_there():
    assert list(parts_of(render(REPORT))) == [
        ("title", REPORT.title),
        ("CalloutBlock", "1 of 3 jobs is missing"),
        ("MarkdownBlock", "Is `gamma=4` **fast**? See [the paper](https://arxiv.org/abs/1)"),
        ("H1", "Answer"),
        ("MarkdownBlock", WORDS),
        ("H2", "How fast?"),
        ("image", "speed"),
        ("MarkdownBlock", "By gamma, 95% intervals."),
    ]
    assert "\\$x\\$" in WORDS  # W&B reads formulas in dollars


def sweep_of(folder: Path, mode: str = "offline") -> SweepStatus:
    """A sweep of two gammas whose report is written."""
    sweep = ended_sweep(folder, JobState("x", Status.DONE), JobState("y", Status.DONE))
    results.write_rows(sweep / "0" / results.RESULTS, [make_row()], results.RESULT_SCHEMA)
    (sweep / "0/position_rates.png").touch()
    (sweep / "report").mkdir()
    (sweep / "report/report.md").write_text(render(REPORT))
    return as_tracked(sweep, mode)


def as_tracked(sweep: Path, mode: str, entity: str = "null", project: str = "p") -> SweepStatus:
    """The same sweep, tracked otherwise."""
    config = (
        CONFIG.replace("offline", mode).replace("null,", f"{entity},", 1).replace("project: p", f"project: {project}")
    )
    (sweep / "0/config.yaml").write_text(config)
    status = SweepStatus.of(sweep)
    assert status is not None
    return status


def report_of(status: SweepStatus) -> Any:
    """What is written of the report."""
    assert list(track_report(status, online=True)) == []
    return json.loads((status.folder / "report/report.wandb.json").read_text())


@pytest.fixture(scope="module")
def status(tmp_path_factory) -> SweepStatus:
    """Without an entity, which is unknown offline."""
    pytest.importorskip("wandb_workspaces")
    return sweep_of(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def written(status) -> Any:
    """The report."""
    report = report_of(status)
    assert {path.name for path in (status.folder / "report").iterdir()} == {"report.md", "report.wandb.json"}
    return report


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic's, in wandb-workspaces
def test_w_and_b_reads_its_report(written):
    """By the models of wandb-workspaces, which call what they do not know an unknown block."""
    from wandb_workspaces.reports.v2 import internal

    spec = internal.Spec.model_validate(written["spec"])
    kinds = [type(block).__name__ for block in spec.blocks]
    for kind in ("CalloutBlock", "Heading", "MarkdownBlock", "PanelGrid"):
        assert kind in kinds
    assert "UnknownBlock" not in kinds
    assert (written["displayName"], written["projectName"]) == (SAVED_TITLE, "p")


def test_panels_show_the_group(status, written):
    """Figures of the sweep's own run, figures and histograms of its jobs'. Filters hold the very name of the group."""
    grids = [block["metadata"] for block in written["spec"]["blocks"] if block["type"] == "panel-grid"]
    assert len(grids) == 2
    filters = [json.dumps(grid["runSets"][0]["filters"]) for grid in grids]
    for panel_filter in filters:
        assert json.dumps(group_of("mine", status.folder)) in panel_filter
    assert '"sweep"' in filters[0]
    shown = [panel for grid in grids for panel in grid["panelBankSectionConfig"]["panels"]]
    media = [panel["config"]["mediaKeys"] for panel in shown if panel["viewType"] == "Media Browser"]
    assert media == [["report/speed"], ["charts/acceptance_histogram", "position_rates"]]
    points = [panel["config"] for panel in shown if panel["viewType"] == "Scatter Plot"]  # of verifiers there are none
    assert [(point["xAxis"], point["yAxis"]) for point in points] == [
        ("config:gamma.value", "summary:speedup"), ("config:gamma.value", "summary:acceptance_length"),
    ]  # fmt: skip


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Server]:
    """A stand-in for W&B's, and an environment that has a key for it."""
    pytest.importorskip("wandb_workspaces")
    with wandb_server() as running:
        for name, value in {"BASE_URL": running.url, "API_KEY": "k" * 40, "ERROR_REPORTING": "false"}.items():
            monkeypatch.setenv(f"WANDB_{name}", value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield running


def test_online_it_is_saved_in_the_project_of_its_runs(server, tmp_path):
    """Under the entity of the key, if none is named."""
    written = report_of(sweep_of(tmp_path, "online"))
    (view,) = server.views
    assert (view["entityName"], view["projectName"]) == (written["entityName"], "p") == ("e", "p")
    assert view["displayName"] == written["displayName"]
    kinds = [[block["type"] for block in spec["blocks"]] for spec in (json.loads(view["spec"]), written["spec"])]
    assert kinds[0] == kinds[1]


@pytest.mark.thorough
def test_written_again_it_is_the_same_report_unless_it_is_of_another_project(server, tmp_path):
    """Also if it could not be saved in between; the stand-in calls each report VIEW."""
    sweep = sweep_of(tmp_path).folder
    for project, mode in (("p", "online"), ("p", "offline"), ("p", "online"), ("other", "online")):
        report_of(as_tracked(sweep, mode, "e", project))
    assert [view["id"] for view in server.views] == [None, "VIEW", None]


def test_a_report_is_published_after_its_runs_were_synced(server, tmp_path):
    """The configuration says offline, where the runs were kept at first."""
    status = sweep_of(tmp_path)
    assert publish(status) == "e/p"
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("e", "p", SAVED_TITLE)
    assert json.dumps(group_of("mine", status.folder)) in view["spec"]
    for job in "01":
        (status.folder / job / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"--publish=.*its runs are not in W&B.*tracking.mode=offline"):
        publish(status)


def test_the_command_publishes_and_says_where_or_why_not(tmp_path, monkeypatch, capsys):
    sweep = ended_sweep(tmp_path, JobState("x", Status.DONE))
    results.write_rows(sweep / "0" / results.RESULTS, [make_row(exp="mine")], results.RESULT_SCHEMA)
    monkeypatch.setattr("specbench.runs.ending.publish", lambda status: f"e/p for {status.plan.exp}")
    monkeypatch.setattr("specbench.runs.ending._report", lambda *_: True)
    assert ending.report([str(sweep), "--publish"]) == 0
    assert "Published: the report is in W&B, in e/p for mine." in capsys.readouterr().err
    monkeypatch.undo()
    assert ending.report(["--publish", str(sweep)]) == 1  # a single run of one's own has no report
    assert "a sweep without a report. Give one that has a report" in capsys.readouterr().err


def test_online_without_an_entity_says_what_to_set(server, tmp_path):
    server.viewer = {**server.viewer, "entity": None}
    (warning,) = track_report(sweep_of(tmp_path, "online"), online=True)
    assert "tracking.entity=null: " in warning
    assert " Set tracking.entity=NAME" in warning
    assert server.views == []


def test_disabled_writes_nothing(tmp_path):
    status = sweep_of(tmp_path, "disabled")
    assert list(track_report(status, online=True)) == []
    assert [path.name for path in (status.folder / "report").iterdir()] == ["report.md"]


def test_without_wandb_workspaces_the_extra_is_named(tmp_path, monkeypatch):
    """And nothing is left half written."""
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    status = sweep_of(tmp_path)
    (warning,) = track_report(status, online=True)
    assert warning.startswith("no report for W&B (")
    assert "pip install 'specbench[wandb-workspaces]'" in warning
    assert [path.name for path in (status.folder / "report").iterdir()] == ["report.md"]
