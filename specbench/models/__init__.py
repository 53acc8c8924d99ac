"""Model pairs: loading, checking, and running them with a cache that rolls back. transformers stays here."""

from specbench.models.engine import Engine
from specbench.models.loading import Pair, load_pair

__all__ = ["Engine", "Pair", "load_pair"]
