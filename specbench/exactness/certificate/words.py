"""The words of a certificate: Jinja templates beside this file, filled with values of the evidence.

words.md has what is said, in lists, page.md the page with its tables. White space in words.md stands for one blank, or
for none before a punctuation mark. What a value holds is kept as it is.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from specbench.core.rounding import about, least, most
from specbench.exactness import results, verdict
from specbench.exactness.inputs import published
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.rules.rule import rules_with_formulas

EXACT = 1e-11  # total variation a step: what float64 arithmetic and the resolution of uniforms cost
# White space inside values is replaced while the templates' own is folded, and restored afterwards.
_ASIDE, _BACK = str.maketrans(" \n", "\ue000\ue001"), str.maketrans("\ue000\ue001", " \n")


def say(macro: str, *values: Any) -> list[str]:
    """The items of a list that a macro of words.md makes of values, or its one text."""
    text = getattr(_templates().get_template("words.md").module, macro)(*values)
    items = (re.sub(r"[ \n]+", " ", item).strip(" ") for item in re.split(r"(?m)^- ", text))
    return [re.sub(" (?=[,.:;])", "", item).translate(_BACK) for item in items if item]


def page_of(certificate: Any) -> str:
    """The page of a certificate, by page.md."""
    return _templates().get_template("page.md").render(c=certificate).translate(_BACK)


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # tells what a template says from what a value holds
        finalize=lambda value: value if isinstance(value, Markup) else Markup(str(value).translate(_ASIDE)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Any] = {
        "n": lambda value: f"{value:,.0f}",
        "g": lambda value, digits=6: f"{value:.{digits}g}",
        "e": lambda value: f"{value:.1e}",
        "most": lambda value, unknown="-": unknown if value is None else most(value),
        "least": least,
        "about": about,
        "repr": repr,
        "setting": lambda value: f"{value:,}" if type(value) is int else value,
        "table": _table,
    }
    known: dict[str, Any] = {"EXACT": EXACT, "SURE": f"{CONFIDENCE:.0%}"}
    known |= {"largest": _largest, "choices_of_d": _choices, "rules_with_formulas": rules_with_formulas}
    for module in (results, verdict):  # their names mean in templates what they do here
        known |= {name: value for name, value in vars(module).items() if not name.startswith("_")}
    made.filters.update(filters)
    made.globals.update(known)
    return made


def _largest(rows: Iterable[Any], name: str) -> float | int:
    return max((getattr(row, name) or 0.0 for row in rows), default=0.0)


def _choices() -> list[dict[str, Any]]:
    return [dict(zip(("choice", "of each", "options", "meaning"), row, strict=True)) for row in published()]


def _table(rows: list[dict[str, Any]], leave_out: str = "") -> str:
    columns = [name for name in rows[0] if name != leave_out]

    def text(value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.3g}"
        return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")

    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(text(row[name]) for name in columns) + " |" for row in rows)])
