"""The words of reports: Jinja templates of Markdown, filled with values and read back block by block.

A template is a file of macros, each a sentence, a section or a page. Whatever a value holds is text: it is escaped
(specbench/reports/markdown.py), unless it is Markup.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.ranking import TIE
from specbench.reports import cells, markdown

LOADER = jinja2.FileSystemLoader(Path(__file__).with_name("words"))  # specbench.analysis adds its pages
ENVIRONMENT = jinja2.Environment(
    loader=LOADER,
    autoescape=True,
    finalize=lambda value: value if isinstance(value, jinja2.Undefined) else markdown.escape(value),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
FILTERS: dict[str, Any] = {"f": cells.number, "plain": cells.plain, "strong": markdown.strong, "log10": math.log10}
FILTERS |= {"with_code": markdown.with_code}
GLOBALS: dict[str, Any] = {"interval": cells.interval, "values": cells.values, "few_units": cells.few_units}
GLOBALS |= {"prompts_decoded": cells.prompts_decoded}
GLOBALS |= {"level": f"{CONFIDENCE:.0%}", "tie": f"{TIE:.0%}"}
ENVIRONMENT.filters.update(FILTERS)
ENVIRONMENT.tests["missing"] = lambda value: bool(pd.isna(value))
ENVIRONMENT.globals.update(GLOBALS)


def words(macro: str, *values: Any) -> Markup:
    """What a macro, ``FILE.MACRO`` such as ``ranking.fastest``, says, as one paragraph of Markdown."""
    return Markup(" ".join(text for _, _, blocks in parts(macro, *values) for text in blocks))


def parts(name: str, *values: Any, **named: Any) -> Iterator[tuple[str, str, list[Markup]]]:
    """Each heading of what a macro says, with the blocks below it: its level, such as ``h2``, and its words; of a rule
    all are empty."""
    file, _, macro = name.partition(".")
    text = getattr(ENVIRONMENT.get_template(f"{file}.md").module, macro)(*values, **named)
    level, heading, blocks = "", "", list[Markup]()
    for tag, texts in markdown.blocks(text):
        if tag in ("h1", "h2", "h3"):
            if level or blocks:
                yield level, heading, blocks
            level, heading, blocks = tag, markdown.literal(texts[0]), []
        elif tag == "hr" or (level == "h3" and tag != "p"):
            yield level, heading, blocks
            level, heading, blocks = "more", "", []
        if tag == "p":
            blocks.append(markdown.line(texts[0]))
        elif tag == "ul":
            blocks.append(markdown.bullets(map(Markup, texts)))
        elif tag == "code":
            blocks.append(markdown.lines(texts))
    yield level, heading, blocks
