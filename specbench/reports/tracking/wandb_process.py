"""W&B in a process of its own, started by process.py. The only importer of wandb.

Standard input has one JSON object a line. The first says what to do. The task "run" begins a run and sends its curves
as they grow in a file, until a second line says how the run ends; if there is none, the process that measured is gone,
and the run is marked as failed. It imports nothing else of specbench, so that it starts in a second. Where it fails,
standard output says why, and the status is 1.
"""

from __future__ import annotations

import html
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Message = dict[str, Any]
TICK = 2.0  # seconds between two looks at the curves
MOST_AT_ONCE = 1000  # points of a curve that are sent at a time
LOWEST = 19  # priority: what is measured beside it comes first


class NotTrackedError(Exception):
    """A reason that is told as it is."""


class Curves:
    """Numbers that a job writes down while it runs, a JSON object a line; see specbench/core/machine/journal.py."""

    def __init__(self, path: Path):
        self.path, self.place = path, 0

    def news(self) -> list[Message]:
        """What was written since the last time; many points are thinned evenly, and the last is kept."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.place)
                new = file.read()
        except OSError:  # nothing was written
            return []
        whole = new[: new.rfind(b"\n") + 1]  # the last line may not be there yet
        self.place += len(whole)
        lines = whole.splitlines()
        stride = -(-len(lines) // MOST_AT_ONCE) or 1
        return [json.loads(line) for line in lines[::-1][::stride][::-1]]


def run(first: Message, second: Callable[[float], Message | None]) -> None:
    """Logs one run, and waits until W&B has written or sent all of it.

    Args:
        second: the message that ends the run; raises queue.Empty if it has not come in time.

    Raises:
        NotTrackedError: W&B said nothing, but its log has an error: a full disk ends a run's file in the middle.
    """
    import wandb

    if first["live"]:
        os.nice(LOWEST)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    with wandb.init(**first["init"], settings=settings) as logged:
        for metric, axis in first["axes"].items():
            logged.define_metric(f"live/{metric}", step_metric=f"live/{axis}")
        curves = Curves(Path(first["curves"]))
        while True:
            try:
                end = second(TICK)
                break
            except queue.Empty:
                _send(logged, curves)
        _send(logged, curves)
        if end is None:
            end = _broken_off(Path(first["state"]))
            shutil.rmtree(first["scratch"], ignore_errors=True)
        _end(logged, end)
        own_log = Path(logged.settings.log_internal)
        logged.finish(exit_code=end["exit_code"])
    wandb.teardown()  # waits for its service, which closes the run's file
    for line in own_log.read_text(errors="replace").splitlines() if own_log.is_file() else ():
        if '"level":"ERROR"' in line:
            raise NotTrackedError(json.loads(line)["msg"])


def _send(logged: Any, curves: Curves) -> None:
    for point in curves.news():
        logged.log({f"live/{name}": value for name, value in point.items()})


def _broken_off(state: Path) -> Message:
    """How a run ends whose process is gone: as the job's own folder says, if it says anything."""
    try:
        written = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        written = {}
    failed = written.get("status") == "failed"
    status, reason = ("failed", written.get("reason")) if failed else ("died", "its process is gone")
    return {"exit_code": 1, "summary": {"status": status, "reason": reason}, "tags": [status]}


def _end(logged: Any, end: Message) -> None:
    import wandb

    tags = tuple(dict.fromkeys((*(logged.tags or ()), *end.get("tags", ()))))
    if tags != tuple(logged.tags or ()):
        logged.tags = tags
    logged.summary.update(end["summary"])
    panels: Message = {name: wandb.Image(path) for name, path in end.get("images", {}).items()}
    for name, counted in end.get("histograms", {}).items():
        panels[name] = wandb.Histogram(np_histogram=(counted["counts"], counted["edges"]))
    for name, table in end.get("tables", {}).items():
        panels[name] = wandb.Table(columns=table["columns"], data=table["data"])
    if "error" in end:
        panels["error"] = wandb.Html(f"<pre>{html.escape(end['error'])}</pre>", inject=False)
    if panels:
        logged.log(panels)
    if end.get("files"):
        artifact = wandb.Artifact(f"results-{logged.id}", type="results")
        for path in end["files"]:
            artifact.add_file(path, policy="immutable", skip_cache=True)  # no copies elsewhere
        logged.log_artifact(artifact)


def login(_first: Message, _second: object) -> None:
    """Asks whether there is a key. Raises NotTrackedError if there is none."""
    import wandb

    if not wandb.login(prompt=False):
        raise NotTrackedError("no W&B key on this machine")


