r"""Numbers of tables and headlines by name, so that none is typed by hand: each is a macro of numbers.tex.

``\specbench{gamma_sweep/table/gamma=4,verifier=masked/speedup}`` prints that cell of that table as the report has it.
Names consist of the experiment, the table, the columns that tell its rows apart, and the column.
Of an interval, such as 1.60 [1.59, 1.61], ``/value``, ``/low`` and ``/high`` behind its name print the parts. A name
that does not exist is an error of LaTeX that says the name.
"""

import re
import unicodedata
from collections.abc import Mapping

from specbench.core.errors import ArgumentError
from specbench.reports.latex.escape import escape

DEFINITION = r"""% \specbench{NAME} prints a number of this file. It may stand in headings and captions.
\protected\def\specbench#1{%
  \ifcsname specbench/#1\endcsname
    \csname specbench/#1\endcsname
  \else
    \PackageError{specbench}{No number is named `#1'}{numbers.tex has all names. Run specbench paper again if the
      number is of a later run.}%
  \fi}
\def\specbenchnumber#1{\expandafter\def\csname specbench/#1\endcsname}"""
_INTERVAL = re.compile(
    r"(?P<value>[-+]?[\d.,e+-]+) (?:\[(?P<low>[-+]?[\d.,e+-]+), (?P<high>[-+]?[\d.,e+-]+)\]|\(uncertain )"
)  # core/rounding.py has both forms
LAST_LATIN = 0x24F  # the end of Unicode's Latin Extended-B
_MINUS = re.compile(r"(?<![\w.)\]])-(?=\d)")


class Numbers:
    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._short: dict[str, str] = {}

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
