"""How a series looks: one look for a rule or a verifier, the same in every figure.

A look is a colour, a marker and a dash pattern. Colours are told apart with any colour vision; in grey, markers do the
same. Lines of flawed verifiers are dashed.
"""

import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from specbench.core.errors import ArgumentError
from specbench.rules import RULES

# Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), but for black and yellow, and some of Paul Tol's "muted".
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INDIGO, WINE, OLIVE = "#332288", "#882255", "#999933"
NAMED_COLOURS = {
    "blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "purple": PURPLE, "orange": ORANGE, "sky": SKY,
    "indigo": INDIGO, "wine": WINE, "olive": OLIVE,
}  # fmt: skip
COLOURS = tuple(NAMED_COLOURS.values())
OWN_COLOURS = ("#44AA99", "#CC6677", "#661100")  # of names that are not in named_looks: others of Tol's
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "d", "*")
HATCHES = ("", "////", "....", r"\\\\", "xxxx", "----", "++++", "||||", "oooo", "****", "//..", r"\\..", "--..")

Dashes = str | tuple[int, tuple[float, ...]]  # as matplotlib has them: lengths of strokes and gaps
SOLID: Dashes = "-"
DASHED: Dashes = (0, (4.0, 3.0))
DOTTED: Dashes = (0, (1.0, 1.5))
DASHDOT: Dashes = (0, (6.0, 2.0, 1.0, 2.0))
DASHES = (SOLID, DASHDOT, DOTTED, DASHED)  # dashed last: so are flawed verifiers and what theory expects


@dataclass(frozen=True)
class Look:
    """Colour, marker and dash pattern of a series, as matplotlib's arguments."""

    colour: str
    marker: str
    dashes: Dashes = SOLID

    @property
    def line(self) -> dict[str, Any]:
        """A line with markers."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}

    @property
    def points(self) -> dict[str, Any]:
        """Markers without a line: what was measured, where a line is what was computed."""
        return {**self.line, "linestyle": "none"}

    @property
    def curve(self) -> dict[str, Any]:
        """A line with a few small, hollow markers: what was computed, at many points."""
        hollow = {"markerfacecolor": "white", "markeredgecolor": self.colour, "markeredgewidth": 0.8}
        return {**self.line, **hollow, "markersize": 3, "markevery": 0.2}

    @property
    def bars(self) -> dict[str, Any]:
        """Bars, hatched so that neighbours differ in grey."""
        return {"facecolor": self.colour, "hatch": HATCHES[MARKERS.index(self.marker)], "edgecolor": "white"}


# Series of no registered rule: other projects' verifiers, and greedy drafting in the place of a rule.
OTHERS = {
    "external/vllm_v2": Look(INDIGO, "X"),
    "external/vllm_v1": Look(WINE, "<"),
    "external/vllm_v1_kept": Look(WINE, ">"),
    "external/flashinfer": Look(SKY, "p"),
    "external/flashinfer_kept": Look(SKY, "h"),
    "external/transformers": Look(OLIVE, "d"),
    "argmax": Look(PURPLE, "*"),
}


def named_looks() -> dict[str, Look]:
    """The looks of registered rules, of their verifiers and of OTHERS, by name. A rule looks like its first verifier.

    Raises:
        ArgumentError: a verifier of a registered rule with a marker that is not one of MARKERS.
    """
    named: dict[str, Look] = {}
    for info in RULES.values():
        verifiers = {**info.verifiers, **info.tree_verifiers}
        for verifier, look in verifiers.items():
            if look.marker not in MARKERS:
                raise ArgumentError(
                    f"rule={info.name}: verifiers has the marker {look.marker!r} for {verifier!r}. "
                    f"Use one of {' '.join(MARKERS)}."
                )
            named[verifier] = Look(NAMED_COLOURS.get(look.colour, look.colour), look.marker)
        if verifiers:
            named[info.name] = named.get(info.name) or named[next(iter(verifiers))]
    return named | OTHERS


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The looks of a figure's series, by name.

    Args:
        names: rules or verifiers, with what else tells series apart behind a comma or in brackets: ``masked``,
            ``masked, batch_size 4``, ``fused (job 3)``. Series of one verifier share its colour, and have markers and
            dashes of their own.

    Returns:
        No two of a figure are alike, nor are their markers while there are enough. Names of ``named_looks`` have the
        same look in every figure. The look of another name is chosen by the name, among the looks that the figure has
        left.
    """
    every, named = list(dict.fromkeys(map(str, names))), named_looks()
    chosen: dict[str, Look] = {}
    for name in every:
        if name in named and named[name] not in chosen.values():  # a rule and its first verifier may both be shown
            chosen[name] = named[name]
    for name in sorted(set(every) - set(chosen)):
        chosen[name] = _free(list(_candidates(name, named)), set(chosen.values()), name != _verifier(name))
    return {name: chosen[name] for name in every}


def in_order(names: Iterable[object]) -> dict[Any, Look]:
    """Looks of series that are neither rules nor verifiers, such as temperatures, by their place in the figure."""
    return {
        name: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i // len(MARKERS) % len(DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def _candidates(name: str, named: Mapping[str, Look]) -> Iterator[Look]:
    """Looks for a name that has none of its own, best first: its verifier's, then others of the same colour."""
    verifier = _verifier(name)
    start = zlib.crc32(verifier.encode())
    dashes = DASHED if verifier.startswith("flawed") else SOLID
    home = named.get(verifier, Look(OWN_COLOURS[start % len(OWN_COLOURS)], MARKERS[start % len(MARKERS)], dashes))
    first = MARKERS.index(home.marker)
    for dashes, step in itertools.product(
        sorted(DASHES, key=lambda pattern: pattern != home.dashes), range(len(MARKERS))
    ):
        yield Look(home.colour, MARKERS[(first + step) % len(MARKERS)], dashes)


def _verifier(name: str) -> str:
    return re.split(r", | \(", name)[0]


def _free(every: Sequence[Look], used: Set[Look], is_setting: bool) -> Look:
    """The first look with an unused marker, for a setting of a verifier also with an unused line; failing that, the
    first with an unused pair of marker and dashes; failing that, the first."""
    markers, pairs = {look.marker for look in used}, {(look.marker, look.dashes) for look in used}
    lines = {(look.colour, look.dashes) for look in used}
    unmarked = [look for look in every if look.marker not in markers]
    apart = [look for look in unmarked if is_setting and (look.colour, look.dashes) not in lines]
    unpaired = (look for look in every if (look.marker, look.dashes) not in pairs)
    return next(itertools.chain(apart, unmarked, unpaired, every))
