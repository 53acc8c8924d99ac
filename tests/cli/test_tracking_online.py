"""W&B's server receives the same of a run that is sent live as of a run that is synced later."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specbench.core.machine.journal import AXES, Journal
from specbench.metrics import results
from specbench.runs.config import TrackingConfig
from specbench.runs.state import JobState, Status, write_state
from specbench.runs.tracking.run import TrackedRun
from tests.helpers.command_lines import clean_environment
from tests.helpers.made_up_rows import make_row
from tests.helpers.wandb_server import Server, wandb_server

LABELS = {"category": "", "conversation": "a", "turn": 1}
STEPS = [
    {"prompt": "a", "step": i, "num_draft_tokens": 4, "num_accepted": 2, "num_emitted": 3, "draft_depth": 4, **LABELS}
    for i in range(3)
]
TEXT = results.TextRow("a", "b", "<script>|", 1, "length", **LABELS)
TAGS = ["protocol:decode", "verifier:masked", "lossless"]
OF_ITS_OWN = re.compile(r"_[0-9a-f]{20}\.|_\d+_")  # digests and places in the history, in names of files


def make_job(folder: Path) -> None:
    """What a small job leaves."""
    results.write_rows(folder / results.RESULTS, [make_row()], results.RESULT_SCHEMA)
    results.write_rows(folder / results.STEPS, STEPS, results.StepRow)
    results.write_rows(folder / results.TEXTS, [TEXT], results.TextRow)
    (folder / "certificate.md").write_text("lossless")
    write_state(folder, JobState("x", Status.DONE))


def run_of(folder: Path, mode: str) -> TrackedRun:
    settings = TrackingConfig(mode=mode, project="p", entity="e")
    names = {"group": "mine/today", "name": "verifier=masked", "kind": "masked", "number": "abcd1234"}
    return TrackedRun(settings=settings, folder=folder, tags=TAGS, config={"gamma": 4}, **names)


@dataclass(frozen=True)
class Sent:
    """What a server was sent, by key, without what differs between any two runs: digests, times, places."""

    files: dict[str, bytes]
    run: dict[str, Any]
    config: dict[str, Any]
    summary: dict[str, Any]
    curve: list[dict[str, Any]]
    operations: set[str]


def sent(server: Server) -> Sent:
    """Collects what a server received, without what differs between any two runs."""
    files = {OF_ITS_OWN.sub("_", path): content for path, content in server.uploads.items()}
    details: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for run in server.runs:  # an update of a run holds its new values alone
        details |= {key: run[key] for key in ("groupName", "jobType", "displayName", "tags", "project") if run.get(key)}
        config |= json.loads(run.get("config") or "{}")
    curve = [{key: point[key] for key in point if key.startswith("live/")} for point in server.history]
    summary = json.loads(server.uploads["/run/wandb-summary.json"])
    kept = {key: value for key, value in summary.items() if not key.startswith("_") and not isinstance(value, dict)}
    kept |= {key: value.get("_type") for key, value in summary.items() if isinstance(value, dict) and key[0] != "_"}
    return Sent(files, details, config, kept, list(filter(None, curve)), set(server.asked))


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Iterator[tuple[Sent, Sent]]:
    """What was sent live, and what `wandb sync` sent of the same job, logged offline."""
    folder, records = tmp_path_factory.mktemp("online"), []
    with pytest.MonkeyPatch.context() as changed:
        for name in [name for name in os.environ if name.startswith("WANDB")]:
            changed.delenv(name)
        changed.setenv("HOME", str(folder))
        changed.setenv("WANDB_API_KEY", "k" * 40)
        changed.setenv("WANDB_ERROR_REPORTING", "false")
        for mode in ("online", "offline"):
            job = folder / mode
            job.mkdir()
            with wandb_server() as server:
                changed.setenv("WANDB_BASE_URL", server.url)
                run = run_of(job, mode)
                if mode == "online":
                    run.begin()
                journal = Journal(job)
                for tokens in (8, 16, 24):
                    journal.note(tokens=tokens, log10_evidence=-0.25 * tokens)
                make_job(job)
                run.end()
                if mode == "offline":
                    (path,) = job.glob("wandb/offline-run-*")
                    assert server.asked == []
                    command = [sys.executable, "-m", "wandb", "sync", str(path)]
                    environment = clean_environment(folder) | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}
                    environment |= {"WANDB_ERROR_REPORTING": "false"}
                    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
                records.append(sent(server))
    yield records[0], records[1]
    shutil.rmtree(folder)


@pytest.mark.thorough
def test_a_live_run_and_a_synced_one_are_the_same_key_by_key(both):
    online, offline = both
    assert set(offline.files) == set(online.files)
    assert offline.run == online.run
    assert {key for key in offline.config if key[0] != "_"} == {key for key in online.config if key[0] != "_"}
    timeless = [{key: value for key, value in run.summary.items() if key != "live/seconds"} for run in both]
    assert timeless[0] == timeless[1]
    assert [set(point) for point in offline.curve] == [set(point) for point in online.curve]


def test_a_server_gets_all_of_a_job(both):
    for record in both:
        assert record.run["groupName"] == "mine/today"
        assert (record.run["jobType"], record.run["tags"]) == ("masked", TAGS)
        assert record.config["gamma"]["value"] == 4
        assert record.summary["charts/acceptance_histogram"] == "histogram"
        assert record.summary["tables/steps"] == "table-file"
        assert (record.summary["speedup"], record.summary["status"]) == (make_row().speedup, "done")
        assert [point["live/tokens"] for point in record.curve] == [8, 16, 24]
        assert [point["live/log10_evidence"] for point in record.curve] == [-2, -4, -6]
        assert record.files["/artifact/certificate.md"] == b"lossless"
        texts = json.loads(record.files["/artifact/texts.table.json"])
        assert texts["data"] == [list(dataclasses.astuple(TEXT))]


def test_curves_have_an_axis_each():
    """That stands in the same lines: a protocol that writes one writes the other."""
    assert set(AXES.values()) <= {"seconds", *AXES}
