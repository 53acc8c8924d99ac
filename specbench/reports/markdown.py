"""Markdown: of a report, and of the values that stand in it (CommonMark 0.31, https://spec.commonmark.org/0.31.2).

The words of a report are Markdown. Whatever a name, a prompt or a number holds is escaped first (:func:`escape`), so
that it is read as nothing more than its text. What a function here returns as Markup is Markdown already.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from markupsafe import Markup

from specbench.reports.model import Block, Report, Table

# What Markdown reads as more anywhere in a line. Underscores within words and brackets that form no link are as they
# are, so that top_k and 0.61 [0.58, 0.64] can be read in the file.
_SPECIAL = re.compile(r"[\\`*|~$]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|!(?=\[|$)")
_ENTITY = re.compile(r"&(?=#?\w+;)")
# What it reads as more at the beginning of a paragraph or an item: headings, quotes, lists, rules, boxes to tick.
_BEGINNING = re.compile(r"[#>+=-]|\[(?=[ xX]\])")
_NUMBERED = re.compile(r"\d{1,9}[.)](?=\s|$)")
READER = MarkdownIt("commonmark", {"html": False})


def render(report: Report) -> str:
    """report.md. Figures and tables are linked as :func:`specbench.reports.writing.write` lays them."""
    parts = [f"# {_within(report.title)}", strong(report.warning), report.question]
    for section in report.sections:
        parts += [f"## {_within(section.heading)}", *map(block, section.blocks)]
    return "\n\n".join(filter(None, parts)) + "\n"


def block(content: Block) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Table):
        return "\n\n".join(filter(None, [content.caption, table(content.shown), content.note]))
    image = f"![{_within(content.name.replace('_', ' ').capitalize())}](figures/{quote(content.name)}.png)"
    return f"### {_within(content.question)}\n\n{image}\n\n{content.reading}"


def table(shown: pd.DataFrame) -> str:
    """A table of texts; numbers stay as they are written in it. A dash for a table without rows."""
    if shown.empty:
        return "-"
    escaped = shown.map(lambda cell: _within(str(cell)).strip())
    escaped.columns = [_within(str(name)) for name in shown.columns]
    return escaped.to_markdown(index=False, disable_numparse=True)


def escape(words: object) -> Markup:
    """A value as Markdown that is read as nothing more than its text, wherever in a line it stands.

    Line breaks and tabs become spaces. Markdown stays as it is.
    """
    if isinstance(words, Markup):
        return words
    text = _begun(_within(str(words)).strip())
    return Markup(f"{text[:-1]}\\]" if text.endswith("]") else text)


def strong(words: str) -> Markup:
    """What a reader must not miss, from its text."""
    text = _within(words).strip()
    return Markup(f"**{text}**" if text else "")


def code(words: str) -> Markup:
    """A command, a setting or a name as it is typed."""
    words = re.sub(r"\s+", " ", printable(words))
    fence = "`" * (_longest_run(words) + 1)
    space = " " if words[:1] == "`" or words[-1:] == "`" else ""
    return Markup(f"{fence}{space}{words}{space}{fence}")


def with_code(words: str) -> Markup:
    """Literal text in which names between backticks are code."""
    return Markup(re.sub(r"\\`([\w.\\]+)\\`", lambda match: code(match[1].replace("\\", "")), escape(words)))


def lines(texts: Iterable[str]) -> Markup:
    """Lines as they stand: commands, listings, an example that failed."""
    words = printable("\n".join(re.sub(r"\r\n|\r", "\n", text) for text in texts))
    fence = "`" * max(3, _longest_run(words) + 1)
    return Markup(f"{fence}\n{words}\n{fence}")


def bullets(items: Iterable[str]) -> Markup:
    """A list without an order, of Markdown or of texts."""
    return Markup("\n".join(f"- {line(escape(item))}" for item in items))


def line(markdown: str) -> Markup:
    """Markdown of a paragraph in one line, without escapes that its place does not need."""
    result, words, target = "", "", None
    for token in [*inlines(markdown), Token("end", "", 0)]:
        if token.type in ("text", "softbreak"):
            words += token.content or " "
            continue
        text, words = _within(words) if result else _begun(_within(words)), ""
        result += text if target is None else re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", text)
        if token.type == "link_open":
            result, target = f"{result}[", quote(str(token.attrs["href"]), safe=":/?#@!$&+,;=%~")
        elif token.type == "link_close":
            result, target = f"{result}]({target})", None
        else:
            result += code(token.content) if token.type == "code_inline" else token.markup
    return Markup(result.strip())


def blocks(markdown: str) -> Iterator[tuple[str, list[str]]]:
    """Each block: the HTML tag of its kind (h1, p, ul, code, hr), and its texts, which are items of a list, lines of a
    listing, and else one Markdown paragraph."""
    for node in SyntaxTreeNode(READER.parse(str(markdown))):
        listing = node.content.removesuffix("\n").split("\n") if node.type == "fence" else []
        yield node.tag, [inline.content for inline in node.walk() if inline.type == "inline"] or listing


def inlines(markdown: str) -> list[Token]:
    """The tokens of a paragraph: text, softbreak, code_inline, and the ends of strong and link."""
    return [token for inline in READER.parseInline(str(markdown)) for token in inline.children or ()]


def literal(markdown: str) -> str:
    """The words alone, for a console."""
    return "".join(token.content or " " * (token.type == "softbreak") for token in inlines(markdown))


def printable(text: str) -> str:
    """Text without what no page can hold: control characters and halves of surrogate pairs, each as U+FFFD."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def _within(words: str) -> str:
    """Literal text behind other words of a line."""
    words = re.sub(r"\s+", " ", printable(words))
    words = _ENTITY.sub("&amp;", _SPECIAL.sub(r"\\\g<0>", words))
    return words.replace("<", "&lt;")


def _begun(text: str) -> str:
    """Escaped text that begins a line: no word of it can begin another block."""
    if numbered := _NUMBERED.match(text):
        end = numbered.end() - 1
        return f"{text[:end]}\\{text[end:]}"
    return f"\\{text}" if _BEGINNING.match(text) else text


def _longest_run(words: str) -> int:
    return max(map(len, re.findall("`+", words)), default=0)
