"""Model pairs: loading, checking, and running them with a cache that rolls back. transformers stays here."""

from specbench.models.engine import Engine, right_padded
from specbench.models.loading import Pair, load_pair

__all__ = ["Engine", "Pair", "load_pair", "right_padded"]
