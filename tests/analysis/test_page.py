"""Pages from templates: a value is read back as its text wherever it stands, and nothing shown is lost."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from jinja2 import nodes
from markupsafe import Markup

from specbench.analysis.engines import EngineRow
from specbench.analysis.page import PAGES, page
from specbench.analysis.predicted_speedup import ComparedRow
from specbench.analysis.structured import StructureRow
from specbench.benchmark.tables import AgreementRow, LatencyRow
from specbench.core.errors import ArgumentError
from specbench.metrics.results import CategoryRow
from specbench.replay.summary import TimingRow
from specbench.reports import Table
from specbench.reports.cells import NamedRun
from specbench.reports.markdown import literal, strong
from specbench.reports.templates import ENVIRONMENT, LOADER, words
from tests.reports.test_report_markdown import expected, nasty

ROWS = (
    *(NamedRun, CategoryRow, LatencyRow, AgreementRow, EngineRow, StructureRow, TimingRow),
    ComparedRow,
)
COLUMNS = {field.name for row in ROWS for field in fields(row)} | {"caught by"}  # a heading
OF_COLUMNS = {"values", "interval", "groupby", "drop_duplicates", "dropna"}  # functions that take a column's name


def named_columns(template: Path) -> set[str]:
    """The columns that a template names: ``frame["x"]``, and arguments of OF_COLUMNS."""
    tree = ENVIRONMENT.parse(template.read_text(encoding="utf-8"))
    items = [item.arg for item in tree.find_all(nodes.Getitem)]
    for call in tree.find_all(nodes.Call):
        function = call.node.attr if isinstance(call.node, nodes.Getattr) else call.node.name
        if function in OF_COLUMNS:
            keywords = [keyword.value for keyword in call.kwargs]
            items += [item for node in (*call.args, *keywords) for item in (node, *node.find_all(nodes.Const))]
    return {item.value for item in items if isinstance(item, nodes.Const) and isinstance(item.value, str)}


@pytest.mark.parametrize("folder", [PAGES, Path(LOADER.searchpath[0])], ids=["pages", "words"])
def test_templates_name_columns_that_rows_have(folder: Path) -> None:
    """No type checker reads templates."""
    unknown = {path.name: named_columns(path) - COLUMNS for path in folder.glob("*.md")}
    assert {name: columns for name, columns in unknown.items() if columns} == {}


@nasty
def test_a_value_is_text_wherever_it_stands(text: str) -> None:
    """At the beginning of a line, within one, before the template's own words, and in bold."""
    assert literal(words("shared.listed", [text])) == expected(text).strip()
    share = {"draws": 4000, "share": 0.01, "share_low": 0.001, "share_high": 0.1}
    row = {"verifier": text, "twin": text, "differences": 40, "wrong": 2, "vocabulary": 1000, **share}
    if name := expected(text).strip():
        sentence = words("verifier_agreement.compared_draws", row)
        assert literal(sentence) == (
            f"{name} differs from {name} in 40 of 4,000 draws at a vocabulary of 1,000, a share of 0.01 [0.001, 0.1]. "
            "2 of the differences are wrong: no rounding explains them."
        )
        assert sentence.startswith("**")
        assert sentence.endswith("**")


def test_parts_that_stand_out_stay_parts() -> None:
    markup = Markup(f"It is {strong('so *bold*')}; see [here](table.csv).")
    assert words("shared.listed", [markup]) == markup


def test_what_a_page_shows_has_a_place_and_every_place_is_known() -> None:
    values = {"positions": [], "opposed": [], "definitions": []}
    table = Table("values", pd.DataFrame({"a": ["1"]}))
    report = page(None, None, "metrics", {"values": table}, **values)
    assert report.question == "What would others have called these numbers?"
    assert report.sections[0].blocks[0].caption == "Every definition's value for each run."
    assert "Values" not in [
        section.heading for section in page(None, None, "metrics", {"values": None}, **values).sections
    ]
    with pytest.raises(ArgumentError, match=r"metrics\.md: 'values' is no table or figure"):
        page(None, None, "metrics", {}, **values)
    with pytest.raises(ArgumentError, match=r"metrics\.md: has no place for 'more'"):
        page(None, None, "metrics", {"values": table, "more": table}, **values)
