"""Model pairs: loading and checking them, and running them with a cache that rolls back. The only importer of transformers."""

from specbench.models.engine import Engine
from specbench.models.loading import Pair, load_pair

__all__ = ["Engine", "Pair", "load_pair"]
