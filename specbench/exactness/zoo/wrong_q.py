"""Bugs that test against other distributions than were sampled from."""

import dataclasses

import torch

from specbench.core.types import LogitRows
from specbench.exactness.zoo.rng import gumbel
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules import batched
from specbench.sampling import inverse_cdf


def unprocessed(rows: LogitRows) -> LogitRows:
    """The rows without temperature and truncation."""
    return LogitRows(rows.logits, torch.ones_like(rows.temperature), torch.full_like(rows.cutoff, -torch.inf), None)


class RawDraft(TokenSteps):
    """q from the raw logits, though the draft was drawn from processed ones (transformers issue 47932)."""

    def read(self, draft, target, streams):
        rows = None if draft.rows is None else unprocessed(draft.rows)
        return dataclasses.replace(draft, rows=rows), target, streams


class RawTarget(TokenSteps):
    """The request's sampling parameters are not applied to the target (vLLM issue 9834, mended by PR 10198)."""

    def read(self, draft, target, streams):
        return draft, unprocessed(target), streams


class ArgmaxDraft(TokenSteps):
    """The draft is greedy, but is tested as if it had been drawn from q (jaymody/speculative-sampling issue 3)."""

    def draft_tokens(self, rows, u):
        return rows.argmax, rows


class HalfPrecisionDraft(TokenSteps):
    """Drafted from bfloat16 probabilities, tested against float32 ones (deepseek-ai/DeepSpec issue 31)."""

    def draft_tokens(self, rows, u):
        return inverse_cdf(rows.probs().bfloat16().double(), u), rows


class NoisyDraft(TokenSteps):
    """q is what drawing from it left behind: each probability divided, in place, by its exponential noise.

    vLLM PR 16952.
    """

    def draft_tokens(self, rows, u):
        noisy = rows.probs().log() + gumbel(u, rows.logits.shape[1])
        zero, one = torch.zeros_like(u), torch.ones_like(u)
        return noisy.argmax(dim=-1), LogitRows(noisy, one, torch.full_like(u, -torch.inf), zero)


class OtherRequestsTemperature(TokenSteps):
    """The draft's temperatures, kept one a token, are read as if they were kept one a request.

    A review finding in TensorRT-LLM PR 12588; invisible where all requests have the same.
    """

    def read(self, draft, target, streams):
        if draft.rows is None:
            return draft, target, streams
        entry = draft.request_of_row.clamp(max=len(draft.rows) - 1)  # the real buffer is longer than what is in use
        temperature = draft.rows.temperature[entry]
        rows = dataclasses.replace(draft.rows, temperature=temperature, log_normalizer=None)
        return dataclasses.replace(draft, rows=rows), target, streams


class OverwrittenTarget(TokenSteps):
    """Without draft rows, p of the drafted token is 0 when it is tested: masked for the residual, and not put back.

    vllm-ascend PR 2881: the value kept for putting it back was a view of what was overwritten.
    """

    def drafted(self, draft, target):
        p, q = super().drafted(draft, target)
        return torch.zeros_like(p) if draft.rows is None else p, q


class LateDraftRow(TokenSteps):
    """The draft's rows are read one late; invisible where rows are equal.

    A mutant: no thread known.
    """

    def read(self, draft, target, streams):
        if draft.rows is None or len(draft.token_ids) == 0:
            return draft, target, streams
        n = len(draft.token_ids)
        rows = torch.arange(n, device=draft.token_ids.device)
        last = batched.offsets(draft) + 1 == draft.num_draft_tokens[draft.request_of_row]
        return dataclasses.replace(draft, rows=draft.rows.select(torch.where(last, rows, rows + 1))), target, streams
