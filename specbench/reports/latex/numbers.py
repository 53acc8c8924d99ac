r"""Numbers by name, so that none is typed by hand: each is a macro of numbers.tex. The words of a report around them.

``\specbench{gamma_sweep/table/gamma=4,verifier=masked/speedup}`` prints that cell of that table as the report has it.
Names consist of the experiment, the table, the columns that tell its rows apart, and the column. In sentences and
captions they consist of the section and the words in front of the number: ``gamma_sweep/Result/the_lowest_p-value_is``.
Of an interval, such as 1.60 [1.59, 1.61], ``/value``, ``/low`` and ``/high`` behind its name print the parts. A name
that does not exist is an error of LaTeX that says the name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

from specbench.core.errors import ArgumentError
from specbench.reports.latex.escape import code, escape
from specbench.reports.markdown import blocks, inlines

DEFINITION = r"""% \specbench{NAME} prints a number of this file. It may stand in headings and captions.
\protected\def\specbench#1{%
  \ifcsname specbench/#1\endcsname
    \csname specbench/#1\endcsname
  \else
    \PackageError{specbench}{No number is named `#1'}{numbers.tex has all names. Run specbench paper again if the
      number is of a later run.}%
  \fi}
\def\specbenchnumber#1{\expandafter\def\csname specbench/#1\endcsname}"""
NUMBER = re.compile(r"(?<![\w./+-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]|[./-]\d|,\d{3})")
_INTERVAL = re.compile(
    r"(?P<value>[-+]?[\d.,e+-]+) (?:\[(?P<low>[-+]?[\d.,e+-]+), (?P<high>[-+]?[\d.,e+-]+)\]|\(uncertain )"
)  # core/rounding.py has both forms
_MEASURED = re.compile(rf"{NUMBER.pattern}(?: \[{NUMBER.pattern}, {NUMBER.pattern}\])?")
# What follows these is where something is written down.
_CITED = re.compile(r"(?i)\b(?:arxiv|theorem|lemma|equation|algorithm|section|figure|table)[ :]$")
_CLAUSE, _WORD = re.compile(r"[.;:?!]\s"), re.compile(r"(?<![\w.])[A-Za-z][\w'-]*")
WORDS = 4  # of a number's clause, that name it
LAST_LATIN = 0x24F  # the end of Unicode's Latin Extended-B
_MINUS = re.compile(r"(?<![\w.)\]])-(?=\d)")


class Numbers:
    """The numbers of a paper."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._short: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def macro(self, name: str, text: str) -> str:
        """The source that prints a number, which is defined by this.

        Raises:
            ArgumentError: another number has the name.
        """
        key = name_of(name)
        self._define(key, text)
        for part, value in _parts(text).items():
            self._define(f"{key}/{part}", value)
        return rf"\specbench{{{key}}}"

    def in_text(self, text: str, place: str) -> str:
        """Escaped text in which every measured number, or interval, is a macro.

        Its name is the place and the words in front of it, in its clause, or behind it if it begins one. Numbers of
        the same words are counted. So a sentence that is added renames no number of another.
        """
        parts, end = [], 0
        for match in _MEASURED.finditer(text):
            if _CITED.search(text[: match.start()]):
                continue
            name = f"{place}/{_described(text, match.start(), match.end())}"
            self._counts[name] += 1
            if self._counts[name] > 1:
                name = f"{name}/{self._counts[name]}"
            parts += [escape(text[end : match.start()]), self.macro(name, match.group())]
            end = match.end()
        return "".join(parts) + escape(text[end:])

    def headlines(self, experiment: str, texts: Mapping[str, str]) -> None:
        r"""Names that stand alone, such as ``\specbenchSpeedup``; of two experiments' the first one's stands.

        Of an interval, ``\specbenchSpeedupValue``, ``...Low`` and ``...High`` are its parts.
        """
        for name, text in texts.items():
            macro = self.macro(f"{experiment}/{name}", text)
            if self._short.setdefault(name, macro) == macro:
                for part in _parts(text):
                    self._short[f"{name}{part.capitalize()}"] = rf"\specbench{{{experiment}/{name}/{part}}}"

    def render(self) -> str:
        """numbers.tex."""
        short = [rf"\def\specbench{name}{{{macro}}}" for name, macro in self._short.items()]
        every = [rf"\specbenchnumber{{{key}}}{{{text}}}" for key, text in self._texts.items()]
        return "\n".join([DEFINITION, *short, *every]) + "\n"

    def _define(self, key: str, text: str) -> None:
        source = escape(_MINUS.sub("\u2212", text))
        if self._texts.setdefault(key, source) != source:
            raise ArgumentError(f"name={key}: two numbers have this name. Give tables columns that tell rows apart.")


class Typed(Numbers):
    """Numbers as they are, for a table that stands alone."""

    def macro(self, name: str, text: str) -> str:
        """The number itself."""
        return escape(_MINUS.sub("\u2212", text))


def _parts(text: str) -> dict[str, str]:
    """The value of an interval and its ends; of a speedup that is told to be uncertain the value alone."""
    match = _INTERVAL.match(text)
    return {} if match is None else {part: value for part, value in match.groupdict().items() if value is not None}


def name_of(words: str) -> str:
    """Words as part of a macro's name: what LaTeX, babel or a shell might read as more becomes an underscore.

    Letters beyond the Latin ones become their codes, such as U+5199, so that words of other scripts differ.
    """
    return re.sub(r"[^A-Za-z0-9_=,./+-]+", "_", "".join(map(_code_of, words)))


def _code_of(letter: str) -> str:
    is_of_word = unicodedata.category(letter)[0] in "LMN"
    return f"U+{ord(letter):04X}" if ord(letter) > LAST_LATIN and is_of_word else letter


def _described(text: str, start: int, end: int) -> str:
    """The words beside a number of a text, such as ``the_overlap_was``."""
    before = _WORD.findall(_CLAUSE.split(text[:start])[-1])[-WORDS:]
    behind = _WORD.findall(_CLAUSE.split(text[end:])[0])[:WORDS]
    return "_".join(before or behind) or "number"


def words(markdown: str, place: str, numbers: Numbers) -> str:
    """Text within a paragraph; every number is a macro, but for those in code and links."""
    parts, in_link = [], False
    for token in inlines(markdown):
        if token.type == "code_inline":
            parts.append(code(token.content))
        elif token.type.startswith("strong"):
            parts.append(r"\textbf{" if token.nesting == 1 else "}")
        elif token.type.startswith("link"):
            in_link = token.nesting == 1  # paper has no links of a report's folder
        else:
            text = token.content or " "
            parts.append(escape(text) if in_link else numbers.in_text(text, place))
    return "".join(parts)


def block(markdown: str, place: str, numbers: Numbers) -> str:
    """A paragraph, a list, or lines as they stand."""
    parts = []
    for tag, texts in blocks(markdown):
        if tag == "ul":
            items = [rf"  \item {words(text, place, numbers)}" for text in texts]
            parts.append("\n".join([r"\begin{itemize}", *items, r"\end{itemize}"]))
        elif tag == "code":
            lines = [f"{code(line)}\\\\" for line in texts]
            parts.append("\n".join([r"\begin{flushleft}\footnotesize", *lines, r"\end{flushleft}"]))
        else:
            parts.append(words(texts[0], place, numbers))
    return "\n\n".join(parts)
