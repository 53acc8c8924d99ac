"""``specbench.load_pair``: a pair of models for ``specbench.decode`` and ``specbench.record``."""

from __future__ import annotations

from specbench.api.naming import names_arguments
from specbench.models import loading

load_pair = names_arguments({"pair.": ""})(loading.load_pair)
