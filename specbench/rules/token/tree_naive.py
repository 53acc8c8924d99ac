"""Verification of trees, one request and one token at a time: the reference of tree.py.

The token rule with several candidates (recursive rejection sampling: Miao et al., "SpecInfer", arXiv 2305.09781, for
candidates drawn independently; Jeon et al., arXiv 2402.14160, and Chen et al., "Sequoia", arXiv 2402.12374, for those
drawn without replacement). At each token of the path so far, its children are tried in the order in which they were
drawn. Child x, drawn from q_x given its earlier siblings, is accepted with probability min(1, r(x) / q_x(x)), where r
is at first the target's p. A refused child leaves

    r <- max(r - q_x, 0), normalised

to the next one. After the last child the token is drawn from r; after an accepted child without children, from its p.

Why this is lossless: given its siblings, x is drawn from q_x and tested against r. By the token rule the result, x or a
draw from the residual, is distributed as r. This holds for the last child, and with it for each one before: the result
is distributed as the r of the first child, which is p. It does not matter how q_x depends on the siblings: children may
be drawn independently (q_x is q), without replacement (q without the siblings), or be the most likely tokens (q_x is 1
at x, and x is accepted with probability r(x)).
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.verifier import Limits
from specbench.sampling import inverse_cdf


def verify_one(
    drafted: list[int],
    parents: list[int],
    q: Float64[Tensor, "g V"],
    p: Float64[Tensor, "g1 V"],
    accept_u: list[float],
    emit_u: Float64[Tensor, " 1"],
) -> tuple[list[int], int]:
    """Returns the accepted path of one request, as indices of drafted tokens, and the token after it.

    Args:
        drafted: g tokens, drafted[i] drawn from q[i].
        parents: the index of the token that each one follows; -1 for the text.
        q, p: dense distributions; p[0] is the target's after the text, p[i + 1] after drafted[i].
        accept_u: g uniforms in (0, 1).
        emit_u: one uniform for the token after the path.
    """
    path: list[int] = []
    left, mass = p[0], 1.0  # r is left / mass
    for i, (token, parent) in enumerate(zip(drafted, parents, strict=True)):
        if parent != (path[-1] if path else -1):
            continue  # a child of a token that was not accepted, or of a token with an accepted child
        if accept_u[i] * float(q[i, token]) * mass < float(left[token]):
            path.append(i)
            left, mass = p[i + 1], 1.0
        else:
            rest = (left - mass * q[i]).clamp(min=0)
            if rest.sum() != 0:  # else r equals q but for rounding
                left, mass = rest, float(rest.sum())
    return path, int(inverse_cdf(left[None], emit_u))


class NaiveTreeVerifier:
    """The reference: easy to check against the papers, slow."""

    rule = "token"
    lossless = True
    takes_padded = True
    limits = Limits(capturable=False)
    takes_trees = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.rules.verifier.Verifier`; drafted token i is tested with ACCEPT at offset i."""
        arguments.check(draft, target, streams, trees=True)
        p_rows = target.probs()
        q_rows = draft.probs(p_rows.shape[1])
        counts = draft.num_draft_tokens.tolist()
        token_ids = torch.full((len(counts), draft.longest + 1), PADDING, device=p_rows.device)
        paths = token_ids[:, 1:].clone()
        for b, (g, first) in enumerate(zip(counts, draft.first_row.tolist(), strict=True)):
            rows = slice(first, first + g)
            drafted = draft.token_ids[rows].tolist()
            path, emitted = verify_one(
                drafted,
                list(range(-1, g - 1)) if draft.parents is None else draft.parents[rows].tolist(),
                q_rows[rows],
                p_rows[first + b : first + b + g + 1],
                streams.uniform(Stream.ACCEPT)[b, :g].tolist(),
                streams.uniform(Stream.EMIT)[b, :1],
            )
            tokens = [*(drafted[i] for i in path), emitted]
            token_ids[b, : len(tokens)] = torch.tensor(tokens)
            paths[b, : len(path)] = torch.tensor(path, dtype=torch.int64)
        return Verification(token_ids, (paths != PADDING).sum(dim=1), None if draft.parents is None else paths)
