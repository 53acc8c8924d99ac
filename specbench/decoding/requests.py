"""What is decoded, and what came of it, as the host sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.sampling import SamplingParams


@dataclass(frozen=True)
class Request:
    """A text to continue. Its continuation depends on these fields alone, not on the batch it is decoded in.

    Attributes:
        gamma: tokens drafted a step, at most; None is the decoder's, above which none may be. Plain decoding, which
            drafts nothing, does not look at it.
        category: of its prompt; decoding does not look at it.
    """

    name: str
    prompt: tuple[int, ...]
    seed: int
    sampling: SamplingParams
    max_new_tokens: int
    gamma: int | None = None
    category: str | None = None


@dataclass(frozen=True)
class Step:
    """One verification of one request; num_emitted < num_accepted + 1 only where a stop token cut the block.

    draft_depth is how many tokens could have been accepted: num_draft_tokens, or the depth of a tree.
    """

    name: str
    step: int
    num_draft_tokens: int
    num_accepted: int
    num_emitted: int
    draft_depth: int


@dataclass
class Completion:
    """A request's continuation so far, the stop token included."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished: str = ""  # "stop" or "length" once it is

    @property
    def sequence(self) -> list[int]:
        return [*self.request.prompt, *self.token_ids]

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - len(self.token_ids)
