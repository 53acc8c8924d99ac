"""Sources of texts: engines under test, ours or others'. Requests go in, completions come out."""

from specbench.sources.contract import Mode, Source, TextCompletion, TextRequest

__all__ = ["Mode", "Source", "TextCompletion", "TextRequest"]


def __getattr__(name: str) -> object:
    """Completion is TextCompletion's name in 0.2.0; it ends with 0.3.0."""
    if name == "Completion":
        return TextCompletion
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
