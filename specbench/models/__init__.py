"""Model pairs: loading, checking, and running them with a cache that rolls back. transformers stays here."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.models.engine import Engine, right_padded
    from specbench.models.loading import Pair, draft_engine, load_pair

__all__ = ["Engine", "Pair", "draft_engine", "load_pair", "right_padded"]


def __getattr__(name: str) -> object:
    """Imports all names when one is first used: transformers comes with them, and attention alone needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specbench.models.engine import Engine, right_padded
    from specbench.models.loading import Pair, draft_engine, load_pair

    every = (Engine, Pair, draft_engine, load_pair, right_padded)
    globals().update(zip(__all__, every, strict=True))
    return globals()[name]
