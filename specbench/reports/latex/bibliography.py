"""BibTeX entries of the papers of rules, by the keys that their RuleInfo names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from specbench.core.errors import ArgumentError
from specbench.rules import RULES

OWN = """\
@misc{{specbench,
  author = {{{{the specbench authors}}}},
  title  = {{specbench: a laboratory for speculative decoding, version {version}}},
  year   = {{2026}},
}}
"""
_ENTRY = re.compile(r"@\w+\{(?P<key>[^,\s]+),\n.*?\n\}", re.DOTALL)


def entries() -> dict[str, str]:
    """The entries of references.bib and of registered rules, by key."""
    text = (Path(__file__).parent / "references.bib").read_text(encoding="utf-8")
    texts = [text, *(info.bibtex for info in RULES.values())]
    return {entry["key"]: f"{entry.group()}\n" for text in texts for entry in _ENTRY.finditer(text)}


def bibliography(rules: Iterable[str], version: str) -> str:
    """refs.bib: specbench, and the papers of rules by name. A name that is not registered adds nothing."""
    known = entries()
    cited = dict.fromkeys(key for rule in rules for key in keys(rule, with_trees=True))
    return "\n".join([OWN.format(version=version), *(known[key] for key in cited)])


def keys(rule: str, with_trees: bool = False) -> list[str]:
    """The BibTeX keys of a rule's papers; none for a name that is not registered.

    Raises:
        ArgumentError: the rule names a paper without an entry.
    """
    if rule not in RULES:
        return []
    info, known = RULES[rule], entries()
    named = [*info.papers, *(info.tree_papers if with_trees else ())]
    for key in named:
        if key not in known:
            raise ArgumentError(
                f"rule={rule}: papers has {key!r}, of which there is no BibTeX entry. Add it to the rule's `bibtex`."
            )
    return named
