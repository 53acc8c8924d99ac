"""A report as W&B's reports have it, in plain values: tracking/reports.py makes a ``report.wandb.json`` of them.

A figure is a panel that shows the sweep's own image, so that it is as in the other forms of the report. All text is
literal. Tables are Markdown, in which whatever would be read as more is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from specbench.reports.model import Block, Bullets, Code, Inline, Lines, Link, Paragraph, Picture, Report, Table, Text
from specbench.reports.text import inlines, literal

Part = str | dict[str, str]
LONGEST_TITLE = 128  # characters, by W&B
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$&])")


def to_wandb(report: Report, entity: str, project: str, group: str) -> dict[str, Any]:
    """Describes a report for W&B.

    Args:
        entity, project: where its runs are.
        group: the sweep, as its runs have it.

    Returns:
        title, description, place and blocks; each block has a ``kind`` (heading, text, list, code, callout, markdown,
        image) and what that needs. Parts of a text are strings, ``{"code": ...}`` or ``{"text": ..., "url": ...}``.
    """
    blocks: list[dict[str, Any]] = []
    if report.warning:
        blocks.append({"kind": "callout", "text": report.warning})
    blocks.append({"kind": "text", "parts": _parts(report.question)})
    for section in report.sections:
        blocks.append({"kind": "heading", "level": 1, "text": section.heading})
        for block in section.blocks:
            blocks.extend(_block(block))
    title = report.title if len(report.title) <= LONGEST_TITLE else f"{report.title[: LONGEST_TITLE - 1]}…"
    description = literal(report.question)
    place = {"entity": entity, "project": project, "group": group}
    return {**place, "title": title, "description": description, "blocks": blocks}


def _block(block: Block) -> Iterator[dict[str, Any]]:
    match block:
        case Paragraph(text):
            yield {"kind": "text", "parts": _parts(text)}
        case Bullets(items):
            yield {"kind": "list", "items": [_parts(item) for item in items]}
        case Lines(lines):
            yield {"kind": "code", "text": "\n".join(lines)}
        case Table():
            if block.caption:
                yield {"kind": "text", "parts": _parts(block.caption)}
            yield {"kind": "markdown", "text": _markdown(block.shown, block.left)}
            if block.note:
                yield {"kind": "text", "parts": _parts(block.note)}
        case Picture():
            yield {"kind": "heading", "level": 2, "text": block.question}
            yield {"kind": "image", "key": f"report/{block.name}", "title": block.question}
            yield {"kind": "text", "parts": _parts(block.reading)}


def _parts(text: Text) -> list[Part]:
    return [_part(part) for part in inlines(text)]


def _part(part: Inline) -> Part:
    """W&B's paragraphs know no emphasis, and a path leads nowhere there: of these the words alone."""
    if isinstance(part, Code):
        return {"code": part.text}
    if isinstance(part, Link) and part.target.startswith(("https://", "http://")):
        return {"text": part.text, "url": part.target}
    return part if isinstance(part, str) else part.text


def _markdown(shown: pd.DataFrame, left: tuple[str, ...]) -> str:
    lines = [
        [_escaped(name) for name in shown.columns],
        ["---" if name in left else "---:" for name in shown.columns],
        *([_escaped(cell) for cell in row] for row in shown.itertuples(index=False)),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(cell: object) -> str:
    r"""A cell in which nothing is Markdown or HTML, on one line: ``a|b`` becomes ``a\|b``."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(cell).split()))
