"""Model pairs: loading, checking, and running them with a cache that rolls back. transformers stays here."""

from specbench.models.engine import Engine, right_padded
from specbench.models.loading import Pair, load_pair
from specbench.models.vocabularies.engine import draft_engine

__all__ = ["Engine", "Pair", "draft_engine", "load_pair", "right_padded"]
