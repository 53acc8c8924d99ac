"""A report as one HTML page that needs nothing beside it: styles, script and figures are inside. It is XML too.

Its words are the Markdown of report.md, in which there is no HTML; every other text goes through Jinja's escaping. The
page's own policy (CSP) forbids it to load anything and to run any script but the script that sorts tables, which is
known by its hash; so a text that got through would still do nothing.
"""

import base64
import functools
import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path

import jinja2
import matplotlib as mpl
import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markupsafe import Markup

from specbench.reports.markdown import literal, printable
from specbench.reports.model import Picture, Report, Table
from specbench.reports.plots.style import style

WEB = Path(__file__).with_name("web")
ENLARGED = 1.5  # figures are made for paper, whose text is smaller than a page's
WIDE = 60  # letters of a cell, from which on it may take more than one line


def render(report: Report) -> str:
    """report.html. Links to tables and figures lead to where :func:`specbench.reports.writing.write` lays them."""
    return page("report.html.j2", title=report.title, report=report)


def page(template: str, **values: object) -> str:
    """A page from a template of web/, with styles, script and the policy that allows these and nothing else."""
    script = (WEB / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = {"policy": policy, "script": Markup(script), "styles": Markup((WEB / "style.css").read_text("utf-8"))}
    return _templates().get_template(template).render(**head, **values)


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    reader = MarkdownIt("commonmark", {"html": False, "xhtmlOut": True})
    reader.core.ruler.push("unbroken", _unbroken_words)
    filters = {
        "html": lambda markdown: Markup(reader.render(str(markdown)).replace("<pre>", '<pre tabindex="0">')),
        "words": lambda markdown: Markup(reader.renderInline(str(markdown))),
        "anchor": lambda heading: re.sub(r"\W+", "-", heading.lower()).strip("-"),  # by which links find a section
    }
    environment.filters.update(filters, literal=literal, unbroken=_unbroken, svg=_svg, columns=_columns, files=_files)
    return environment


def _unbroken_words(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            child.content = _unbroken(child.content) if child.type == "text" else child.content


def _unbroken(text: object) -> str:
    """Text in which no line ends inside an interval, such as [0.58, 0.64], on a page or on paper."""
    return re.sub(r"(?<=\d), (?=[-\d.e+]+\])", ",\N{NO-BREAK SPACE}", str(text))


def _svg(picture: Picture) -> Markup:
    """The figure as an image, which shares no id, font or style with the page; a figure gives the same bytes again."""
    file = io.StringIO()
    with style(), mpl.rc_context({"svg.hashsalt": "specbench"}):  # ids are hashes
        picture.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    data = base64.b64encode(printable(file.getvalue()).encode()).decode()
    width = ENLARGED * picture.figure.get_figwidth()
    return Markup(f'<img alt="" style="width: {width}in" src="data:image/svg+xml;base64,{data}" />')


def _columns(table: Table) -> list[tuple[str, str]]:
    """Heading and class of each column."""
    wide = {name: table.shown[name].astype(str).str.len().max() > WIDE for name in table.shown.columns}
    kinds = [("words" if wide[name] else "") if name in table.left else "number" for name in table.shown.columns]
    return list(zip(map(str, table.shown.columns), kinds, strict=True))


def _files(table: Table, data: Mapping[str, pd.DataFrame]) -> list[str]:
    """The files of a table, those first that people look for."""
    csv = [f"{table.name}.csv"] if table.raw is not None or table.name in data else []
    return [*csv, f"{table.name}.md", f"{table.name}.tex"]