def report(first: Message, _second: object) -> None:
    """Writes the specification of a report as JSON; saves it on the server if it is asked to. The file has the id that
    the report got there, by which the next one of the same sweep takes its place.

    Raises:
        NotTrackedError: no entity is given, and W&B does not know the report's owner.
    """
    import wandb
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces.expr import And, Metric

    settings = first["report"]
    group, kind, entity = settings["group"], first["kind"], settings["entity"] or ""
    if first["save"] and not entity and not (entity := wandb.Api().default_entity or ""):
        raise NotTrackedError("tracking.entity=null: W&B names none for this key. Set tracking.entity=NAME")
    sweep, jobs = Metric("JobType") == kind, Metric("JobType") != kind

    def wandb_report(owner: str = "", project: str = "") -> Any:
        def runs(*more: Any) -> Any:
            return wr.Runset(entity=owner, project=project, name=group, filters=And(Metric("Group") == group, *more))

        panels = [
            *(_points(wr, point) for point in first["panels"]["points"]),
            *(wr.BarPlot(title=name, metrics=[name]) for name in first["panels"]["bars"]),
            wr.MediaBrowser(media_keys=first["panels"]["media"], num_columns=2),
            wr.RunComparer(diff_only=True),
        ]
        return wr.Report(
            project=settings["project"],
            entity=entity,
            title=settings["title"],
            description=settings["description"],
            blocks=[
                *(_block(wr, block, lambda: runs(sweep)) for block in settings["blocks"]),
                wr.H1("Its runs"),
                wr.PanelGrid(runsets=[runs(jobs)], panels=panels),
            ],
        )

    # Runs without a place are of the report's own project, and W&B is not asked for it.
    model = wandb_report()._to_model()
    written = {
        "displayName": model.display_name,
        "description": model.description,
        "entityName": entity,
        "projectName": settings["project"],
        "type": "runs",
        "spec": json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True)),
    }
    path = Path(first["path"])
    owner = {name: written[name] for name in ("entityName", "projectName")}
    if report_id := _saved_as(path, owner):
        written["id"] = report_id
    _replace(path, written)
    if first["save"]:
        online = wandb_report(entity, settings["project"])
        online.id = report_id
        _replace(path, written | {"id": online.save().id})


def _saved_as(path: Path, owner: Message) -> str:
    """The id of the report that an earlier file tells of, if it was saved in that project; empty if not."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    same = isinstance(before, dict) and all(before.get(name) == value for name, value in owner.items())
    return str(before.get("id", "")) if same else ""


def _replace(path: Path, written: Message) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _points(wr: Any, drawn: Message) -> Any:
    """A point a run of the group, also of runs that come later."""
    x, y = wr.Config(drawn["x"]), wr.SummaryMetric(drawn["y"])
    return wr.ScatterPlot(title=f"{drawn['y']} by {drawn['x']}", x=x, y=y)


def _block(wr: Any, block: Message, runs: Callable[[], Any]) -> Any:
    """A block of reports.to_wandb as one of W&B's."""
    if block["kind"] != "image":
        return getattr(wr, block["kind"])(block["text"])
    shown = wr.MediaBrowser(title=block["title"], media_keys=[block["key"]], num_columns=1)
    return wr.PanelGrid(runsets=[runs()], panels=[shown], hide_run_sets=True)


def main() -> None:
    """Does what standard input asks for."""
    messages: queue.Queue[Message | None] = queue.Queue()

    def read() -> None:
        # Not sys.stdin: Python aborts if it finds that locked, by a thread that still reads, when it ends.
        with open(0, "rb", closefd=False) as messages_in:
            for line in messages_in:
                messages.put(json.loads(line))
        messages.put(None)

    with os.fdopen(os.dup(1), "w", errors="replace") as out:  # W&B's service, which may live longer, inherits no copy
        os.dup2(2, 1)
        threading.Thread(target=read, daemon=True).start()
        first = messages.get()
        if first is None:  # the process that started it is gone
            return
        sys.argv = first.get("argv", sys.argv)  # W&B notes a run's command
        tempfile.tempdir = first["scratch"]  # before wandb makes its folders; process.py removes it, also after a crash
        try:
            {"run": run, "login": login, "report": report}[first["task"]](
                first, lambda seconds: messages.get(timeout=seconds)
            )
        except NotTrackedError as error:
            out.write(str(error))
        except (Exception, SystemExit) as error:
            out.write(f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}")
        else:
            return
    sys.exit(1)


if __name__ == "__main__":
    main()
