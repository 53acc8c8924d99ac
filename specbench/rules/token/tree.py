"""Verification of trees as tensor operations: one pass over the drafted tokens, all requests side by side.

The rule of tree_naive.py, which also says why it is lossless. The rows of a draft have each token after its parent and
after its earlier siblings, so one pass over them tries every child in its turn. Chains are accepted as well; their
tokens are those of the token rule.
"""

import torch

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.kernels import cpu_rows
from specbench.rules import batched
from specbench.sampling import inverse_cdf


class TreeVerifier:
    """Batched PyTorch: a few operations on [requests, vocabulary] for each drafted token.

    Waits for the device to check its arguments; not while a CUDA graph is captured.
    """

    rule = "token"
    lossless = True
    takes_padded = True
    takes_trees = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.rules.verifier.Verifier`; drafted token i is tested with ACCEPT at offset i."""
        if cpu_rows.takes_rule(draft, target, trees=True):
            return cpu_rows.token_rule(draft, target, streams)
        arguments.check(draft, target, streams, trees=True)
        # In a chain the parent of a token is the one before it.
        parents = batched.offsets(draft) - 1 if draft.parents is None else draft.parents
        parents, u = batched.padded(parents, draft, PADDING), streams.uniform(Stream.ACCEPT)
        tokens, places = batched.padded(draft.token_ids, draft, 0), torch.arange(draft.longest, device=parents.device)
        first_target = draft.first_row + torch.arange(len(parents), device=parents.device)
        left = target.select(first_target).probs()
        mass = torch.ones_like(left[:, 0])  # the rest of the target's distribution is left / mass
        at = torch.full_like(draft.num_draft_tokens, -1)  # the last token of the path; -1 for the text
        path = torch.full((len(parents), draft.longest), PADDING, device=parents.device)
        for i in range(draft.max_draft_tokens if len(draft.token_ids) else 0):
            row = (draft.first_row + i).clamp(max=len(draft.token_ids) - 1)  # not used beyond a short draft
            token = tokens[:, i, None]
            one_hot = torch.zeros_like(left).scatter_(1, token, 1.0)
            q = one_hot if draft.rows is None else draft.rows.select(row).probs()
            tried = draft.drafted[:, i] & (parents[:, i] == at)
            passes = u[:, i] * q.gather(1, token)[:, 0] * mass < left.gather(1, token)[:, 0]
            accepted, refused = tried & passes, tried & ~passes
            rest = batched.residual(left, mass[:, None] * q)
            after = target.select((first_target + i + 1).clamp(max=len(target) - 1)).probs()
            path = torch.where(accepted[:, None] & (places == (path >= 0).sum(dim=1)[:, None]), i, path)
            left = torch.where(accepted[:, None], after, torch.where(refused[:, None], rest, left))
            mass = torch.where(accepted, 1.0, torch.where(refused, rest.sum(dim=1), mass))
            at = torch.where(accepted, i, at)
        num_accepted = (path >= 0).sum(dim=1)
        emitted = inverse_cdf(left, streams.uniform(Stream.EMIT)[:, 0])
        stands = torch.where(path >= 0, tokens.gather(1, path.clamp(min=0)), PADDING)
        token_ids = torch.nn.functional.pad(stands, (0, 1), value=PADDING)
        token_ids = token_ids.scatter(1, num_accepted[:, None], emitted[:, None])
        return Verification(token_ids, num_accepted, None if draft.parents is None else path)
