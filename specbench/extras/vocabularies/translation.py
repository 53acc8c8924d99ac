"""What a target and a draft of different vocabularies share, and the text of one in tokens of the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.extras.vocabularies.spelling import ROLES, Spelling

MOST_PIECES = 16  # draft tokens that a target token is fed as; of a longer one the draft sees the beginning
MISSING = -1


@dataclass(frozen=True, eq=False)
class Translation:
    """Two vocabularies, a target's of V tokens and a draft's.

    Special tokens are shared by role or by name. Of target tokens that are spelled alike one is shared, so that no
    token of the draft stands for two.
    """

    target: Spelling
    draft: Spelling

    @cached_property
    def draft_ids(self) -> Int64[Tensor, " V"]:
        """The draft's token that is spelled as each target token; MISSING if there is none. On the CPU."""
        is_first = [self.target.ids.get(spelled) == i for i, spelled in enumerate(self.target.tokens)]
        ids = [
            self.draft.ids.get(spelled, MISSING) if first else MISSING
            for spelled, first in zip(self.target.tokens, is_first, strict=True)
        ]
        return torch.tensor(ids, dtype=torch.int64)

    @property
    def shared(self) -> Bool[Tensor, " V"]:
        """Which target tokens the draft has."""
        return self.draft_ids != MISSING

    @property
    def shares_text(self) -> bool:
        """Whether any shared token stands for text."""
        return any(not self.target.is_special(i) for i in self.shared.nonzero()[:, 0].tolist())

    @cached_property
    def pieces(self) -> tuple[Int64[Tensor, "V most"], Int64[Tensor, " V"]]:
        """The draft's tokens that each target token is fed as, at least one, and how many; on the CPU.

        A shared token is fed as itself, another one as its text in the draft's tokens.
        """
        written = [self._pieces_of(i, draft_id) for i, draft_id in enumerate(self.draft_ids.tolist())]
        counts = torch.tensor([len(pieces) for pieces in written])
        table = torch.zeros((len(written), int(counts.max())), dtype=torch.int64)
        table[torch.arange(table.shape[1]) < counts[:, None]] = torch.tensor([i for pieces in written for i in pieces])
        return table, counts

    def _pieces_of(self, token: int, shared: int) -> list[int]:
        spelled = self.target.tokens[token]
        role = next((role for role in ROLES if self.target.roles.get(role) == spelled), "")
        if shared == MISSING and role in self.draft.roles:  # of a token that has another role as well
            return [self.draft.ids[self.draft.roles[role]]]
        if shared != MISSING:
            return [shared]
        return self.draft.encode(spelled)[:MOST_PIECES] or [self.nothing]

    @property
    def nothing(self) -> int:
        """What is fed for a token that the draft cannot write."""
        return next((self.draft.ids[self.draft.roles[role]] for role in ("unk", "eos") if role in self.draft.roles), 0)

    def words(self) -> str:
        """What is shared, for the console."""
        shared, total = int(self.shared.sum()), len(self.target.tokens)
        summary = f"{shared} of the target's {total} tokens are among the draft's {len(self.draft.tokens)}"
        if shared == total:
            return summary
        others = self.pieces[1][~self.shared].double().mean()
        return f"{summary}; of the others, the draft reads each as {others:.1f} tokens on average"

    def examples(self) -> tuple[list[str], list[str]]:
        """Some tokens of text of each vocabulary, the longest first, for a message."""
        shown = []
        for vocabulary in (self.target, self.draft):
            text = [token for i, token in enumerate(vocabulary.tokens) if token and not vocabulary.is_special(i)]
            text.sort(key=len, reverse=True)
            shown.append([token.decode("utf-8", errors="backslashreplace") for token in text[:5]])
        return shown[0], shown[1]
