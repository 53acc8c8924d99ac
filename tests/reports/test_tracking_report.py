"""A report as W&B has it: in plain values, and as wandb-workspaces writes it, read back by wandb-workspaces."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure

from specbench.core.errors import ConfigError, TrackingError
from specbench.metrics import results
from specbench.reports import Picture, Report, Section, Table
from specbench.reports.markdown import bullets, lines
from specbench.reports.tracking import WandbWorkspace, write_report
from specbench.reports.tracking.reports import to_wandb
from specbench.runs import ending
from specbench.runs.state import JobState, Status
from specbench.runs.status import SweepStatus
from specbench.runs.tracked import group_of, publish
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
                    left=("verifier",),
                ),
                Picture("speed", Figure(), "How fast?", "By gamma, 95% intervals."),
            ),
        ),
    ),
)
GROUP = group_of("mine", Path("it's <today>=\\"))


def test_all_of_a_report_is_described():
    told = to_wandb(REPORT, "e", "p", GROUP)
    assert [block["kind"] for block in told["blocks"]] == [
        *("CalloutBlock", "MarkdownBlock", "H1", "MarkdownBlock", "MarkdownBlock", "MarkdownBlock", "MarkdownBlock"),
        *("H2", "image", "MarkdownBlock"),
    ]  # fmt: skip
    assert (told["entity"], told["project"], told["group"]) == ("e", "p", GROUP)
    assert len(told["title"]) == 128
    assert told["description"] == "Is gamma=4 fast? See the paper"
    texts = [block.get("text") for block in told["blocks"]]
    assert texts[1] == "Is `gamma=4` **fast**? See [the paper](https://arxiv.org/abs/1)"
    assert texts[3:6] == [
        *("A path: rows, and code `[a](b)`", "- one\n- two `x|y`"),
        "```\npython -m specbench\n[second](line)\n```",
    ]
    assert told["blocks"][8]["key"] == "report/speed"


def test_cells_are_literal():
    """In Markdown nothing of a prompt is markup: it is read back as it was."""
    text = to_wandb(REPORT, "e", "p", "g")["blocks"][6]["text"]
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    words = ["".join(part.content for part in each.children or ()) for each in tokens if each.type == "inline"]
    kinds = {part.type for each in tokens for part in each.children or ()}
    assert words == ["A caption", "verifier", "speedup", WILD, "1.2", "naive", "-"]
    assert kinds <= {"text", "text_special", "entity"}
    assert "\\$x\\$" in text  # W&B reads formulas in dollars


def sweep_of(folder: Path) -> Path:
    (folder / "0").mkdir()
    results.write_rows(folder / "0" / results.RESULTS, [make_row()], results.RESULT_SCHEMA)
    (folder / "0/position_rates.png").touch()
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Any:
    """Written without an entity, which offline nobody knows."""
    pytest.importorskip("wandb_workspaces")
    sweep = sweep_of(tmp_path_factory.mktemp("sweep"))
    told = to_wandb(REPORT, "", "p", GROUP)
    varied = {"gamma": ["1", "4"], "verifier": ["naive", "masked"]}
    path = write_report(told, sweep, WandbWorkspace(mode="offline", project="p", group=GROUP), varied)
    assert path == sweep.resolve() / "report/report.wandb.json"
    assert [each.name for each in path.parent.iterdir()] == ["report.wandb.json"]
    return json.loads(path.read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic's, in wandb-workspaces
def test_w_and_b_reads_its_report(written):
    """By the models of wandb-workspaces, which call what they do not know an unknown block."""
    from wandb_workspaces.reports.v2 import internal

    spec = internal.Spec.model_validate(written["spec"])
    kinds = [type(block).__name__ for block in spec.blocks]
    for kind in ("CalloutBlock", "Heading", "MarkdownBlock", "PanelGrid"):
        assert kind in kinds
    assert "UnknownBlock" not in kinds
    assert (written["displayName"], written["projectName"]) == (REPORT.title[:127] + "…", "p")


def test_panels_show_the_group(written):
    """Figures of the sweep's own run, figures and histograms of its jobs'. Filters hold the very name of the group."""
    grids = [block["metadata"] for block in written["spec"]["blocks"] if block["type"] == "panel-grid"]
    assert len(grids) == 2
    filters = [json.dumps(grid["runSets"][0]["filters"]) for grid in grids]
    for each in filters:
        assert json.dumps(GROUP) in each
    assert '"sweep"' in filters[0]
    shown = [panel for grid in grids for panel in grid["panelBankSectionConfig"]["panels"]]
    media = [panel["config"]["mediaKeys"] for panel in shown if panel["viewType"] == "Media Browser"]
    assert media == [["report/speed"], ["charts/acceptance_histogram", "position_rates"]]
    points = [panel["config"] for panel in shown if panel["viewType"] == "Scatter Plot"]  # of verifiers there are none
    assert [(each["xAxis"], each["yAxis"]) for each in points] == [
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
    told = to_wandb(REPORT, "", "p", GROUP)
    path = write_report(told, sweep_of(tmp_path), WandbWorkspace(mode="online", project="p", group=GROUP))
    assert path is not None
    (view,) = server.views
    written = json.loads(path.read_text())
    assert (view["entityName"], view["projectName"]) == (written["entityName"], "p") == ("e", "p")
    assert view["displayName"] == written["displayName"]
    kinds = [[block["type"] for block in spec["blocks"]] for spec in (json.loads(view["spec"]), written["spec"])]
    assert kinds[0] == kinds[1]


@pytest.mark.thorough
def test_written_again_it_is_the_same_report_unless_it_is_of_another_project(server, tmp_path):
    """Also if it could not be saved in between; the stand-in calls each report VIEW."""
    sweep = sweep_of(tmp_path)
    for project, mode in (("p", "online"), ("p", "offline"), ("p", "online"), ("other", "online")):
        write_report(
            to_wandb(REPORT, "e", project, GROUP), sweep, WandbWorkspace(mode=mode, project=project, group=GROUP)
        )
    assert [view["id"] for view in server.views] == [None, "VIEW", None]


def test_a_report_is_published_after_its_runs_were_synced(server, tmp_path, monkeypatch):
    """The configuration says offline, where the runs were kept at first."""
    sweep = ended_sweep(tmp_path, JobState("x", Status.DONE))
    status = SweepStatus.of(sweep)
    assert status is not None
    assert publish(status, REPORT) == "e/p"
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("e", "p", REPORT.title[:127] + "…")
    assert json.dumps(group_of("mine", sweep)) in view["spec"]
    with pytest.raises(ConfigError, match=r"--publish=.*a sweep without a report"):
        publish(status, None)
    (sweep / "0/config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"--publish=.*its runs are not in W&B.*tracking.mode=offline"):
        publish(status, REPORT)


def test_the_command_publishes_and_says_where_or_why_not(tmp_path, monkeypatch, capsys):
    sweep = ended_sweep(tmp_path, JobState("x", Status.DONE))
    results.write_rows(sweep / "0" / results.RESULTS, [make_row(exp="mine")], results.RESULT_SCHEMA)
    monkeypatch.setattr("specbench.runs.ending.publish", lambda status, report: f"e/p for {status.plan.exp}")
    assert ending.report([str(sweep), "--publish"]) == 0
    assert "Published: the report is in W&B, in e/p for mine." in capsys.readouterr().err
    monkeypatch.undo()
    assert ending.report(["--publish", str(sweep)]) == 1  # a single run of one's own has no report
    assert "not published: --publish=" in capsys.readouterr().err


def test_online_without_an_entity_says_what_to_set(server, tmp_path):
    server.viewer = {**server.viewer, "entity": None}
    told = to_wandb(REPORT, "", "p", GROUP)
    with pytest.raises(TrackingError, match="tracking.entity=null: .* Set tracking.entity=NAME"):
        write_report(told, sweep_of(tmp_path), WandbWorkspace(mode="online", project="p", group=GROUP))
    assert server.views == []


def test_disabled_writes_nothing(tmp_path):
    assert write_report(to_wandb(REPORT, "e", "p", "g"), tmp_path, WandbWorkspace(mode="disabled", project="p")) is None
    assert list(tmp_path.iterdir()) == []


def test_without_wandb_workspaces_the_extra_is_named(tmp_path, monkeypatch):
    """And nothing is left half written."""
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(TrackingError, match=r"pip install 'specbench\[wandb-workspaces\]'"):
        write_report(to_wandb(REPORT, "e", "p", "g"), tmp_path, WandbWorkspace(mode="offline", project="p"))
    assert not (tmp_path / "report").exists()
