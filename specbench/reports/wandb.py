"""A report as W&B's reports have it, in plain values: tracking/reports.py makes a ``report.wandb.json`` of them.

Words and tables are the Markdown of report.md. A figure is a panel that shows the sweep's own image.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from specbench.reports import markdown
from specbench.reports.model import Block, Bullets, Lines, Link, Paragraph, Picture, Report, Table, Text
from specbench.reports.text import inlines, literal

LONGEST_TITLE = 128  # characters, by W&B


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
    blocks.append(_markdown(Paragraph(report.question)))
    for section in report.sections:
        blocks.append({"kind": "heading", "level": 1, "text": section.heading})
        for block in section.blocks:
            if isinstance(block, Picture):
                blocks.append({"kind": "heading", "level": 2, "text": block.question})
                blocks.append({"kind": "image", "key": f"report/{block.name}", "title": block.question})
            blocks.append(_markdown(Paragraph(block.reading) if isinstance(block, Picture) else block))
    title = report.title if len(report.title) <= LONGEST_TITLE else f"{report.title[: LONGEST_TITLE - 1]}…"
    place = {"entity": entity, "project": project, "group": group}
    return {**place, "title": title, "description": literal(report.question), "blocks": blocks}


def _markdown(block: Block) -> dict[str, Any]:
    match block:
        case Paragraph(text):
            block = Paragraph(_without_paths(text))
        case Bullets(items):
            block = Bullets(tuple(map(_without_paths, items)))
        case Table():
            block = dataclasses.replace(block, caption=_without_paths(block.caption), note=_without_paths(block.note))
        case Lines():
            pass
    return {"kind": "markdown", "text": markdown.block(block)}


def _without_paths(text: Text) -> Text:
    """The text with the words alone of links to files, which lead nowhere on a server."""
    web = ("https://", "http://")
    return tuple(
        part.text if isinstance(part, Link) and not part.target.startswith(web) else part for part in inlines(text)
    )
