"""What the formulas of a step return: tensors of a known shape, whose numbers lie in a known range."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specbench.core.types import Draft
from specbench.rules.draft_path import DraftPath
from specbench.rules.formula import Form, described

ROUNDING = 1e-9  # relative, in float64


def _misformed(result: object, shape: tuple[int, ...]) -> str:
    good = isinstance(result, Tensor) and result.dtype == torch.float64 and tuple(result.shape) == shape
    return "" if good else f"{described(result)}, not torch.float64 {list(shape)}"


def _path_problem(extra: int) -> Callable[[object, DraftPath], str]:
    """Finds what is wrong with numbers along drafts, ``extra`` more than each has tokens."""

    def problem(result: Any, path: DraftPath) -> str:
        rows, gamma = path.ratio.shape
        if wrong := _misformed(result, (rows, gamma + extra)):
            return wrong
        if not result.isnan().any():
            return ""
        within = torch.arange(gamma, device=result.device) < path.counts[:, None]
        drawn = (path.ratio.isfinite() | ~within).all(dim=1)  # no formula is asked about drafts that q cannot draw
        within = torch.nn.functional.pad(within, (extra, 0), value=True)
        return "NaN" if (result.isnan() & within)[drawn].any() else ""

    return problem


def _residual_problem(result: Any, p: Tensor, q: Tensor) -> str:
    if wrong := _misformed(result, tuple(p.shape)):
        return wrong
    if result.numel() == 0 or result.amin() >= 0:
        return ""
    read = p.isfinite().all(dim=1) & (q.sum(dim=1) > 0)  # after a whole draft the token is drawn from p
    read &= (p - q).abs().sum(dim=1) > ROUNDING  # where both are equal nothing is refused
    negative = result < -ROUNDING * (p + q)
    problems = (("NaN", result.isnan()), ("a number below 0", negative))
    return next((words for words, places in problems if places[read].any()), "")


def _errors_problem(result: object, draft: Draft, *_: object) -> str:
    return _misformed(result, tuple(draft.num_draft_tokens.shape))


FORMS = {
    "thresholds": Form("a float64 tensor of the shape of path.ratio, without NaN", _path_problem(0)),
    "prefix_weights": Form("a float64 tensor with a column more than path.ratio, without NaN", _path_problem(1)),
    "residual": Form("a float64 tensor of the shape of p, without NaN or numbers below 0", _residual_problem),
    "decision_errors": Form("a float64 tensor with a number a request", _errors_problem),
}
