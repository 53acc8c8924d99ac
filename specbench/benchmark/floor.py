"""The byte floor: what a verifier has to read, and how long the device takes to move that many bytes.

A verifier starts from logits in device memory, s bytes each, V a row. It must read, whatever its plan:

token rule
    - each drafted row of the target once (s V), since p of a drafted token needs the row's normaliser. Those behind
      the first rejection could be skipped by a verifier that waits for each decision; they are counted, because rows
      have to be read side by side to fill a device.
    - after a rejection, p and q of the rejected row (2 s V): the residual max(p - q, 0) needs p's normaliser before
      its first entry can be computed, so p is read a second time. q's normaliser is known from drafting, and q is read
      here for the first time. A one-hot q is not read (s V).
    - after a block that was accepted whole, the bonus row (s V): a draw from it needs no second reading.
block rule
    - each drafted row of the target once (s V), as above.
    - p and q of each drafted row (2 s V), since every h_i needs the residual mass S_i, and S_i both normalisers. The
      residual that is drawn from is one of these. With a one-hot q, S_i is pi_i (1 - p(x)), and only the row that is
      drawn from is read again (s V).
    - the bonus row where the block was accepted whole (s V).
greedy requests, either rule
    - each drafted row of the target once, and the bonus row where it is used: the argmax of a rejected row was found
      when the row was read. q is not needed.

Tokens, seeds, numbers a row and outputs are a few bytes a request and are not counted. Where a sampler truncates, a
row's cutoff must be known before its normaliser, which takes further readings; the floor is kept as it is, so that
ratios to it can be compared between samplers.
"""

from __future__ import annotations

import numpy as np


def floor_bytes(
    rule: str,
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
        rule: "block", or any other name for the token rule.
        itemsize: bytes of one logit.
        num_draft_tokens, num_accepted: one number a request.
        greedy: all requests have temperature 0.
        draft_probabilities: False where every draft is deterministic (q one-hot).
    """
    drafted = np.asarray(num_draft_tokens, dtype=np.int64)
    rejected = int((np.asarray(num_accepted) < drafted).sum())
    rows = int(drafted.sum()) + (len(drafted) - rejected)
    if not greedy:
        if not draft_probabilities:
            rows += rejected
        elif rule == "block":
            rows += 2 * int(drafted.sum())
        else:
            rows += 2 * rejected
    return rows * vocabulary * itemsize
