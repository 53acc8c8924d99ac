"""A figure as SVG that stands in a page beside others: ids of its own, no fonts or styles from elsewhere."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from specbench.reports.markdown import printable
from specbench.reports.plots.style import style

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Text stays text, which can be searched and read aloud. Ids are hashes, which a fixed salt makes the same each time.
_OPTIONS = {"svg.fonttype": "none", "svg.hashsalt": "specbench", "svg.image_inline": True}
ENLARGED = 1.5  # figures are made for paper, whose text is smaller than a page's
_ADDRESS = re.compile(r"url\(#([^)]*)\)")
# Matplotlib's own style is for every element there is, a page's among them; style.css has it for figures alone.
_LEFT_OUT = {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}


def svg(figure: Figure, name: str) -> str:
    """The ``<svg>`` element of a figure, one and a half times as wide as on paper; a figure gives the same bytes again.

    Args:
        figure: as drawn by specbench.reports.plots.
        name: stands before every id, so that two figures of a page have none in common.
    """
    file = io.StringIO()
    with style(), mpl.rc_context(_OPTIONS):  # ty: ignore[invalid-argument-type]
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(printable(file.getvalue()))
    for element in root.iter():
        for child in [child for child in element if child.tag in _LEFT_OUT]:
            element.remove(child)
        for key, value in element.attrib.items():
            element.set(key, _renamed(key, value, name))
    root.set("style", f"width: calc({ENLARGED} * {root.attrib.pop('width')})")
    root.attrib.pop("height")
    root.set("role", "img")
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _renamed(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return _ADDRESS.sub(rf"url(#{name}-\1)", value)
