"""The decode loop: draft, score, verify, commit. It knows no algorithm.

Plain decoding is the same loop with nothing drafted, so a baseline runs through the same engine, cache and streams as
the method that is measured against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specbench.drafters import Drafter
from specbench.drafters.base import ragged_index
from specbench.errors import ModelError
from specbench.models import Engine
from specbench.rng import Stream, Streams
from specbench.sampling import RowParams, SamplingParams, logit_rows, sample
from specbench.stopwatch import Stopwatch
from specbench.types import PADDING, Draft, LogitRows, Verification
from specbench.verifiers import Verifier


@dataclass(frozen=True)
class Request:
    """A text to continue. Its continuation depends on these fields alone, not on the batch it is decoded in."""

    name: str
    prompt: tuple[int, ...]
    seed: int
    sampling: SamplingParams
    max_new_tokens: int


@dataclass(frozen=True)
class Step:
    """One verification of one request; num_emitted < num_accepted + 1 only where a stop token cut the block."""

    name: str
    step: int
    num_draft_tokens: int
    num_accepted: int
    num_emitted: int


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


class Decoder:
    """Decodes batches of requests.

    Args:
        target: scores drafts; one forward pass a step.
        drafter: proposes; None decodes plainly.
        verifier: accepts and emits; not used where nothing was drafted.
        gamma: tokens drafted a step, at most; each request drafts fewer where max_new_tokens is near.
        stop_ids: ids that end a text.
    """

    def __init__(
        self, target: Engine, drafter: Drafter | None, verifier: Verifier | None, gamma: int, stop_ids: frozenset[int]
    ):
        if (drafter is None or verifier is None) and gamma > 0:
            raise ValueError(f"gamma={gamma} needs a drafter and a verifier")
        self.target, self.drafter, self.verifier = target, drafter, verifier
        self.gamma, self.stop_ids = gamma, stop_ids
        self.stopwatch = Stopwatch(target.synchronize)
        self._active: list[Completion] = []

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Decodes a batch to its end; completions in the order of the requests."""
        completions = self.start(requests)
        while self._active:
            self.step()
        return completions

    def start(self, requests: Sequence[Request]) -> list[Completion]:
        """Feeds the prompts; follow with :meth:`step`."""
        completions = [Completion(request) for request in requests]
        prompts = [request.prompt for request in requests]
        # Ragged requests are padded to the longest draft, which may write beyond the last token of the shortest.
        capacity = max(len(request.prompt) + request.max_new_tokens for request in requests) + self.gamma + 1
        with self.stopwatch("target"):
            self.target.start(prompts, capacity)
        if self.drafter is not None:
            with self.stopwatch("draft"):
                self.drafter.start(prompts, capacity)
        device = self.target.device
        self._params = RowParams.of([request.sampling for request in requests], device)
        self._seeds = torch.tensor([request.seed for request in requests], device=device)
        self._active = [c for c in completions if c.remaining > 0]
        for completion in completions:
            completion.finished = "" if completion.remaining > 0 else "length"
        self._keep([i for i, c in enumerate(completions) if c.remaining > 0])
        return completions

    @torch.inference_mode()
    def step(self) -> None:
        """One block for every active request.

        Raises:
            ModelError: NaN or infinite logits; names the model, the request and the step.
        """
        sequences = [completion.sequence for completion in self._active]
        limits = [min(self.gamma, completion.remaining - 1) for completion in self._active]
        positions = torch.tensor([len(sequence) for sequence in sequences], device=self.target.device)
        streams = Streams(self._seeds, positions, max(limits) + 1)
        with self.stopwatch("draft"):
            if self.drafter is None:
                draft = Draft.empty(len(sequences), self.target.device)
            else:
                draft = self.drafter.propose(sequences, limits, self._params, streams)
        counts = draft.num_draft_tokens.tolist()
        with self.stopwatch("target"):
            logits = self._score(sequences, draft, counts)
        with self.stopwatch("verify"):
            rows = self._target_rows(logits, draft, counts)
            verification = self._verify(draft, rows, streams)
            emitted, accepted = verification.token_ids.tolist(), verification.num_accepted.tolist()
        if any(tokens[num] == PADDING for tokens, num in zip(emitted, accepted, strict=True)):
            self._raise_for_bad_logits(draft, rows, counts)
        self._commit(sequences, counts, emitted, accepted)

    def _score(self, sequences: list[list[int]], draft: Draft, counts: list[int]) -> torch.Tensor:
        width = draft.max_draft_tokens
        fed = torch.zeros((len(sequences), width + 1), dtype=torch.int64, device=self.target.device)
        fed[:, 0] = torch.tensor([sequence[-1] for sequence in sequences])
        if width:
            index = ragged_index(counts, width, self.target.device)
            fed[index // width, 1 + index % width] = draft.token_ids
        return self.target.extend(fed, [count + 1 for count in counts])

    def _target_rows(self, logits: torch.Tensor, draft: Draft, counts: list[int]) -> LogitRows:
        width = draft.max_draft_tokens + 1
        index = ragged_index([count + 1 for count in counts], width, self.target.device)
        flat = logits.flatten(0, 1)
        if len(index) < len(flat):
            flat = flat[index]
        return logit_rows(flat, self._params.select(index // width))

    def _verify(self, draft: Draft, rows: LogitRows, streams: Streams) -> Verification:
        if draft.max_draft_tokens == 0 or self.verifier is None:
            tokens = sample(rows, streams.uniform(Stream.EMIT)[:, 0])
            return Verification(tokens[:, None], torch.zeros_like(draft.num_draft_tokens))
        return self.verifier.verify(draft, rows, streams)

    def _raise_for_bad_logits(self, draft: Draft, rows: LogitRows, counts: list[int]) -> None:
        for name, checked, bonus_rows in (("target", rows, 1), ("draft", draft.rows, 0)):
            if checked is not None and not bool(checked.finite().all()):
                owners = [b for b, count in enumerate(counts) for _ in range(count + bonus_rows)]
                completion = self._active[owners[int((~checked.finite()).nonzero()[0])]]
                raise ModelError(
                    f"The {name} model returned NaN or infinite logits for prompt {completion.request.name!r} at step "
                    f"{len(completion.steps)}. Check its weights, or use dtype=float32."
                )
        raise ModelError(f"{type(self.verifier).__name__} emitted no token from finite logits.")

    def _commit(
        self, sequences: list[list[int]], counts: list[int], emitted: list[list[int]], accepted: list[int]
    ) -> None:
        for completion, count, padded, num_accepted in zip(self._active, counts, emitted, accepted, strict=True):
            tokens = padded[: num_accepted + 1]
            stop = next((i for i, token in enumerate(tokens) if token in self.stop_ids), None)
            if stop is not None:
                tokens = tokens[: stop + 1]
                completion.finished = "stop"
            completion.token_ids.extend(tokens)
            if completion.remaining == 0 and not completion.finished:
                completion.finished = "length"
            name, number = completion.request.name, len(completion.steps)
            completion.steps.append(Step(name, number, count, num_accepted, len(tokens)))
        # The pending token and the accepted ones stay cached; the emitted one is fed by the next step.
        agreed = [len(sequence) + num for sequence, num in zip(sequences, accepted, strict=True)]
        self.target.truncate(agreed)
        if self.drafter is not None:
            self.drafter.commit(agreed)
        rows = [i for i, completion in enumerate(self._active) if not completion.finished]
        self._active = [self._active[i] for i in rows]
        self._keep(rows)

    def _keep(self, rows: list[int]) -> None:
        if len(rows) == len(self._seeds):
            return
        index = torch.tensor(rows, dtype=torch.int64, device=self.target.device)
        self._params, self._seeds = self._params.select(index), self._seeds[index]
        self.target.keep(rows)
        if self.drafter is not None:
            self.drafter.keep(rows)
