"""BibTeX of the rules that were run, found by the arXiv numbers that their cards name."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path

from specbench.core.errors import ArgumentError
from specbench.rules.cards import CARDS, Card

OWN = """\
@misc{{specbench,
  author = {{{{the specbench authors}}}},
  title  = {{specbench: a laboratory for speculative decoding, version {version}}},
  year   = {{2026}},
}}
"""
_ARXIV = re.compile(r"arXiv[ :](\d{4}\.\d{5})")
_ENTRY = re.compile(r"@\w+\{(?P<key>\w+),\n.*?\n\}\n", re.DOTALL)


@functools.cache
def entries() -> dict[str, tuple[str, str]]:
    """Key and text of each entry of references.bib, by arXiv number."""
    text = (Path(__file__).parent / "references.bib").read_text(encoding="utf-8")
    return {_ARXIV.findall(each.group())[0]: (each["key"], each.group()) for each in _ENTRY.finditer(text)}


def bibliography(rules: Iterable[str], version: str) -> str:
    """refs.bib: specbench, and the papers of some rules by name; rules without a card in this tree have none."""
    known = entries()
    numbers = [number for rule in rules if rule in CARDS for number in _papers(CARDS[rule], with_trees=True)]
    return "\n".join([OWN.format(version=version), *(known[number][1] for number in dict.fromkeys(numbers))])


def citation(rules: Iterable[str], version: str) -> str:
    """CITATION.cff: specbench, with the papers of the rules as its references (https://citation-file-format.github.io)."""
    lines = [
        "cff-version: 1.2.0",
        "message: If you use what was measured here, please cite specbench and the papers of the rules.",
        'title: "specbench: a laboratory for speculative decoding"',
        "type: software",
        "authors:",
        "  - name: the specbench authors",
        f"version: {version}",
    ]
    papers = [number for rule in rules if rule in CARDS for number in _papers(CARDS[rule])]
    known = entries()
    for i, number in enumerate(dict.fromkeys(papers)):
        fields = dict(re.findall(r"^ *(\w+) += \{(.*)\},$", known[number][1], re.MULTILINE))
        lines += [
            *(["references:"] if i == 0 else []),
            "  - type: article",
            f"    title: {json.dumps(re.sub('[{}]', '', fields['title']))}",
        ]
        lines += [f"    year: {fields['year']}", "    authors:"]
        lines += [f"      - name: {name}" for name in fields["author"].split(" and ")]
        lines += ["    identifiers:", "      - type: other", f"        value: arXiv:{number}"]
    return "\n".join(lines) + "\n"


def keys(rule: str) -> list[str]:
    """What to cite for a rule; nothing for one without a card in this tree.

    Raises:
        ArgumentError: the card names a paper that references.bib lacks.
    """
    known = entries()
    numbers = _papers(CARDS[rule]) if rule in CARDS else []
    if missing := [number for number in numbers if number not in known]:
        raise ArgumentError(f"rule={rule}: references.bib has no arXiv:{missing[0]}. Add its entry.")
    return [known[number][0] for number in numbers]


def _papers(card: Card, with_trees: bool = False) -> list[str]:
    return _ARXIV.findall(f"{card.paper} {card.on_trees}" if with_trees else card.paper)
