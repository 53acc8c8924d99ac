"""The documentation site: `make site` builds it from the pages that one reads beside the code.

Nothing is fetched: the theme brings its own scripts and styles, and text has the reader's own fonts. A link that leads
nowhere ends the build.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.parsers import Parser

from specbench import __version__

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s#]+)")
CODE = {".py": "python", ".yaml": "yaml"}  # files that are pages where another one links to them

project, author, release = "specbench", "the specbench authors", __version__
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# What is listed at the side, below the page that it belongs to.
CONTENTS = {
    "README": {
        "Begin": [
            "docs/first-run",
            "docs/sweeps",
            "docs/models",
            "docs/workloads",
            "docs/gpu",
            "docs/wandb",
            "docs/paper",
        ],
        "Methods": [
            "docs/sampling",
            "docs/stopping",
            "docs/structured",
            "docs/drafters",
            "docs/drafting",
            "docs/trees",
            "docs/vocabularies",
            "docs/replay",
            "docs/verifier",
            "docs/engine",
            "docs/judge",
            "docs/sources",
        ],
        "Results": ["docs/certificates", "docs/inputs", "docs/verdicts", "docs/numbers", "experiments/README"],
        "Reference": ["docs/api", "docs/architecture", "CONTRIBUTING", "CHANGELOG", "SECURITY"],
    },
    "experiments/README": {"Experiments": ["*"]},
}
root_doc = "README"
PAGES = ["*.md", "docs/*.md", "docs/*.rst", "experiments/**.md", "specbench/models/embedded/*.md"]
exclude_patterns = [".*", "outputs", "site", "dist"]
suppress_warnings = ["toc.not_included"]  # tables and certificates, which the pages of experiments link to


def linked_code() -> set[str]:
    """The modules and configurations that a page links to, so that its link leads to a page of the site."""
    pages = [page for pattern in PAGES for page in ROOT.glob(pattern.replace("**", "**/*"))]
    links = [page.parent / link for page in pages for link in LINK.findall(page.read_text())]
    return {str(link.resolve().relative_to(ROOT)) for link in links if link.suffix in CODE and link.is_file()}


include_patterns = [*PAGES, *sorted(linked_code())]


class Code(Parser):
    """A file of code as a page."""

    supported = tuple(CODE.values())

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Makes its text one block below its path."""
        name = Path(document["source"]).relative_to(ROOT)
        section = nodes.section("", nodes.title("", str(name)), ids=["code"])
        section += nodes.literal_block(inputstring, inputstring, language=CODE[name.suffix])
        document += section


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """The pages themselves are plain Markdown, and say nothing of the site."""
    for caption, listed in CONTENTS.get(page, {}).items():
        entries = "\n".join(listed)
        source[0] += f"\n\n```{{toctree}}\n:caption: {caption}\n:hidden:\n:glob:\n\n{entries}\n```\n"


def check_nothing_is_fetched(app: Sphinx, failure: Exception | None) -> None:
    """Raises ExtensionError for a page that would load a script, a style or an image from elsewhere."""
    for page in Path(app.outdir).rglob("*.html"):
        if found := re.search(r'(?:<link[^>]* href|src)="(?:https?:)?//[^"]*"', page.read_text()):
            raise ExtensionError(f"{page}: {found[0]}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    for suffix, language in CODE.items():
        app.add_source_suffix(suffix, language)
    app.add_source_parser(Code)
    app.connect("source-read", add_contents)
    app.connect("build-finished", check_nothing_is_fetched)


# How they look

html_theme = "furo"
html_title = f"specbench {release}"
html_copy_source = html_show_sourcelink = html_show_sphinx = False
html_additional_pages = {"index": "to_readme.html"}
templates_path = ["templates"]
html_static_path, html_css_files = ["static"], ["site.css"]
myst_heading_anchors = 3  # as code hosts make them
nitpicky = True  # what a docstring refers to has to be on these pages,
nitpick_ignore_regex = [("py:.*", r"(?!specbench\.).*|specbench\.models\.cached_model\.CachedModel")]  # if it is ours
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
