"""Markdown files, such as those of experiments/, as content of pages: read by markdown-it, nothing of it as HTML."""

from __future__ import annotations

import base64
import itertools
import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from specbench.core.errors import ConfigError
from specbench.reports.text import printable

LARGEST = 8 * 2**20  # bytes of a picture that is put into a page
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)


@dataclass(frozen=True)
class Prose:
    """A Markdown file.

    Attributes:
        title: its first heading; empty if it has none.
        content: HTML, in which everything that was text is escaped.
        paragraphs: words of each paragraph, for :meth:`labelled`.
        files: what it links to in its own folder, other than pages; paths relative to that folder.
        date: the last date that it names, as ISO 8601; empty if it names none.
    """

    title: str
    content: Markup
    paragraphs: tuple[str, ...]
    files: tuple[str, ...]
    date: str

    def labelled(self, label: str) -> str:
        """The paragraph that begins with a label in bold, such as ``**Verdict.**``, without it; empty if none does."""
        beginning = f"{label}. "
        return next(
            (paragraph.removeprefix(beginning) for paragraph in self.paragraphs if paragraph.startswith(beginning)), ""
        )


def read(path: Path, pages: Mapping[str, str]) -> Prose:
    """A file as content of a page that stands alone: pictures beside the file are inside of it.

    Args:
        path: of UTF-8 text.
        pages: names of other Markdown files, and what their pages are called; links to them are followed.
            Links to files elsewhere keep their words and lead nowhere, since the page may be moved.

    Raises:
        ConfigError: a file that cannot be read as text.
    """
    try:
        text = printable(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("FOLDER", path, f"cannot be read ({error})", "Write it as UTF-8, or move it away.") from error
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    titles, paragraphs, files = [], [], []
    for before, token in itertools.pairwise(tokens):
        if token.type == "inline":
            {"h1": titles, "p": paragraphs}.get(before.tag, []).append(_words(token))
            token.children = _moved(token.children or [], path.parent, pages, files)
    content = Markup(reader.renderer.render(_framed(tokens), reader.options, {}))
    dates = sorted(re.findall(r"\b20\d\d-\d\d-\d\d\b", text))
    return Prose(
        next(iter(titles), ""), content, tuple(paragraphs), tuple(dict.fromkeys(files)), dates[-1] if dates else ""
    )


def _words(inline: Token) -> str:
    children = inline.children or []
    return "".join(" " if token.type == "softbreak" else token.content for token in children)


def _moved(children: Sequence[Token], folder: Path, pages: Mapping[str, str], files: list[str]) -> list[Token]:
    """The parts of a line, with pictures inside and links to where they lead from the page; adds to ``files``."""
    moved, open_links = [], []
    for token in children:
        if token.type == "image":
            moved.append(_picture(token, folder))
        elif token.type == "link_open":
            where = _followed(str(token.attrs["href"]), folder, pages, files)
            open_links.append(where)
            if where:
                token.attrs["href"] = where
                moved.append(token)
        elif token.type == "link_close":
            if open_links.pop():
                moved.append(token)
        else:
            moved.append(token)
    return moved


def _followed(address: str, folder: Path, pages: Mapping[str, str], files: list[str]) -> str:
    """Where a link of the file leads from its page; empty if nowhere."""
    if _ADDRESS.match(address):
        return address
    name, _, place = unquote(address).partition("#")
    if "/" not in name and name in pages:
        return f"{pages[name]}#{place}" if place else pages[name]
    if _inside(name, folder):
        files.append(name)
        return address
    return ""


def _inside(name: str, folder: Path) -> bool:
    path = folder / name
    return path.is_file() and path.resolve().is_relative_to(folder.resolve()) and ".." not in Path(name).parts


def _picture(token: Token, folder: Path) -> Token:
    address = str(token.attrs["src"])
    path, (kind, _) = folder / unquote(address), mimetypes.guess_type(address)
    known = kind in ("image/png", "image/jpeg") and not _ADDRESS.match(address)
    if known and _inside(unquote(address), folder) and path.stat().st_size <= LARGEST:
        token.attrs["src"] = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        return token
    return Token("text", "", 0, content=f"[{token.content}: {address}]")  # nothing is loaded from elsewhere


def _framed(tokens: Sequence[Token]) -> list[Token]:
    """Tables in a frame that scrolls where the page is narrow."""
    framed: list[Token] = []
    for token in tokens:
        if token.type == "table_open":
            framed.append(Token("div_open", "div", 1, attrs={"class": "scroll", "tabindex": "0"}, block=True))
        framed.append(token)
        if token.type == "table_close":
            framed.append(Token("div_close", "div", -1, block=True))
    return framed
