r"""Reports as LaTeX: text stays text, numbers of cells are macros with names, and what names one twice is refused."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from matplotlib.figure import Figure

from specbench.core.errors import ArgumentError
from specbench.reports import Picture, Report, Section, Table, markdown
from specbench.reports.latex import document, tables
from specbench.reports.latex.escape import code, escape
from specbench.reports.latex.numbers import Numbers
from specbench.rules import RULES, RuleInfo

HOSTILE = r"\input{/etc/passwd} $x$ | <script> 50% #1 a_b & ~ ^ \^^M `q` 'r' -- \u202e"


def table(**changes: object) -> Table:
    shown = pd.DataFrame(
        {
            "gamma": ["2", "2", "4"],
            "verifier": ["masked", "a_b", "masked"],
            "speedup": ["1.25 [1.2, 1.3]", "-", "-4.0%"],
        }
    )
    return Table(
        **{"name": "table", "shown": shown, "caption": "By gamma; 95% intervals.", "left": ("verifier",), **changes}
    )


def in_float(shown: Table | Picture, experiment: str, numbers: Numbers) -> str:
    """The float of a table or a figure."""
    kind = "table" if isinstance(shown, Table) else "picture"
    template = "table.tex" if isinstance(shown, Table) else "figure.tex"
    return document.fill(template, **{kind: shown}, experiment=experiment, numbers=numbers, remark="")


def report(text: str = "plain") -> Report:
    """A report in which a text stands wherever one may."""
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2])
    shown, words = pd.DataFrame({"gamma": ["2"], text: [text]}), markdown.escape(text)
    caption = f"{words} {markdown.strong(text)} {markdown.code(text)} [{words}](https://example.org)"
    blocks = (Table("rows", shown, caption=caption, left=(text,)), Picture("drawn", figure, text, words))
    return Report("made_up", text, words, (Section(text, blocks),), rules=("token", "mine"))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("$x_1$ & 50%", r"\$x\_1\$ \& 50\%"),
        ("<script> | ~^#", r"\textless{}script\textgreater{} \textbar{} \textasciitilde{}\textasciicircum{}\#"),
        ("--draft ``'' ,,", r"-{}-draft {\char96}{\char96}'{}' ,{},"),
        ("\u03b3 \u00b5s \u2264 \u2212", r"\ensuremath{\gamma} \ensuremath{\mu}s \ensuremath{\le} \ensuremath{-}"),
        ("caf\u00e9 \u4e2d \U0001f600", r"caf\'{e} \texttt{U+4E2D} \texttt{U+1F600}"),
        ("cafe\u0301", r"caf\'{e}"),
        ("two\nlines\t.", "two lines ."),
    ],
)  # fmt: skip
def test_text_is_escaped(text: str, made: str) -> None:
    assert escape(text) == made


def test_escaped_text_is_ascii_and_holds_no_other_command() -> None:
    letters = "".join(map(chr, (*range(32, 0x600), *range(0x2000, 0x2300))))
    for made in (escape(letters), code(letters)):
        assert made.isascii()
        commands = set(re.findall(r"\\[A-Za-z]+", made))
        assert not commands & {r"\input", r"\write", r"\def", r"\csname"}
        bare = re.sub(r"\\[A-Za-z]+|\\.", "", made)
        assert not set(bare) & set("\\$%#&")
        assert bare.count("{") == bare.count("}")


def test_every_number_of_a_cell_is_a_macro() -> None:
    numbers = Numbers()
    shown = table().shown.rename(columns={"speedup": "64 requests"})
    source = in_float(table(shown=shown), "gamma_sweep", numbers)
    assert r"\specbench{gamma_sweep/table/gamma=2,verifier=masked/64_requests}" in source
    cells = re.sub(r"\\specbench\{[^}]*\}", "", source.partition(r"\midrule")[2])
    assert not re.search(r"\d", cells), cells
    defined = dict(re.findall(r"\\specbenchnumber\{(.*?)\}\{(.*)\}", numbers.render()))
    cell = "gamma_sweep/table/gamma=2,verifier=masked/64_requests"
    assert defined[cell] == "1.25 [1.2, 1.3]"
    assert [defined[f"{cell}/{part}"] for part in ("value", "low", "high")] == ["1.25", "1.2", "1.3"]
    assert defined["gamma_sweep/table/gamma=4,verifier=masked/64_requests"] == r"\ensuremath{-}4.0\%"
    assert defined["gamma_sweep/table/gamma=2,verifier=a_b/gamma"] == "2"


@pytest.mark.parametrize(
    ("shown", "left", "names"),
    [
        ({"gamma": ["2"], "verifier": ["m"], "x": ["1"]}, ("verifier",), ["gamma=2,verifier=m"]),
        ({"verifier": ["m", "n"], "x": ["1", "1"]}, ("verifier",), ["verifier=m", "verifier=n"]),
        ({"x": ["1", "1"], "y": ["2", "2"]}, (), ["x=1,y=2", "x=1,y=2,2"]),
    ],
)
def test_rows_have_names_of_their_own_that_stay_if_rows_are_added(shown: dict, left: tuple, names: list[str]) -> None:
    assert tables.row_names(Table("t", pd.DataFrame(shown), left=left)) == names


def test_words_of_a_caption_keep_their_marks() -> None:
    assert document.words("so **very** `x_y` [2](y.csv)") == rf"so \textbf{{very}} {code('x_y')} 2"


def test_two_numbers_of_one_name_are_refused() -> None:
    numbers = Numbers()
    numbers.macro("a b", "1")
    assert numbers.macro("a b", "1") == r"\specbench{a_b}"
    with pytest.raises(ArgumentError, match="a_b"):
        numbers.macro("a_b", "2")


def test_an_uncertain_speedup_has_its_value_too():
    numbers = Numbers()
    numbers.headlines("one", {"Speedup": "1.10 (uncertain by a factor of 18)"})
    lines = numbers.render().splitlines()
    assert r"\def\specbenchSpeedupValue{\specbench{one/Speedup/value}}" in lines
    assert r"\specbenchnumber{one/Speedup/value}{1.10}" in lines
    assert not [line for line in lines if "Low" in line or "/low" in line]


def test_words_of_any_script_make_names_that_differ() -> None:
    """Categories of two Chinese words had one name, so that a workload with them could not be put into a paper."""
    shown = pd.DataFrame({"category": ["写作", "数学", "कि", "की"], "speedup": ["1.2", "1.3", "1.4", "1.5"]})
    numbers = Numbers()
    tables.tabular(Table("t", shown, left=("category",)), "x", numbers)
    defined = dict(re.findall(r"\\specbenchnumber\{(.*?)\}\{(.*)\}", numbers.render()))
    assert list(defined.values()) == ["1.2", "1.3", "1.4", "1.5"]
    assert all(name.isascii() for name in defined)
    assert defined["x/category=U+5199U+4F5C/speedup"] == "1.2"
    assert numbers.macro("floor µs", "1") == r"\specbench{floor_s}"


def test_short_names_are_the_first_experiment_s() -> None:
    numbers = Numbers()
    numbers.headlines("one", {"Speedup": "1.25 [1.2, 1.3]"})
    numbers.headlines("two", {"Speedup": "3", "Latency": "4"})
    short = dict(re.findall(r"\\def(\\specbench[A-Z]\w*)\{(.*)\}", numbers.render()))
    assert short[r"\specbenchSpeedup"] == r"\specbench{one/Speedup}"
    assert short[r"\specbenchSpeedupLow"] == r"\specbench{one/Speedup/low}"
    assert short[r"\specbenchLatency"] == r"\specbench{two/Latency}"
    with pytest.raises(ArgumentError, match="headlines"):
        Report("x", "x", "x", (), headlines={"Speed_up": "1"})


def test_a_cell_cannot_pass_for_an_argument_of_the_line_before() -> None:
    rows = tables.tabular(Table("t", pd.DataFrame({"word": ["[3pt]", "*"]}), left=("word",)), "x", Numbers())
    assert [line for line in rows.splitlines() if "3pt" in line or "*" in line] == [r"{}[3pt] \\", r"{}* \\"]


def test_wide_tables_and_figures_of_several_panels_go_across_both_columns() -> None:
    wide = pd.DataFrame({f"column {i}": ["1.25 [1.2, 1.3]"] for i in range(6)})
    assert r"\begin{table*}" in in_float(Table("t", wide), "x", Numbers())
    assert r"\begin{table}" in in_float(table(), "x", Numbers())
    figure = Figure()
    figure.subplots(1, 2)
    assert "/x/p-wide.pdf" in in_float(Picture("p", figure, "?", "."), "x", Numbers())
    assert "/made_up/drawn-column.pdf" in in_float(report().pictures[0], "made_up", Numbers())


def test_a_table_that_is_longer_than_a_page_goes_on_in_further_floats_of_its_number() -> None:
    numbers, count = Numbers(), 2 * tables.ROWS + 1
    shown = pd.DataFrame({"gamma": [str(i) for i in range(count)], "speedup": ["1.5"] * count})
    parts = in_float(Table("t", shown, caption="All."), "x", numbers).split(r"\begin{table}")[1:]
    assert [part.count("speedup}") for part in parts] == [tables.ROWS, tables.ROWS, 1]
    assert [(r"\label{tab:x-t}" in part, r"\addtocounter{table}{-1}" in part) for part in parts] == [
        (True, False), (False, True), (False, True),
    ]  # fmt: skip
    assert all(part.count(r"\midrule") == part.count(r"\end{table}") == 1 for part in parts)


def test_every_paper_that_a_rule_names_has_its_entry() -> None:
    entries = document.bibtex_entries()
    for info in RULES.values():
        assert {*info.papers, *info.tree_papers} <= set(entries)
    assert document.citation_keys("token") == ["leviathan2023fast", "chen2023accelerating"]
    assert document.citation_keys("mine") == []
    refs = document.bibliography(["token", "mine"], "0.1.0")
    assert "Yaniv Leviathan" in refs
    assert "sun2025block" not in refs


def test_the_entries_of_a_rule_may_be_written_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/verifier.md writes one."""
    written = "@misc{key2026, title={A {B}}, url={x@y}} @book{other, year=2026}"
    monkeypatch.setitem(RULES, "mine", RuleInfo(name="mine", title="my rule", papers=("key2026",), bibtex=written))
    entries = document.bibtex_entries()
    assert (entries["key2026"], entries["other"]) == (
        "@misc{key2026, title={A {B}}, url={x@y}}",
        "@book{other, year=2026}",
    )
    assert document.citation_keys("mine") == ["key2026"]
