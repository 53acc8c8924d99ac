"""Literal text as LaTeX source, in ASCII alone: pdfTeX, XeTeX and LuaTeX all read it, in any font encoding.

A character that LaTeX would read as more, or print as another (OT1 fonts print ``<`` as an inverted exclamation mark),
becomes the command that prints it. Letters with accents become commands as well; what has no command is shown by its
code, such as U+4E2D, since a font that lacks a character would leave it out in silence.
"""

import re
import unicodedata
from collections.abc import Mapping

_PRINTED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "%": r"\%", "_": r"\_", "#": r"\#", "&": r"\&",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"{\char34}", "`": r"{\char96}",
}  # fmt: skip
_TYPED = {letter: rf"{{\char{ord(letter)}}}" for letter in "\\{}$%_#&~^<>|\"`'"}  # typewriter fonts have all of ASCII
_TYPED |= {letter: f"{_TYPED.get(letter, letter)}\\allowbreak{{}}" for letter in "/_="}  # paths are longer than columns
_LIGATURES = re.compile(r"(?<=-)(?=-)|(?<=')(?=')|(?<=,)(?=,)")
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi"
_GREEK_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
_SIGNS = {
    "\u2212": "-", "\u00d7": r"\times", "\u00b1": r"\pm", "\u00b7": r"\cdot", "\u2264": r"\le", "\u2265": r"\ge",
    "\u2248": r"\approx", "\u2260": r"\ne", "\u2192": r"\to", "\u2190": r"\leftarrow", "\u221e": r"\infty",
    "\u2211": r"\sum", "\u220f": r"\prod", "\u221a": r"\surd", "\u2208": r"\in", "\u00b0": r"^{\circ}",
    "\u00b5": r"\mu", "\u03c9": r"\omega", "\u00b2": "^2", "\u00b3": "^3", "\u00ac": r"\neg",
    **{unicodedata.lookup(f"GREEK SMALL LETTER {'LAMDA' if name == 'lambda' else name}"): f"\\{name}"
       for name in _GREEK.split()},
    **{unicodedata.lookup(f"GREEK CAPITAL LETTER {'LAMDA' if name == 'Lambda' else name}"): f"\\{name}"
       for name in _GREEK_CAPITALS.split()},
}  # fmt: skip
_LETTERS = {
    "\u2013": "--", "\u2014": "---", "\u2026": r"\ldots{}", "\u2018": "{\\char96}", "\u2019": "'", "\u201c": "``",
    "\u201d": "''", "\u00a0": "~", "\u2009": r"\,", "\u202f": r"\,", "\u00df": r"\ss{}", "\u00e6": r"\ae{}",
    "\u00c6": r"\AE{}", "\u00f8": r"\o{}", "\u00d8": r"\O{}", "\u0142": r"\l{}", "\u0141": r"\L{}", "\u0131": r"\i{}",
    "\u0153": r"\oe{}", "\u0152": r"\OE{}", "\u00a7": r"\S{}", "\u2022": r"\textbullet{}",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u0327": "c",
    "\u030c": "v", "\u0304": "=", "\u0306": "u", "\u0307": ".", "\u030b": "H",
}  # fmt: skip


def escape(text: str) -> str:
    """Text in the font around it; line breaks and tabs become spaces."""
    return _escape(text, _PRINTED)


def code(text: str) -> str:
    """Text as it is typed, in typewriter letters."""
    return rf"\texttt{{{_escape(text, _TYPED)}}}"


def _escape(text: str, commands: Mapping[str, str]) -> str:
    composed = unicodedata.normalize("NFC", text)  # macOS writes an accent of a file's name behind its letter
    parts = _LIGATURES.split(re.sub(r"[ \t\r\n]+", " ", composed))
    return "{}".join("".join(commands.get(letter) or _beyond_ascii(letter) for letter in part) for part in parts)


def _beyond_ascii(letter: str) -> str:
    if " " <= letter <= "~":
        return letter
    if letter in _SIGNS:
        return rf"\ensuremath{{{_SIGNS[letter]}}}"
    if letter in _LETTERS:
        return _LETTERS[letter]
    base, *marks = unicodedata.normalize("NFD", letter)
    if len(marks) == 1 and marks[0] in _ACCENTS and base.isascii() and base.isalpha():
        return rf"\{_ACCENTS[marks[0]]}{{{base}}}"
    return rf"\texttt{{U+{ord(letter):04X}}}"
