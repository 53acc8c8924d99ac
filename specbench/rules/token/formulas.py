"""The formulas of the token rule."""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from specbench.rules.draft_path import DraftPath
from specbench.rules.rule import Rule
from specbench.rules.token import TOKEN
from specbench.rules.token.masked import MaskedVerifier


def thresholds(path: DraftPath) -> Float64[Tensor, "m gamma"]:
    """min(1, p / q)."""
    return path.ratio.clamp(max=1)


RULE = Rule.of(TOKEN, thresholds=thresholds, reference=MaskedVerifier())
