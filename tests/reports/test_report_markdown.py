"""Reports as Markdown: whatever a text holds is read back as that text, and nothing else, by a reader of Markdown."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from specbench.reports import markdown
from specbench.reports.markdown import escape, line, printable

NASTY = (
    "<script>alert(1)</script>", "a | b", "$x$ and $y", r"\input{x}", "{{ 7*7 }}", "**bold**", "__init__", "`code`",
    "[text](javascript:alert(1))", "[a]: http://example.org", "![x](y)", "&lt; &amp; &#60;", "~~gone~~", "# heading",
    "1. first", "- item", "+ item", "> quote", "---", "===", "[ ] box", "    code", "line\n\nparagraph\n# heading",
    r"\\ \* \|", "end \\", "*", "_", "[^1]: note", "a\tb", "```\nfence", "<!-- -->", "2)", "x\x00\x1b\ud800y", "!",
)  # fmt: skip
TEXTS = st.text(st.sampled_from("ab1 .)(-+=#>*_`[]!|\\<&;:$~{}^\n\t/x"), max_size=16) | st.text(max_size=12)


READER = MarkdownIt("gfm-like", {"html": True, "linkify": False})  # HTML is read as HTML


def parsed(page: str) -> list[Token]:
    """By CommonMark with GitHub's tables and strikethrough."""
    return READER.parse(page)


def plain(inline: Token) -> str:
    """The text of a line in which there is nothing but text."""
    kinds = {child.type for child in inline.children or []}
    assert kinds <= {"text", "text_special"}, (kinds, inline.content)
    return "".join(child.content for child in inline.children or [])


def expected(text: str) -> str:
    return " ".join(printable(text).split())


def nasty(test):
    """Runs a test of a text with all that is nasty, and with what chance finds."""
    for text in NASTY:
        test = example(text)(test)
    return settings(max_examples=25, deadline=None, derandomize=True)(given(TEXTS)(test))


@nasty
def test_a_paragraph_is_read_back(text: str) -> None:
    tokens = parsed(line(escape(text)))
    if not expected(text):
        assert not tokens
        return
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert plain(tokens[1]) == expected(text)


@nasty
def test_a_cell_and_its_heading_are_read_back(text: str) -> None:
    text = text.encode(errors="replace").decode()  # pandas' own text has no halves of surrogate pairs
    shown = pd.DataFrame({"first": ["1", text], f"x{text}": ["3", "4"]}, dtype=object)
    inlines = [plain(token) for token in parsed(markdown.table(shown)) if token.type == "inline"]
    assert inlines == ["first", expected(f"x{text}"), "1", "3", expected(text), "4"]


@nasty
def test_a_bullet_and_a_heading_are_read_back(text: str) -> None:
    tokens = parsed(markdown.bullets((f"x{text}", text or "x")))
    assert [plain(token) for token in tokens if token.type == "inline"] in (
        [expected(f"x{text}"), expected(text or "x")],
        [expected(f"x{text}")],  # an item without a letter
    )
    assert {token.type for token in tokens if token.type.endswith("_open")} <= {
        "bullet_list_open", "list_item_open", "paragraph_open",
    }  # fmt: skip


@nasty
def test_code_strong_and_lines_are_read_back(text: str) -> None:
    words = expected(text)
    if words:
        (inline,) = (token for token in parsed(line(f"a {markdown.code(words)} b")) if token.type == "inline")
        assert [(child.type, child.content) for child in inline.children or []] == [
            ("text", "a "), ("code_inline", words), ("text", " b"),
        ]  # fmt: skip
        (inline,) = (token for token in parsed(line(markdown.strong(f"a{text}a"))) if token.type == "inline")
        first, *middle, last = [child for child in inline.children or [] if child.type != "text" or child.content]
        assert (first.type, last.type) == ("strong_open", "strong_close")
        assert "".join(child.content for child in middle) == expected(f"a{text}a")
    (fence,) = parsed(markdown.lines((text, "end")))
    assert fence.type == "fence"
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    assert fence.content == printable(f"{lines}\nend\n")


@pytest.mark.parametrize("where", ["javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc"])
def test_a_link_leads_to_a_page_or_a_path_or_is_none(where: str) -> None:
    assert "link_open" not in [token.type for token in markdown.inlines(f"[here]({where})")]
    assert line(r"[a \] b](<my (table).csv>)") == r"[a \] b](my%20%28table%29.csv)"


def test_what_is_often_written_stays_readable() -> None:
    text = "top_k 0.61 [0.58, 0.64], p < 0.05, 3-4 at 50% (all)"
    assert line(escape(text)) == text.replace("<", "&lt;")
    assert line(f"It is {escape('0.61 [0.58, 0.64]')}, {escape('-3')} of {escape('+2.')}") == (
        "It is 0.61 [0.58, 0.64], -3 of +2."
    )
