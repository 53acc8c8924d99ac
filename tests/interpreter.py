"""Triton's interpreter, where there is no GPU: spared what it does over and over.

It replaces the functions of triton.language by its own before a launch, and again before every device function that the
kernel calls, where nothing is left to replace: a third of the time of an interpreted test. Here that search is made
only where something is not replaced yet. What kernels compute is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def replace_once_a_launch() -> None:
    """Does nothing where Triton has changed what this relies on: tests are slower then, and as right."""
    replace: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    scope: Callable[[], Any] | None = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or scope is None:
        return

    def replace_if_needed(fn: Any) -> Any:
        # The end of a launch takes back what was replaced, so that the next one begins here with functions of Triton.
        if any(tl.core.is_builtin(module.load) for module in (tl, tl.core)):
            return replace(fn)
        return scope()

    interpreter._patch_lang = replace_if_needed
