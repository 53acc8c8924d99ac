"""Reports as HTML pages: text stays text, figures stand side by side, and a page needs nothing from elsewhere."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pandas as pd
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from specbench.analysis import gamma_sweep, verifier_latency
from specbench.analysis.folder import read_rows
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.machine.disk import WriteError
from specbench.reports import Picture, Report, Section, Table, html
from specbench.reports.markdown import bullets, code, escape, lines, strong
from specbench.reports.writing import write
from specbench.runs.collection import answer_of, write_pages
from specbench.runs.state import JobState
from tests.analysis.test_latency_analysis import write_run as write_latency_run
from tests.helpers.made_up_rows import gamma_rows, make_row, write_run
from tests.helpers.small_sweeps import planned_sweep

NASTY = (
    "<script>alert(1)</script>", "a | b", "$x_1$ and \\$", r"\input{x}", "{{ 7*7 }}", "{% raw %}", "&amp; &lt;",
    '"quoted" \'too\'', "</td></table>", "</script>", "<!--", "<img src=x onerror=alert(1)>", "]]>",
)  # fmt: skip
POLICY = "Content-Security-Policy"
# All that a page is made of; whatever else is there came from a text that was not escaped.
PAGE = [
    *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "article", "nav", "h1", "h2"),
    *("h3", "p", "a", "ul", "ol", "li", "strong", "em", "code", "pre", "figure", "figcaption", "div", "table"),
    *("thead", "tbody", "tr", "th", "td", "button", "script", "img", "hr", "blockquote"),
]


class Page:
    """A page taken apart, which is XML: a text that was not escaped, and an element that is not closed, are errors.

    Attributes:
        texts: between any two tags, in their order.
        tables: cells of each table, headings first.
        addresses: of links and pictures.
    """

    def __init__(self, text: str):
        root = ElementTree.fromstring(text.replace("\N{NO-BREAK SPACE}", " "))  # which keeps intervals on one line
        elements = list(root.iter())
        for element in elements:
            assert element.tag in PAGE, f"<{element.tag}> is no part of a page"
            assert not [name for name in element.attrib if name.startswith("on")], element.attrib
        self.texts = list(root.itertext())
        self.scripts = len(list(root.iter("script")))
        (self.policy,) = (meta.get("content", "") for meta in root.iter("meta") if meta.get("http-equiv") == POLICY)
        attributes = [item for element in elements for item in element.attrib.items()]
        self.ids = [value for name, value in attributes if name == "id"]
        self.addresses = [value for name, value in attributes if name in ("href", "src")]
        self.tables = [
            [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")] for table in root.iter("table")
        ]
        self.headings = [(e.tag, "".join(e.itertext())) for e in elements if e.tag in ("h1", "h2", "h3")]

    @staticmethod
    def of(path: Path) -> Page:
        """A page on disk, of which :meth:`check` holds."""
        page = Page(path.read_text(encoding="utf-8"))
        page.check(path.parent)
        return page

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


def figure(text: str = "label") -> Figure:
    made = Figure(figsize=(3, 2))
    axes = made.subplots()
    axes.plot([0, 1], [0, 1], label="line")
    axes.set_title(text, parse_math=False)
    return made


def report(text: str, **changes: object) -> Report:
    """One report with a text wherever a report holds one."""
    shown = pd.DataFrame({text: ["2.5 [2, 3]", "10"], "words": [text, "-"]})
    words = escape(text)
    blocks = (
        f"{words} {strong(text)} {code(text)} [{words}](table.csv)",
        bullets((text, Markup(f"{strong(text)} {words}"))),
        lines((text, "end")),
        Table("table", shown, shown, caption=words, note=words, left=("words",)),
        Picture("one", figure(text), question=text, reading=words),
        Picture("two", figure(text), question="Again?", reading="the same, so that every id is there twice"),
    )
    values = {
        "name": "made_up", "title": text, "question": words, "warning": text,
        "sections": (Section("Result", blocks), Section(text, ("end",))),
    }  # fmt: skip
    return Report(**{**values, **changes})


@pytest.mark.parametrize("text", NASTY)
def test_text_is_text(text: str) -> None:
    """The parser refuses every element, event and address that the templates have not made."""
    page = Page(html.render(report(text)))
    page.check()
    # title, h1, warning, question, link to the section; 4 parts, 3 in bullets, caption, heading, cell, note; figures 3.
    copies = [page_text for page_text in page.texts if page_text.strip() == text]
    assert len(copies) >= 15, copies
    assert f"{text}\nend\n" in page.texts
    assert page.tables == [[[text, "words"], ["2.5 [2, 3]", text], ["10", "-"]]]
    assert [kind for kind, _ in page.headings] == ["h1", "h2", "h3", "h3", "h2"]
    images = [
        base64.b64decode(address.partition("base64,")[2]) for address in page.addresses if address.startswith("data:")
    ]
    assert [ElementTree.fromstring(image).tag for image in images] == ["{http://www.w3.org/2000/svg}svg"] * 2


def test_a_page_is_the_same_again_and_its_script_is_the_one_allowed() -> None:
    first, again = (html.render(report("text")) for _ in range(2))
    assert first == again
    (script,) = re.findall(r"<script>(.*?)</script>", first, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in Page(first).policy


def test_a_link_to_a_script_is_no_link() -> None:
    made = report("text", question="[here](javascript:alert(1)) [there](https://example.org)")
    page = Page(html.render(made))
    assert "https://example.org" in page.addresses
    assert not [address for address in page.addresses if "javascript" in address]


def test_no_line_ends_inside_an_interval() -> None:
    shown = pd.DataFrame({"a": ["2.5 [2.25, 3e-2]"]})
    command = "protocol.planned=[1, 4]"
    blocks = (f"It is **1.5 [1, 2]**; 0.1 [-0.2, 0.3]. `{command}`", Table("table", shown))
    text = html.render(report("text", sections=(Section("Result", blocks),)))
    for value, low, high in (("2.5", "2.25", "3e-2"), ("1.5", "1", "2"), ("0.1", "-0.2", "0.3")):
        assert f"{value} [{low},\N{NO-BREAK SPACE}{high}]" in text
    assert f"<code>{command}</code>" in text  # which is typed as it stands


def test_names_are_files_and_are_given_once() -> None:
    shown = pd.DataFrame({"a": ["1"]})
    for name in ("../up", "a b", "", "a/b", "a.b"):
        with pytest.raises(ArgumentError, match="name="):
            Table(name, shown)
    twice = (Table("a", shown, shown), Table("a", shown, shown))
    with pytest.raises(ArgumentError, match="'a' is the name of two"):
        report("text", sections=(Section("Result", twice),))
    with pytest.raises(ArgumentError, match="'a' is the name of two"):
        report("text", sections=(Section("Result", twice[:1]),), data={"a": shown})


@pytest.mark.usefixtures("blank_figures")
def test_pages_of_analyses_hold_their_tables_and_figures(tmp_path: Path) -> None:
    """Of made-up rows; the commands' own pages are looked at where they run (test_evidence_reports.py)."""
    runs = {
        gamma_sweep: write_run(tmp_path / "gamma", gamma_rows()),
        verifier_latency: write_latency_run(tmp_path / "latency"),
    }
    for analysis, run in runs.items():
        made = analysis.build(run)
        page = Page.of(write(made, run).with_suffix(".html"))
        assert [rows[1:] for rows in page.tables] == [table.shown.to_numpy().tolist() for table in made.tables]
        questions = [picture.question for picture in made.pictures]
        assert [words for kind, words in page.headings if kind == "h3"] == questions
        assert all(question.endswith("?") for question in questions)


