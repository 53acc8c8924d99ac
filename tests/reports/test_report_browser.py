"""A report in a real browser: opened from disk, sorted by a click, in light, dark, narrow and on paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.reports import Picture, Report, Section, Table, html
from specbench.reports.markdown import escape
from tests.reports.test_report_html import figure

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CELLS = ["10,000", "9 [8, 10]", "-", "1.5e3", "-2.5", "infinite"]
ORDER = ["-2.5", "9 [8, 10]", "1.5e3", "10,000", "infinite", "-"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, as Debian's package or the user's PATH has it, driven by Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install -e '.[dev]')")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no browser here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"] if os.getuid() == 0 else []
        )  # the sandbox does not work for root
        yield started
        started.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a table that is wider than a telephone, and a figure."""
    wide = {f"column {number}": ["a long cell of words"] * len(CELLS) for number in range(8)}
    shown = pd.DataFrame({"number": CELLS, "word": list("bcadef"), **wide})
    blocks = (
        escape("<script>document.title = 'broken'</script>"),
        Table("table", shown, left=("word",)),
        Picture("one", figure(), "What is it?", "A line."),
    )
    report = Report("made_up", "A report", "Why?", (Section("Result", blocks),))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(report), encoding="utf-8")
    return path


def opened(browser: Any, path: Path, **settings: object) -> tuple[Any, list[str]]:
    """The page, and whatever it said, loaded or failed at, apart from itself."""
    page, heard = browser.new_context(**settings).new_page(), []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url))
    page.goto(path.as_uri())
    assert heard.pop(0) == path.as_uri()
    return page, heard


def test_a_click_sorts_and_nothing_else_happens(browser: Any, path: Path) -> None:
    page, heard = opened(browser, path)
    assert page.title() == "A report"

    def column(number: int) -> list[str]:
        cells = page.locator(f"tbody td:nth-child({number})").all_inner_texts()
        return [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in cells]

    number, word = (page.locator("th button").nth(place) for place in (0, 1))
    number.click()
    assert column(1) == ORDER
    assert page.locator("th").first.get_attribute("aria-sort") == "ascending"
    number.click()
    assert column(1) == [*reversed(ORDER[:-1]), "-"]
    word.click()
    assert column(2) == list("abcdef")
    assert page.locator("th[aria-sort]").count() == 1
    word.click()
    word.click()
    assert column(1) == CELLS
    assert heard == []


def test_light_dark_narrow_and_paper(browser: Any, path: Path) -> None:
    """The page and its figures follow the reader's setting. Tables scroll, their first column and the page do not."""
    for scheme, dark in (("light", False), ("dark", True)):
        page, _ = opened(browser, path, color_scheme=scheme, viewport={"width": 390, "height": 800})
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, shade.strip("rgb()").split(","))) < 3 * 64) == dark
        assert page.evaluate("getComputedStyle(document.querySelector('.card')).filter").startswith("invert") == dark
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate("(e => e.scrollWidth > e.clientWidth)(document.querySelector('.scroll'))")
        places = "[...document.querySelectorAll('tr:nth-child(2) td')].map(e => e.getBoundingClientRect().left)"
        before = page.evaluate(places)
        page.evaluate("document.querySelector('.scroll').scrollLeft = 300")
        after = page.evaluate(places)
        assert (after[0], after[2]) == (before[0], before[2] - 300)
        assert page.evaluate("document.querySelector('.card img').getBoundingClientRect().width") > 200
        page.emulate_media(media="print")  # on paper figures stay as they were drawn
        assert page.evaluate("getComputedStyle(document.querySelector('.card')).filter") == "none"
    assert page.pdf().startswith(b"%PDF")
