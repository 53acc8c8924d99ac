"""What a document needs of a paper's folder: preamble, captions, BibTeX of rules; a small document that includes it.

The files are Jinja templates of templates/: LaTeX with ``<< value >>`` and ``<% if ... %>``.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jinja2

from specbench.core.errors import ArgumentError
from specbench.reports.latex.escape import code, escape
from specbench.reports.latex.tables import is_wide, tabulars
from specbench.reports.markdown import inlines
from specbench.reports.model import Report
from specbench.reports.plots.style import Page
from specbench.rules import RULES

HERE = Path(__file__).parent
MARK = "% Written by python -m specbench paper, which writes it again.\n"
TIMES = ("STIXGeneral", "Times New Roman", "Nimbus Roman", "TeX Gyre Termes", "Liberation Serif")
_ENTRY = re.compile(r"@\w+\{(?P<key>[^,\s]+),.*?\}(?=\s*(?:@|\Z))", re.DOTALL)


def fill(template: str, **values: object) -> str:
    """A file of LaTeX or BibTeX, from its template."""
    return _templates().get_template(template).render(values)


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters.update(escape=escape, words=words, tabulars=tabulars, is_wide=is_wide)
    return environment


def words(markdown: str) -> str:
    """A paragraph of Markdown as LaTeX; a link keeps its words, since a paper has no links of a report's folder."""
    parts = []
    for token in inlines(markdown):
        if token.type == "code_inline":
            parts.append(code(token.content))
        elif token.type.startswith("strong"):
            parts.append(r"\textbf{" if token.nesting == 1 else "}")
        elif not token.type.startswith("link"):
            parts.append(escape(token.content or " "))
    return "".join(parts)


def remark(report: Report) -> str:
    """What stands in front of every caption of a report that is of a part of its sweep."""
    return rf"\textbf{{{escape(report.warning)}}} " if report.warning else ""


def main(reports: Sequence[Report], pages: Mapping[str, Page]) -> str:
    """main.tex: an example, each report with its first table and its first figure."""
    column, wide = pages["column"], pages["wide"]
    rules = dict.fromkeys(rule for report in reports for rule in report.rules)
    cited = [(RULES[rule].title, keys) for rule in rules if (keys := citation_keys(rule))]
    widths = {"column": column.width, "wide": wide.width}
    return fill("main.tex", reports=reports, cited=cited, in_times=column.font in TIMES, **widths)


def bibtex_entries() -> dict[str, str]:
    """The entries of references.bib and of registered rules, by key."""
    text = (HERE / "references.bib").read_text(encoding="utf-8")
    texts = [text, *(info.bibtex for info in RULES.values())]
    return {entry["key"]: entry.group() for text in texts for entry in _ENTRY.finditer(text)}


def bibliography(rules: Iterable[str], version: str) -> str:
    """refs.bib: specbench, and the papers of rules by name. A name that is not registered adds nothing."""
    entries = bibtex_entries()
    cited = dict.fromkeys(key for rule in rules for key in citation_keys(rule, with_trees=True))
    return fill("refs.bib", version=version, entries=[entries[key] for key in cited])


def citation_keys(rule: str, with_trees: bool = False) -> list[str]:
    """The BibTeX keys of a rule's papers; none for a name that is not registered.

    Raises:
        ArgumentError: the rule names a paper without an entry.
    """
    if rule not in RULES:
        return []
    info, entries = RULES[rule], bibtex_entries()
    keys = [*info.papers, *(info.tree_papers if with_trees else ())]
    for key in keys:
        if key not in entries:
            raise ArgumentError(
                f"rule={rule}: papers has {key!r}, of which there is no BibTeX entry. Add it to the rule's `bibtex`."
            )
    return keys