class Stub(ModuleType):
    """An analysis whose report is quick to draw."""

    def build(self, run: Path) -> Report:
        assert len(read_rows(run))
        return report("Is it <b>?", warning="Part of its sweep.")


def test_an_index_quotes_answers_and_warns_beside_them(tmp_path: Path) -> None:
    """A line said what other processes did, that weights were random, or that a CPU's times are not a GPU's."""
    rows = [dataclasses.replace(row, other_cores=4.0, synthetic=True) for row in gamma_rows()]
    made = gamma_sweep.build(write_run(tmp_path / "gamma", rows))
    assert answer_of(made).startswith("The highest speedup is that of gamma 3 with masked: 1.60 [1.59, 1.61] times")
    assert made.warning.startswith("6 of 6 runs are synthetic")
    made = verifier_latency.build(write_latency_run(tmp_path / "latency"))
    assert answer_of(made).startswith("Quickest in a batch of ")


@pytest.mark.usefixtures("blank_figures")
def test_pages_of_many_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps, one of them without rows and one without an analysis: a line each."""
    monkeypatch.setattr("specbench.runs.reporting.analysis_of", lambda exp, _: {"gamma_sweep": Stub(exp)}.get(exp))
    outputs = tmp_path / "outputs"
    write_run(outputs / "gamma_sweep" / "1", [make_row(hardware="<b>CPU</b>")], empirical=False)
    (outputs / "gamma_sweep" / "latest").symlink_to("1")
    planned_sweep(outputs / "gamma_sweep" / "2", JobState("a"), exp="gamma_sweep")
    write_run(outputs / "mine" / "1", [make_row(exp="mine")], empirical=False)
    planned_sweep(outputs / "mine" / "2", JobState("a"), exp="mine")
    write_run(tmp_path / "other" / "gamma_sweep" / "1", [make_row(hardware="another")], empirical=False)
    to = tmp_path / "pages"
    index = Page.of(write_pages([outputs, tmp_path / "other"], to))
    heading, first, second, third, killed, other = index.tables[0]
    assert heading == ["experiment", "question", "answer", "date", "hardware"]
    assert (first[0], first[3:]) == ("gamma_sweep/1", ["2026-01-01", "<b>CPU</b>"])
    assert {"Part of its sweep.", "Is it <b>?"} <= set(index.texts)
    assert "no rows to report on, 0 of 1 jobs done, 1 not started" in " ".join(index.texts)
    assert second[0] == "gamma_sweep/2"
    assert third[0] == "mine/1"
    assert "no analysis of this name, and none that fits its rows" in index.texts
    assert killed[0] == "mine/2"
    missing = "none that fits its rows; 0 of 1 jobs done, 1 not started. To run what is missing:"
    assert f"no analysis of this name, and {missing} python -m specbench resume={outputs / 'mine' / '2'}" in index.texts
    assert other[4] == "another"  # of the same name, in a folder of its own
    for name in ("gamma_sweep_1", "gamma_sweep_1_2"):
        assert Page.of(to / name / "report" / "report.html").headings[0] == ("h1", "Is it <b>?")


def test_folders_with_nothing_to_show_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        write_pages([tmp_path / "gone"], tmp_path / "pages")
    with pytest.raises(ConfigError, match="no sweep in it"):
        write_pages([tmp_path], tmp_path / "pages")


def test_pages_that_cannot_be_written_name_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for to in (tmp_path / "file", tmp_path / "file" / "pages"):
        with pytest.raises(WriteError, match=r"^cannot write to .* \(.+\)\. Free space .* or name another .* --to\.$"):
            write_pages([tmp_path], to)
