"""What a test asks of any page: well formed, complete by itself, and with nothing but text where text was meant."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "br", "img", "hr", "input"}
# All that a page is made of; whatever else is there came from a text that was not escaped.
PAGE = [
    *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "article", "nav", "h1", "h2"),
    *("h3", "p", "a", "ul", "ol", "li", "strong", "em", "code", "pre", "figure", "figcaption", "div", "table"),
    *("thead", "tbody", "tr", "th", "td", "button", "script", "img", "hr", "blockquote"),
]


class Page(HTMLParser):
    """A page taken apart.

    Attributes:
        texts: of each element that holds text and no element, in their order.
        tables: cells of each table, headings first.
        addresses: of links and pictures.
    """

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.headings: list[tuple[str, str]] = []
        self.scripts = 0
        self.policy = ""
        self._text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    @staticmethod
    def of(path: Path) -> Page:
        """A page on disk, of which :meth:`check` holds."""
        page = Page(path.read_text(encoding="utf-8"))
        page.check(path.parent)
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in PAGE, f"<{tag}> is no part of a page"
        attributes = dict(attrs)
        assert not [name for name in attributes if name.startswith("on")], attributes
        self.scripts += tag == "script"
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"] or ""
        if "id" in attributes:
            self.ids.append(attributes["id"] or "")
        self.addresses += [attributes[name] or "" for name in ("href", "src") if name in attributes]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        self._text = ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self._text)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, self._text))
        if self._text and tag not in ("script", "style"):
            self.texts.append(self._text)

    def handle_data(self, data: str) -> None:
        self._text += data.replace("\N{NO-BREAK SPACE}", " ")  # which keeps intervals on one line

    def check(self, folder: Path | None = None) -> None:
        """Nothing is loaded, nothing but sort.js can run, ids are unique, and what is linked is there."""
        assert self.scripts == 1
        assert "default-src 'none'" in self.policy
        assert "script-src 'sha256-" in self.policy
        assert len(self.ids) == len(set(self.ids))
        for address in self.addresses:
            if address.startswith("#"):
                assert address[1:] in self.ids, address
            elif not re.match(r"(data:image/svg\+xml|https?://|mailto:)", address):
                assert folder is None or (folder / address.partition("#")[0]).is_file(), address
