"""A sweep's report in W&B: ``report.wandb.json`` in its folder, and on W&B's server if tracking is online.

Its words are those of report.md. A figure is a panel that shows the sweep's own image. Made with wandb-workspaces (the
extra ``wandb-workspaces``) in W&B's own process.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it.tree import SyntaxTreeNode

from specbench.core.errors import TrackingError
from specbench.core.machine.disk import read_json, write_json
from specbench.core.machine.files import clipped
from specbench.reports.markdown import READER, literal
from specbench.runs.plan import read_plan, varied
from specbench.runs.tracking.panels import HISTOGRAMS, SWEEP

REPORT = "report.wandb.json"
POINTS = ("speedup", "acceptance_length")  # a point a run, by a key that the sweep varies
SPEEDS = ("acceptance_length", "tokens_per_second", "speedup")  # bars, a run each, of summaries that have them
LONGEST_TITLE = 128  # characters, by W&B
WORDS = "MarkdownBlock"
_FIGURE, _WARNING = re.compile(r"!\[.*\]\(figures/(.+)\.png\)"), re.compile(r"\*\*.*\*\*")
# Code, which stays as it is, or a link to a file.
_LINK = re.compile(r"(?P<code>(`+).*?\2)|\[(?P<words>(?:[^\[\]\\]|\\.)*)\]\((?!https?://)[^()\s]*\)")


def write(folder: str, project: str, entity: str | None, group: str, online: bool) -> None:
    """Writes the specification of a sweep's report as JSON; saves it on the server if online. The file has the id that
    the report got there, by which the next one of the same sweep takes its place.

    Beside what the report says it shows the group's own panels: the figures and histograms that its jobs have logged.

    Args:
        folder: the sweep's, with report/report.md.
        project, entity, group: where its runs are.

    Raises:
        TrackingError: no entity is given, and W&B does not know the report's owner.
    """
    import wandb
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces.expr import And, Metric

    entity = entity or ""
    if online and not entity and not (entity := wandb.Api().default_entity or ""):
        raise TrackingError("tracking.entity=null: W&B names none for this key. Set tracking.entity=NAME")
    (_, title), *parts = parts_of(Path(folder, "report/report.md").read_text(encoding="utf-8"))
    in_group, of_sweep = Metric("Group") == group, Metric("JobType") == SWEEP

    def report(owner: str = "", of_runs: str = "") -> Any:
        def runs(kind: Any) -> Any:
            return wr.Runset(entity=owner, project=of_runs, name=group, filters=And(in_group, kind))

        def block(kind: str, text: str) -> Any:
            if kind != "image":
                return getattr(wr, kind)(text)
            shown = wr.MediaBrowser(media_keys=[f"report/{text}"], num_columns=1)
            return wr.PanelGrid(runsets=[runs(of_sweep)], panels=[shown], hide_run_sets=True)

        of_jobs = runs(Metric("JobType") != SWEEP)
        return wr.Report(
            project=project,
            entity=entity,
            title=clipped(title, LONGEST_TITLE),
            description=literal(next(text for kind, text in parts if kind == WORDS)),
            blocks=[
                *(block(*part) for part in parts),
                wr.H1("Its runs"),
                wr.PanelGrid(runsets=[of_jobs], panels=_panels(wr, Path(folder))),
            ],
        )

    model = report()._to_model()  # runs without a place are of the report's own project, and W&B is not asked for it
    place = {"entityName": entity, "projectName": project}
    spec = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    written = {
        "displayName": model.display_name,
        "description": model.description,
        **place,
        "type": "runs",
        "spec": spec,
    }
    path = Path(folder, "report", REPORT)
    if report_id := _saved_as(path, place):
        written["id"] = report_id
    write_json(path, written)
    if online:
        saved = report(entity, project)
        saved.id = report_id
        write_json(path, written | {"id": saved.save().id})


def parts_of(markdown: str) -> Iterator[tuple[str, str]]:
    """The parts of report.md in their order, each the name of W&B's block and its text.

    ``title`` is the first, and ``image`` has a figure's name. Links to files, which lead nowhere on a server, are words
    alone.
    """
    lines = markdown.split("\n")
    nodes = SyntaxTreeNode(READER.parse(markdown)).children
    places = [node.map or (0, 0) for node in nodes]
    texts = ["\n".join(lines[begin:end]).rstrip() for begin, end in places]
    parts = [_part(node, place, text) for place, (node, text) in enumerate(zip(nodes, texts, strict=True))]
    for kind, same in itertools.groupby(parts, lambda part: part[0]):
        texts = [text for _, text in same]
        yield from [(kind, "\n\n".join(texts))] if kind == WORDS else [(kind, text) for text in texts]


def _part(node: SyntaxTreeNode, place: int, text: str) -> tuple[str, str]:
    if node.type == "heading":
        return {"h1": "title", "h2": "H1", "h3": "H2"}[node.tag], literal(text.lstrip("# "))
    if figure := _FIGURE.fullmatch(text):
        return "image", unquote(figure[1])
    if place == 1 and _WARNING.fullmatch(text):
        return "CalloutBlock", literal(text)
    return WORDS, text if node.type == "fence" else _LINK.sub(lambda match: match["code"] or match["words"], text)


def _panels(wr: Any, sweep: Path) -> list[Any]:
    """What the jobs of a sweep have logged; also of runs that come later."""
    plan = read_plan(sweep)
    keys = [key for key, values in (varied(plan) if plan else {}).items() if _are_numbers(values)]
    media = [*(f"charts/{name}" for name in HISTOGRAMS), *sorted({path.stem for path in sweep.glob("[0-9]*/*.png")})]
    return [
        *(wr.ScatterPlot(title=f"{y} by {x}", x=wr.Config(x), y=wr.SummaryMetric(y)) for x in keys for y in POINTS),
        *(wr.BarPlot(title=name, metrics=[name]) for name in SPEEDS),
        wr.MediaBrowser(media_keys=media, num_columns=2),
        wr.RunComparer(diff_only=True),
    ]


def _saved_as(path: Path, place: dict[str, str]) -> str:
    """The id of the report that an earlier file tells of, if it was saved in that project; empty if not."""
    before = read_json(path)
    same = isinstance(before, dict) and all(before.get(name) == value for name, value in place.items())
    return str(before.get("id", "")) if same else ""


def _are_numbers(values: list[str]) -> bool:
    try:
        return bool([float(value) for value in values])
    except ValueError:
        return False
