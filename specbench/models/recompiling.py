"""torch.compile with a limit of its own: how many kinds of inputs a function may be compiled for."""

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any], kinds: int, **options: Any) -> Callable[..., Any]:
    """Returns the compiled form of a function, which is compiled for each kind of inputs when that first comes.

    PyTorch's limit for the process stays as a user has it. Since some release after 2.11 torch.compile takes a limit
    itself, but at this limit it goes on without compiling unless ``fullgraph`` is set, and says nothing.

    Args:
        kinds: of inputs, at most, or PyTorch's limit if that is higher. A call beyond is an error.
    """
    call, limit = torch.compile(function, **options), max(kinds, torch._dynamo.config.recompile_limit)

    def limited(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=limit, fail_on_recompile_limit_hit=True):
            return call(*args, **kwargs)

    return limited
