"""Bugs of the bonus token: invisible to whoever looks at first tokens."""

from __future__ import annotations

import torch

from specbench.exactness.zoo.steps import TokenSteps
from specbench.exactness.zoo.wrong_q import unprocessed
from specbench.rules import batched


class UnprocessedBonus(TokenSteps):
    """Drawn from softmax(logits), without temperature and top-p.

    hemingkx/Spec-Bench, evaluate_posterior in model/eagle, eagle2 and eagle3, utils.py.
    """

    def bonus(self, draft, target, p):
        return unprocessed(target.select(batched.target_row_after(draft, draft.num_draft_tokens))).probs()


class ArgmaxBonus(TokenSteps):
    """The likeliest token, at any temperature.

    FasterDecoding/Medusa, generate_candidates in medusa/model/utils.py with its default fast=True: the root of the next
    tree, which is this step's bonus token. (Medusa's typical acceptance, in its turn, is declared lossy.)
    """

    def bonus(self, draft, target, p):
        return torch.nn.functional.one_hot(p.argmax(dim=-1), p.shape[1]).double()


class PreviousRowBonus(TokenSteps):
    """From the row that scored the last drafted token; unseen where rows are equal.

    A mutant: no thread known.
    """

    def bonus(self, draft, target, p):
        return target.select(batched.target_row_after(draft, (draft.num_draft_tokens - 1).clamp(min=0))).probs()
