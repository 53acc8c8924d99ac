"""The decode loop: it admits requests, takes steps, reads what happened, and retires what is finished.

Plain decoding is the same loop with nothing drafted, so a baseline runs through the same engine, cache and streams as
the method that is measured against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.batch import FULL, RUNNING, STOPPED, Batch
from specbench.decoding.requests import Completion, Request, Step
from specbench.decoding.step import Happened, Parts, step
from specbench.drafters import Drafter
from specbench.errors import ConfigError, ModelError
from specbench.models import Engine, right_padded
from specbench.sampling import RowParams
from specbench.stopwatch import Stopwatch
from specbench.types import PADDING
from specbench.verifiers import Verifier
from specbench.verifiers.base import offers

_FINISHED = {RUNNING: "", STOPPED: "stop", FULL: "length"}


def check_fit(drafter: Drafter, verifier: Verifier, gamma: int) -> int:
    """How many tokens a step drafts for a request at most. Needs no model.

    Raises:
        ConfigError: trees for a verifier that takes chains alone, or a drafter's settings that do not fit gamma.
    """
    if drafter.drafts_trees and not offers(verifier).takes_trees:
        name = type(verifier).__name__
        raise ConfigError("verifier", name, "takes chains alone, but the drafter drafts trees", "Use verifier=tree.")
    return drafter.most_tokens(gamma)


class Decoder:
    """Decodes batches of requests.

    Args:
        target: scores drafts; one forward pass a step.
        drafter: proposes, bound to its models; None decodes plainly.
        verifier: accepts and emits; not used where nothing was drafted.
        gamma: tokens drafted a step, at most, in a tree on each path; fewer for a request near its max_new_tokens.
        stop_ids: ids that end a text.

    Raises:
        ConfigError: a drafter that this verifier or this gamma does not fit.
    """

    def __init__(
        self, target: Engine, drafter: Drafter | None, verifier: Verifier | None, gamma: int, stop_ids: frozenset[int]
    ):
        if (drafter is None or verifier is None) and gamma > 0:
            raise ValueError(f"gamma={gamma} needs a drafter and a verifier")
        self._most = 0 if drafter is None or verifier is None else check_fit(drafter, verifier, gamma)
        self.target, self.drafter, self.verifier = target, drafter, verifier
        self.gamma, self.stop_ids = gamma, stop_ids
        self.stopwatch = Stopwatch(target.synchronize)
        ids = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=target.device)
        self._parts = Parts(target, drafter, verifier, gamma, ids)
        self._active: list[Completion] = []
        self._batch: Batch | None = None

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Decodes a batch to its end; completions in the order of the requests."""
        completions = self.start(requests)
        while self._active:
            self.step()
        return completions

    def start(self, requests: Sequence[Request]) -> list[Completion]:
        """Forgets whatever was being decoded and feeds these prompts; follow with :meth:`step`."""
        self._active, self._batch = [], None
        return self.admit(requests)

    def admit(self, requests: Sequence[Request]) -> list[Completion]:
        """Feeds the prompts of further requests, which are decoded beside those that are under way.

        Returns:
            Their completions, which :meth:`step` fills in.
        """
        completions = [Completion(request) for request in requests]
        joining = [completion for completion in completions if completion.remaining > 0]
        for completion in completions:
            completion.finished = "" if completion.remaining > 0 else "length"
        if not joining:
            return completions
        prompts = [completion.request.prompt for completion in joining]
        batch = self._batch_of([completion.request for completion in joining])
        for name, model in (("target", self.target), ("draft", self.drafter)):
            if model is not None:
                feed = model.start if self._batch is None else model.admit
                with self.stopwatch(name):
                    feed(prompts, batch.tokens.shape[1])
        self._batch = batch if self._batch is None else self._batch.joined(batch)
        self._active += joining
        return completions

    def step(self) -> None:
        """One block for every active request.

        Raises:
            ModelError: NaN or infinite logits; names the model, the request and the step.
        """
        assert self._batch is not None, "start first"
        self._batch, happened = step(self._batch, self._parts, self.stopwatch)
        lengths = [self._record(i, *line) for i, line in enumerate(self._read(happened))]
        for model in (self.target, self.drafter):
            if model is not None:
                model.bound(max(lengths) - 1)
        self._retire()

    def _batch_of(self, requests: Sequence[Request]) -> Batch:
        device = self.target.device
        limits = [len(request.prompt) + request.max_new_tokens for request in requests]
        # Blocks are written whole: that of the longest text may begin one token before its end.
        prompts = right_padded([request.prompt for request in requests], device)
        tokens = prompts.new_zeros((len(requests), max(limits) + self._most + 1))
        tokens[:, : prompts.shape[1]] = prompts
        return Batch(
            tokens,
            torch.tensor([len(request.prompt) for request in requests], device=device),
            torch.tensor(limits, device=device),
            torch.tensor([request.seed for request in requests], device=device),
            RowParams.of([request.sampling for request in requests], device),
            torch.full((len(requests),), RUNNING, device=device),
        )

    def _read(self, happened: Happened) -> list[list[int]]:
        with self.stopwatch("verify"):
            lines = happened.read()
        if any(tokens[accepted] == PADDING for _, _, accepted, _, _, *tokens in lines):
            self._raise_for_bad_logits(happened)
        return lines

    def _record(
        self, i: int, drafted: int, depth: int, accepted: int, emitted: int, finished: int, *tokens: int
    ) -> int:
        completion = self._active[i]
        completion.token_ids.extend(tokens[:emitted])
        completion.finished = _FINISHED[finished]
        name, number = completion.request.name, len(completion.steps)
        completion.steps.append(Step(name, number, drafted, accepted, emitted, depth))
        return len(completion.request.prompt) + len(completion.token_ids)

    def _raise_for_bad_logits(self, happened: Happened) -> None:
        counts = happened.num_draft_tokens
        for name, rows, more in (("target", happened.target, 1), ("draft", happened.draft.rows, 0)):
            if rows is None:
                continue
            width = happened.draft.max_draft_tokens + more
            used = torch.arange(width, device=counts.device) < (counts + more)[:, None]
            bad = (~rows.finite().view(-1, width) & used).any(dim=1)
            if bad.any():
                completion = self._active[int(bad.nonzero()[0])]
                raise ModelError(
                    f"The {name} model returned NaN or infinite logits for prompt {completion.request.name!r} at step "
                    f"{len(completion.steps)}. Check its weights, or use dtype=float32."
                )
        raise ModelError(f"{type(self.verifier).__name__} emitted no token from finite logits.")

    def _retire(self) -> None:
        """Takes finished requests out of the batch and out of the models' caches."""
        rows = [i for i, completion in enumerate(self._active) if not completion.finished]
        if len(rows) == len(self._active):
            return
        self._active = [self._active[i] for i in rows]
        assert self._batch is not None
        if not rows:
            self._batch = None
            return
        self._batch = self._batch.select(torch.tensor(rows, device=self.target.device))
        for model in (self.target, self.drafter):
            if model is not None:
                model.keep(rows)
