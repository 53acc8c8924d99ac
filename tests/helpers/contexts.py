"""What protocols get, with small settings: a RunContext, and a ModelContext of a pair."""

from typing import Any

import torch

from specbench.drafters.model import ModelDrafter
from specbench.models import CachedModel, Pair
from specbench.protocols import ModelContext, RunContext
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams


def run_context(kind: type[RunContext] = RunContext, **changes: Any) -> RunContext:
    """A run on the CPU without models."""
    return kind(**_settings(changes))


def model_context(pair: Pair, kind: type[ModelContext] = ModelContext, **changes: Any) -> ModelContext:
    """A run on the CPU with a pair and its draft model, or another drafter."""
    target = CachedModel(pair.target, pair.vocab_size, "target")
    drafter = changes.get("drafter") or ModelDrafter().bind(pair, target)
    return kind(**_settings({"pair": pair, "target": target, **changes, "drafter": drafter}))


def _settings(changes: dict[str, Any]) -> dict[str, Any]:
    settings = {
        "verifier": MaskedVerifier(), "verifier_name": "masked", "sampling": SamplingParams(), "gamma": 3,
        "batch_size": 2, "seed": 0, "device": torch.device("cpu"), "dtype": torch.float32, "title": "", "command": "",
    }  # fmt: skip
    return settings | changes
