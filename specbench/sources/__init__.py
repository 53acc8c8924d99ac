"""Sources of texts: engines under test, whoever wrote them. Requests go in, completions come out."""

from specbench.sources.base import Completion, Mode, Source, TextRequest

__all__ = ["Completion", "Mode", "Source", "TextRequest"]
