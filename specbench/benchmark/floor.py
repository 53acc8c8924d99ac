"""The byte floor: what a verifier has to read; rules/cards.py says what that is for each rule."""

from __future__ import annotations

import numpy as np

from specbench.rules import RuleInfo, floor_info


def floor_bytes(
    rule: RuleInfo | str,
    vocabulary: int,
    itemsize: int,
    num_draft_tokens: np.ndarray,
    num_accepted: np.ndarray,
    *,
    greedy: bool = False,
    draft_probabilities: bool = True,
) -> int:
    """The bytes that verifying one batch must read; see the module.

    Args:
        rule: by its card or name; one that has no floor gets the token rule's.
        itemsize: bytes of one logit.
        num_draft_tokens, num_accepted: one number a request.
        greedy: all requests have temperature 0.
        draft_probabilities: False where every draft is deterministic (q one-hot).
    """
    drafted, rows_again = np.asarray(num_draft_tokens, dtype=np.int64), floor_info(rule).rows_again
    rejected = int((np.asarray(num_accepted) < drafted).sum())
    rows = int(drafted.sum()) + (len(drafted) - rejected)
    if not greedy and rows_again is not None:
        rows += rows_again(int(drafted.sum()), rejected, not draft_probabilities)
    return rows * vocabulary * itemsize
