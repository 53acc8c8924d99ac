"""Hooks: where a feature comes in that the core does not import; and optional packages.

A hook has a provider, a module that is imported when the feature is first used. specbench/__init__.py names those of
specbench/extras/. A module outside the tree replaces one by ``provide(hook, "my_module")`` before it is used.

``structured_outputs``
    ``check(kind, text)`` raises ConfigError for a structure that cannot be compiled; no model is needed.
    ``constrain(sampling, tokenizer, vocabulary, stop_ids)`` returns the SamplingParams with a processor that keeps
    texts to ``sampling.structure``. The processor's attribute ``parameter`` is "structured_outputs", so that runs and
    traces name it by the parameter that it was made from.

``different_vocabularies`` (pair.vocabularies=different)
    ``translation(target, draft)`` compares two vocabularies, each a tokenizer and its number of ids, and returns a
    specbench.models.vocabulary.SharedTokens, which the pair then has as ``translation``.
    ``cached_draft(model, translation, name, dtype)`` returns a CachedModel of the draft, which takes and returns the
    target's tokens.

``parallel`` (parallel=tensor), for a target of which each process of torchrun computes a part
    ``applies(parallel)`` returns whether there are other processes. Raises ConfigError, for a missing package too.
    ``join(model, device)`` and ``load(model, dtype, device)`` take a Checkpoint or a RandomModel of specbench.models;
    the first is called before its weights are fetched, the second returns the model, which
    has an attribute by the name specbench.models.cached_model.COMPARE_RANKS.
"""

import importlib
from types import ModuleType
from typing import Any

from specbench.core.errors import NotInstalledError

_PROVIDERS: dict[str, str] = {}


def provide(hook: str, module: str) -> None:
    """Makes a module the provider of a hook, by its dotted name."""
    _PROVIDERS[hook] = module


def provider(hook: str) -> Any:
    """Returns the module that provides a hook. Raises KeyError if there is none."""
    return importlib.import_module(_PROVIDERS[hook])


def import_optional(module: str, extra: str, key: str, value: object) -> ModuleType:
    """Imports a module of an optional package.

    Args:
        extra: the extra of this project that installs the package.
        key, value: the setting that needs the package; the error names them.

    Raises:
        NotInstalledError: the package is not installed, or does not hold the module.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = f"Install it: pip install 'specbench[{extra}]'."
        raise NotInstalledError(key, value, f"{module} cannot be imported ({error})", remedy) from error
