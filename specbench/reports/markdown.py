"""A report as Markdown: CommonMark 0.31 with GitHub's tables (https://spec.commonmark.org/0.31.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

import pandas as pd

from specbench.reports.model import Block, Bullets, Code, Lines, Link, Paragraph, Picture, Report, Strong, Table, Text
from specbench.reports.text import inlines, lines_of, printable, target

# What Markdown reads as more anywhere in a line. Underscores within words and brackets that form no link are as they
# are, so that top_k and 0.61 [0.58, 0.64] can be read in the file.
_SPECIAL = re.compile(r"[\\`*|~$]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|!(?=\[|$)")
_ENTITY = re.compile(r"&(?=#?\w+;)")
# What it reads as more at the beginning of a paragraph or an item: headings, quotes, lists, rules, boxes to tick.
_BEGINNING = re.compile(r"[#>+=-]|\[(?=[ xX]\])")
_NUMBERED = re.compile(r"\d{1,9}[.)](?=\s|$)")


def render(report: Report) -> str:
    """report.md. Figures and tables are linked as :func:`specbench.reports.writing.write` lays them."""
    parts = [f"# {escape(report.title)}"]
    if report.warning:
        parts.append(text(Strong(report.warning)))
    parts.append(paragraph(report.question))
    for section in report.sections:
        parts += [f"## {escape(section.heading)}", *map(block, section.blocks)]
    return "\n\n".join(filter(None, parts)) + "\n"


def block(content: Block) -> str:
    """One block."""
    match content:
        case Paragraph():
            return paragraph(content.text)
        case Bullets():
            return "\n".join(f"- {paragraph(item)}" for item in content.items)
        case Lines():
            return _fenced(content.lines)
        case Table():
            return "\n\n".join(
                filter(None, [paragraph(content.caption), table(content.shown), paragraph(content.note)])
            )
        case Picture():
            words = escape(content.name.replace("_", " ").capitalize())
            image = f"![{words}](figures/{quote(content.name)}.png)"
            return f"### {escape(content.question)}\n\n{image}\n\n{paragraph(content.reading)}"


def table(shown: pd.DataFrame) -> str:
    """A table of texts; numbers stay as they are written in it. A dash for a table without rows."""
    if shown.empty:
        return "-"
    escaped = shown.map(lambda cell: escape(str(cell)).strip())
    escaped.columns = [escape(str(name)) for name in shown.columns]
    return escaped.to_markdown(index=False, disable_numparse=True)


def paragraph(words: Text) -> str:
    """Text that begins a line, which stays one line: no word of it can begin another block."""
    line = text(words).strip()
    if numbered := _NUMBERED.match(line):
        end = numbered.end() - 1
        return f"{line[:end]}\\{line[end:]}"
    return f"\\{line}" if _BEGINNING.match(line) else line


def text(words: Text | Strong) -> str:
    """Text within a line."""
    return "".join(_inline(part) for part in ((words,) if isinstance(words, Strong) else inlines(words)))


def escape(words: str) -> str:
    """Literal text, in which Markdown and HTML read nothing more; line breaks and tabs become spaces."""
    words = re.sub(r"\s+", " ", printable(words))
    words = _ENTITY.sub("&amp;", _SPECIAL.sub(r"\\\g<0>", words))
    return words.replace("<", "&lt;")


def _inline(part: str | Strong | Code | Link) -> str:
    match part:
        case Strong():
            words = escape(part.text)
            return f"**{words.strip()}**" if words.strip() else words
        case Code():
            return _code(part.text)
        case Link():
            words, where = re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", escape(part.text)), target(part)
            return words if where is None else f"[{words}]({quote(where, safe=':/?#@!$&+,;=%~')})"
        case _:
            return escape(part)


def _code(words: str) -> str:
    words = re.sub(r"\s+", " ", printable(words))
    fence = "`" * (_longest_run(words) + 1)
    space = " " if words[:1] == "`" or words[-1:] == "`" else ""
    return f"{fence}{space}{words}{space}{fence}"


def _fenced(lines: Iterable[str]) -> str:
    words = printable("\n".join(lines_of(lines)))
    fence = "`" * max(3, _longest_run(words) + 1)
    return f"{fence}\n{words}\n{fence}"


def _longest_run(words: str) -> int:
    return max(map(len, re.findall("`+", words)), default=0)
