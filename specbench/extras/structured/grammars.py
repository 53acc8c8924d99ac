"""``structured_outputs`` as a grammar: a JSON schema, a regular expression, EBNF or a choice of texts.

A grammar needs no vocabulary, so a grammar that cannot be compiled is refused before any model is loaded.
"""

import functools
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.extensions import import_optional

KEY = "sampler.structured_outputs"
# Keywords of JSON schemas that xgrammar 0.2 ignores, as trials show: texts could violate them.
_NOT_HELD = ("not", "if", "uniqueItems", "dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # their keys are the user's names
_DATA = ("const", "enum", "default", "examples")  # their values are not schemas
_PLACE = re.compile(r"^\[[\d:]+\] \S+?:\d+: ")  # the place in xgrammar's source, before its message


def xgrammar() -> ModuleType:
    """The package. Raises NotInstalledError if it is not installed."""
    return import_optional("xgrammar", "grammar", KEY, "...")


@functools.lru_cache(maxsize=64)
def grammar_of(kind: str, text: str) -> Any:
    """The xgrammar.Grammar of a structure.

    Args:
        kind, text: as SamplingParams.structured_outputs has them.

    Raises:
        ConfigError: text that is no schema, expression, grammar or list of texts, or a schema with keywords that
            xgrammar ignores.
        NotInstalledError: xgrammar is not installed.
    """
    grammar, shown = xgrammar().Grammar, f"{{{kind}: {text}}}"
    try:
        if kind == "json":
            _check_schema(json.loads(text), shown)
            # With free whitespace a small model may write blanks for ever.
            return grammar.from_json_schema(text, any_whitespace=False)
        if kind == "regex":
            return grammar.from_regex(text)
        if kind == "grammar":
            return grammar.from_ebnf(text)
        return grammar.from_ebnf(_alternatives(text))
    except (RuntimeError, ValueError, TypeError) as error:
        problem = _PLACE.sub("", str(error)).strip().splitlines()[0].rstrip(".")
        raise ConfigError(KEY, shown, f"cannot be compiled: {problem}", _REMEDY[kind]) from error


_REMEDY = {
    "json": "Give a JSON schema.",
    "regex": "Give a regular expression without lookarounds or references.",
    "grammar": "Give EBNF whose first rule is called root, such as root ::= [0-9]+.",
    "choice": "Give a list of texts.",
}


def _alternatives(choices: str) -> str:
    """Returns EBNF of a list of texts, each written as in JSON."""
    texts = json.loads(choices)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("it is no list of texts, or one of them is empty")
    return "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _check_schema(schema: Any, shown: str) -> None:
    for node in _schemas(schema):
        for key in _NOT_HELD:
            if key in node and node[key] is not False:
                problem = f"xgrammar does not hold texts to {key!r}, so that they could break it"
                raise ConfigError(KEY, shown, problem, f"Leave {key!r} out, and check the texts.")
        reference = node.get("$ref", "#")
        if reference != "#" and not str(reference).startswith("#/"):
            problem = f"xgrammar does not follow the reference {reference!r}, so that any text could stand there"
            raise ConfigError(KEY, shown, problem, "Put that schema under $defs, and refer to it by '#/$defs/NAME'.")
        if len(node.get("allOf", ())) > 1:
            problem = "xgrammar does not hold texts to all parts of 'allOf'"
            raise ConfigError(KEY, shown, problem, "Write them as one schema.")


def _schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Yields the schema and all schemas inside it."""
    if isinstance(node, list):
        for schema in node:
            yield from _schemas(schema)
    elif isinstance(node, dict):
        yield node
        for key, value in node.items():
            if key in _MAPS and isinstance(value, dict):
                yield from _schemas(list(value.values()))
            elif key not in _DATA:
                yield from _schemas(value)
