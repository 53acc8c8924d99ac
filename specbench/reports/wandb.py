"""A report as W&B's reports have it, in plain values: tracking/reports.py makes a ``report.wandb.json`` of them.

Words and tables are the Markdown of report.md. A figure is a panel that shows the sweep's own image.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from specbench.reports import markdown
from specbench.reports.markdown import literal
from specbench.reports.model import Block, Picture, Report, Table

LONGEST_TITLE = 128  # characters, by W&B
# Code, which stays as it is, or a link to a file.
_LINK = re.compile(r"(?P<code>(`+).*?\2)|\[(?P<words>(?:[^\[\]\\]|\\.)*)\]\((?!https?://)[^()\s]*\)")


def to_wandb(report: Report, entity: str, project: str, group: str) -> dict[str, Any]:
    """Describes a report for W&B.

    Args:
        entity, project: where its runs are.
        group: the sweep, as its runs have it.

    Returns:
        title, description, place and blocks; each block has a ``kind`` (heading, callout, markdown, image) and what
        that needs.
    """
    blocks: list[dict[str, Any]] = [{"kind": "callout", "text": report.warning}] if report.warning else []
    blocks.append(_markdown(report.question))
    for section in report.sections:
        blocks.append({"kind": "heading", "level": 1, "text": section.heading})
        for block in section.blocks:
            if isinstance(block, Picture):
                blocks.append({"kind": "heading", "level": 2, "text": block.question})
                blocks.append({"kind": "image", "key": f"report/{block.name}", "title": block.question})
            blocks.append(_markdown(block.reading if isinstance(block, Picture) else block))
    title = report.title if len(report.title) <= LONGEST_TITLE else f"{report.title[: LONGEST_TITLE - 1]}…"
    place = {"entity": entity, "project": project, "group": group}
    return {**place, "title": title, "description": literal(report.question), "blocks": blocks}


def _markdown(block: Block) -> dict[str, Any]:
    if isinstance(block, Table):
        block = dataclasses.replace(block, caption=_without_paths(block.caption), note=_without_paths(block.note))
    elif isinstance(block, str):
        block = _without_paths(block)
    return {"kind": "markdown", "text": markdown.block(block)}


def _without_paths(words: str) -> str:
    """The words alone of links to files, which lead nowhere on a server."""
    return words if words.startswith("```") else _LINK.sub(lambda match: match["code"] or match["words"], words)
