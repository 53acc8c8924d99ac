"""What is written down while texts are decoded: speed and acceptance of all texts so far."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.core.machine.journal import Journal
from specbench.decoding import Completion


class LiveSpeed:
    """Adds up what was decoded; see specbench/core/machine/journal.py for what is written."""

    def __init__(self, journal: Journal):
        self.journal = journal
        self.requests = self.tokens = self.plain_tokens = self.steps = self.accepted = 0
        self.seconds = self.plain_seconds = 0.0

    def decoded(
        self,
        completions: Sequence[Completion],
        seconds: float,
        plain: tuple[int, float],
    ) -> None:
        """Writes a line after a batch.

        Args:
            completions: its texts, decoded speculatively.
            seconds: that this took.
            plain: tokens and seconds of the same batch decoded plainly.
        """
        self.requests += len(completions)
        self.tokens += sum(len(text.token_ids) for text in completions)
        self.seconds += seconds
        self.plain_tokens += plain[0]
        self.plain_seconds += plain[1]
        self.steps += sum(len(text.steps) for text in completions)
        self.accepted += sum(step.num_accepted for text in completions for step in text.steps)
        self.journal.note(
            requests=self.requests,
            tokens=self.tokens,
            tokens_per_second=self.tokens / self.seconds if self.seconds else None,
            plain_tokens_per_second=self.plain_tokens / self.plain_seconds if self.plain_seconds else None,
            acceptance_length=1 + self.accepted / self.steps if self.steps else None,
        )
