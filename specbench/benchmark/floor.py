"""The byte floor: the bytes that a verifier has to read; rules/info.py and the folders of rules define them."""

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
        rule: a RuleInfo, or its name; the token rule's floor stands for an unknown rule.
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
