"""Model pairs: loading, checking, and running them with a cache that rolls back. transformers stays here."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.models.cached_model import CachedModel, right_padded
    from specbench.models.forward import Feature, Features, ModelOutput
    from specbench.models.loading import Pair, cached_draft, load_pair
    from specbench.models.row_cache import RowCache

__all__ = [
    "CachedModel",
    "Feature",
    "Features",
    "ModelOutput",
    "Pair",
    "RowCache",
    "cached_draft",
    "load_pair",
    "right_padded",
]


def __getattr__(name: str) -> object:
    """Imports all names when one is first used: transformers comes with them, and attention alone needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specbench.models.cached_model import CachedModel, right_padded
    from specbench.models.forward import Feature, Features, ModelOutput
    from specbench.models.loading import Pair, cached_draft, load_pair
    from specbench.models.row_cache import RowCache

    public = (CachedModel, Feature, Features, ModelOutput, Pair, RowCache, cached_draft, load_pair, right_padded)
    globals().update(zip(__all__, public, strict=True))
    return globals()[name]
