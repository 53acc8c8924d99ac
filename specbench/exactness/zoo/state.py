"""Bugs of what surrounds the rule: indices, rows of other requests, counters, the draft's own state."""

import dataclasses

import torch

from specbench.core.types import PADDING, Verification
from specbench.exactness.zoo.steps import TokenSteps
from specbench.sampling import inverse_cdf


class WritesOtherRows(TokenSteps):
    """out[:, num_accepted] = emitted writes every request's column in every row (Dao-AILab/flash-attention PR 2779)."""

    def output(self, draft, num_accepted, emitted):
        sound = super().output(draft, num_accepted, emitted)
        token_ids = sound.token_ids.clone()
        for column in range(token_ids.shape[1]):  # of the requests that write a column the last one stays
            writers = (num_accepted == column).nonzero()[:, 0]
            if len(writers):
                token_ids[:, column] = emitted[writers[-1]]
        columns = torch.arange(token_ids.shape[1], device=emitted.device)
        return Verification(token_ids.masked_fill(columns > num_accepted[:, None], PADDING), num_accepted)


class ReturnsArgmax(TokenSteps):
    """The sampling path ends in an argmax of the probabilities it made (EricLBuehler/mistral.rs PR 2424)."""

    def emit(self, weights, draft, streams, num_accepted):
        return weights.argmax(dim=-1)


class TrimmedContext(TokenSteps):
    """The draft's cache loses two entries too many: what it writes stands, but is accepted less (mlxcel issue 994).

    Lossless: only the share of accepted tokens tells. The lost context is imitated by halving the draft's logits.
    """

    def draft_tokens(self, rows, u):
        worse = dataclasses.replace(rows, logits=rows.logits / 2, cutoff=rows.cutoff / 2, log_normalizer=None)
        return inverse_cdf(worse.probs(), u), worse


class OtherRequestsRows(TokenSteps):
    """The target's rows are cut into requests by their draft lengths in another order than the rows have.

    vLLM PR 14645; invisible where all requests draft as many tokens. The other order is here that of one place on.
    """

    def read(self, draft, target, streams):
        lengths = draft.num_draft_tokens + 1
        first, wrong = (counts.cumsum(0) - counts for counts in (lengths, lengths.roll(1)))
        shift = (wrong - first).repeat_interleave(lengths)
        rows = torch.arange(len(target), device=shift.device) + shift
        return draft, target.select(rows.clamp(0, len(target) - 1)), streams


class CountsAfterRejection(TokenSteps):
    """num_accepted counts the tests passed behind the first refusal too.

    vLLM PR 2658. FlashInfer's output_accepted_token_num counts so by its documentation, beside an output that does not.
    """

    def output(self, draft, num_accepted, emitted):
        sound = super().output(draft, num_accepted, emitted)
        return Verification(sound.token_ids, self.passed)

    def count(self, mask):
        self.passed = mask.sum(dim=1)
        return super().count(mask)
