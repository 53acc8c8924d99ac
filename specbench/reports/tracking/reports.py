"""A sweep's report in W&B: ``report.wandb.json`` in its folder, and on W&B's server if tracking is online.

Words and tables are the Markdown of report.md. A figure is a panel that shows the sweep's own image. Made with
wandb-workspaces (the extra ``wandb-workspaces``), in W&B's own process.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.core.errors import TrackingError
from specbench.reports import markdown
from specbench.reports.model import Block, Picture, Report, Table
from specbench.reports.tracking.jobs import environment
from specbench.reports.tracking.panels import HISTOGRAMS
from specbench.reports.tracking.process import LIMITS, Process
from specbench.reports.tracking.settings import WandbWorkspace, tracking_errors
from specbench.reports.tracking.sweeps import SWEEP

REPORT = "report.wandb.json"
POINTS = ("speedup", "acceptance_length")  # a point a run, by a key that the sweep varies
SPEEDS = ("acceptance_length", "tokens_per_second", "speedup")  # bars, a run each, of summaries that have them
LONGEST_TITLE = 128  # characters, by W&B
# Code, which stays as it is, or a link to a file.
_LINK = re.compile(r"(?P<code>(`+).*?\2)|\[(?P<words>(?:[^\[\]\\]|\\.)*)\]\((?!https?://)[^()\s]*\)")


def to_wandb(report: Report, entity: str, project: str, group: str) -> dict[str, Any]:
    """Describes a report for W&B.

    Args:
        entity, project: where its runs are.
        group: the sweep, as its runs have it.

    Returns:
        title, description, place and blocks; each block has a ``kind``, the name of W&B's block for its ``text``, or
        image, which has a ``key`` and a ``title``.
    """
    blocks: list[dict[str, Any]] = [{"kind": "CalloutBlock", "text": report.warning}] if report.warning else []
    blocks.append(_markdown(report.question))
    for section in report.sections:
        blocks.append({"kind": "H1", "text": section.heading})
        for block in section.blocks:
            if isinstance(block, Picture):
                blocks.append({"kind": "H2", "text": block.question})
                blocks.append({"kind": "image", "key": f"report/{block.name}", "title": block.question})
            blocks.append(_markdown(block.reading if isinstance(block, Picture) else block))
    title = report.title if len(report.title) <= LONGEST_TITLE else f"{report.title[: LONGEST_TITLE - 1]}…"
    place = {"entity": entity, "project": project, "group": group}
    return {**place, "title": title, "description": markdown.literal(report.question), "blocks": blocks}


def _markdown(block: Block) -> dict[str, Any]:
    if isinstance(block, Table):
        block = dataclasses.replace(block, caption=_without_paths(block.caption), note=_without_paths(block.note))
    elif isinstance(block, str):
        block = _without_paths(block)
    return {"kind": "MarkdownBlock", "text": markdown.block(block)}


def _without_paths(words: str) -> str:
    """The words alone of links to files, which lead nowhere on a server."""
    return words if words.startswith("```") else _LINK.sub(lambda match: match["code"] or match["words"], words)


def write_report(
    described: Mapping[str, Any],
    sweep: Path,
    workspace: WandbWorkspace,
    varied: Mapping[str, Sequence[str]] | None = None,
) -> Path | None:
    """Writes ``report.wandb.json`` into the folder ``report`` of a sweep, and saves it on the server if online.

    Beside what the report says it shows the group's own panels: the figures and histograms that its jobs have logged.

    Args:
        described: of :func:`to_wandb`.
        sweep: the sweep's folder.
        varied: keys of the configuration in which its jobs differ; those of numbers get panels of speed by the key.

    Returns:
        the file; None if tracking is disabled.

    Raises:
        TrackingError: and nothing else; what failed, or that wandb-workspaces is missing. A report that could not be
            saved online is there as a file.
    """
    if workspace.mode == "disabled":
        return None
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise TrackingError("it needs wandb-workspaces; pip install 'specbench[wandb-workspaces]'")
    folder = sweep / "report"
    with tracking_errors():
        folder.mkdir(exist_ok=True)
        path = folder.resolve() / REPORT
        first = {
            "task": "report",
            "report": described,
            "kind": SWEEP,
            "panels": _panels(sweep, varied or {}),
            "path": str(path),
            "save": workspace.mode == "online",
        }
        process = Process(first, folder, environment(workspace.mode, sweep / "wandb"))
        process.end(None, LIMITS[workspace.mode])
    return path


def _panels(sweep: Path, varied: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What the jobs of a sweep have logged."""
    media = [*(f"charts/{name}" for name in HISTOGRAMS), *sorted({path.stem for path in sweep.glob("[0-9]*/*.png")})]
    points = [{"x": key, "y": name} for key, values in varied.items() if _are_numbers(values) for name in POINTS]
    return {"points": points, "bars": SPEEDS, "media": media}


def _are_numbers(values: Sequence[str]) -> bool:
    try:
        return bool([float(value) for value in values])
    except ValueError:
        return False
