"""The text of a report, put together and taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from specbench.reports.model import Block, Inline, Link, Paragraph, Section, Text

# Where a link may lead: a path relative to the report, or an address that a browser only reads.
_TARGET = re.compile(r"(https?:|mailto:|(?![\w+.-]*:))", re.IGNORECASE)


def inlines(text: Text) -> tuple[Inline, ...]:
    """The parts of a text; literal parts beside each other are made one, so that a renderer sees what they form."""
    parts: list[Inline] = []
    for part in (text,) if isinstance(text, str) else text:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
    return tuple(parts)


def join(texts: Iterable[Text], between: str = " ") -> Text:
    """Texts one after the other, without empty ones."""
    parts: list[Inline] = []
    for text in filter(None, texts):
        parts += [*([between] if parts else []), *inlines(text)]
    return inlines(tuple(parts))


def literal(text: Text) -> str:
    """The words alone, for a console."""
    return "".join(part if isinstance(part, str) else part.text for part in inlines(text))


def lines_of(lines: Iterable[str]) -> Iterator[str]:
    """Lines as they stand, split at line breaks."""
    for line in lines:
        yield from re.split(r"\r\n|\n|\r", line)


def target(link: Link) -> str | None:
    """Where a link leads; None for what is neither a path nor a page, such as ``javascript:``: no link is made."""
    return link.target if _TARGET.match(link.target) else None


def printable(text: str) -> str:
    """Text without what no page can hold: control characters and halves of surrogate pairs, each as U+FFFD."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def section(heading: str, *content: Block | Text) -> Section:
    """A section whose paragraphs are the texts, without empty ones."""
    blocks = (Paragraph(part) if isinstance(part, str | tuple) else part for part in content if part)
    return Section(heading, tuple(blocks))
