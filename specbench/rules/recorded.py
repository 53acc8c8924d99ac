"""Rules of a user's module in the folder of a job, so that a later process can report on them.

A report is often made in a process that does not import the module that registered the rule. What a report reads of a
rule is plain data: its title, its papers, and its verifiers with their looks. Each job writes it as ``rules.json``.
The formulas stay in the module.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specbench.core.errors import ArgumentError
from specbench.core.machine.disk import read_json
from specbench.rules.info import RULES, RuleInfo, SeriesLook, register

RECORDED = "rules.json"
_PLAIN = ("name", "title", "papers", "tree_papers", "bibtex", "guarantee", "emits", "timing_baseline")
_LOOKS = ("verifiers", "tree_verifiers")
_FUNCTIONS = ("token_cost", "rows_again")  # of which only their presence is recorded


def recorded_rules() -> str:
    """Returns the registered rules that are not of specbench itself, as JSON; empty if there is none."""
    rules = [_recorded(info) for info in RULES.values() if not (info.of_this_tree or info.recorded)]
    return json.dumps(rules, indent=1) if rules else ""


def recall_rules(folder: Path) -> None:
    """Registers the rules that the jobs of a sweep recorded. A rule that this process has registered stays as it is."""
    for path in sorted(folder.glob(f"*/{RECORDED}")):
        for record in _records(read_json(path)):
            try:
                register(_recalled(record))
            except ArgumentError:  # this process knows the rule itself, or another version knows more guarantees
                continue


def _recorded(info: RuleInfo) -> dict[str, Any]:
    looks = {name: {verifier: list(look) for verifier, look in getattr(info, name).items()} for name in _LOOKS}
    functions = {name: getattr(info, name) is not None for name in _FUNCTIONS}
    return {**{name: getattr(info, name) for name in _PLAIN}, **looks, **functions}


def _records(content: object) -> Iterable[Mapping[str, Any]]:
    """The records of a file; none of a file that another version of specbench wrote otherwise."""
    fields = {*_PLAIN, *_LOOKS, *_FUNCTIONS}
    records = content if isinstance(content, list) else []
    return [record for record in records if isinstance(record, dict) and fields <= record.keys()]


def _recalled(record: Mapping[str, Any]) -> RuleInfo:
    fields: dict[str, Any] = {name: record[name] for name in _PLAIN}
    fields |= {name: tuple(fields[name]) for name in ("papers", "tree_papers")}
    fields |= {name: {key: SeriesLook(*look) for key, look in record[name].items()} for name in _LOOKS}
    fields |= {name: _not_here if record[name] else None for name in _FUNCTIONS}
    return RuleInfo(**fields, recorded=True)


def _not_here(*_: object) -> Any:
    raise ArgumentError("rule: its formulas are in the module that registers it. Import that module.")
