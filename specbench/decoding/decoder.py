"""The decode loop: it admits requests, takes steps, reads their reports, and retires requests that are finished.

Plain decoding is the same loop with nothing drafted, so a baseline runs through the same engine, cache and streams as
the method that is compared with it.
"""

import time
from collections import deque
from collections.abc import Sequence

import torch

from specbench.core.conf import config_name
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.machine import progress
from specbench.core.machine.devices import to_tensor
from specbench.core.types import PADDING
from specbench.decoding.detokenize import Tokenizer
from specbench.decoding.engines import DecodingEngine, EagerEngine
from specbench.decoding.engines.engine import ReadReport
from specbench.decoding.requests import Completion, Request
from specbench.decoding.step import StepComponents
from specbench.decoding.step_result import PHASES, RequestStep
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter
from specbench.models import CachedModel, right_padded
from specbench.rules.verifier import Verifier, capabilities
from specbench.sampling import RowParams
from specbench.sampling.batch import RUNNING, Batch


def check_fit(drafter: Drafter, verifier: Verifier, gamma: int) -> int:
    """Returns the most tokens that a step drafts for a request. Needs no model.

    Raises:
        ConfigError: trees for a verifier of chains, drafter settings that do not fit gamma, synthetic drafts for a
            verifier that is not synthetic, or a gamma too small for the verifier.
    """
    if drafter.drafts_trees and not capabilities(verifier).takes_trees:
        name = config_name("verifier", verifier)
        raise ConfigError("verifier", name, "takes chains alone, but the drafter drafts trees", "Use verifier=tree.")
    if drafter.synthetic and not capabilities(verifier).synthetic:
        problem = "would reject nearly all drafts of a synthetic drafter, which are random tokens"
        name = config_name("verifier", verifier)
        raise ConfigError("verifier", name, problem, "Use verifier=synthetic, or another drafter.")
    if 0 < gamma < (least := capabilities(verifier).least_gamma):
        problem = f"too few drafted tokens for what verifier={config_name('verifier', verifier)} is asked for"
        raise ConfigError("gamma", gamma, problem, f"Use gamma={least} or more.")
    return drafter.most_tokens(gamma)


class Decoder:
    """Decodes batches of requests.

    Args:
        drafter: proposes, bound to its models; None decodes plainly.
        verifier: accepts and emits; not used where nothing was drafted.
        gamma: tokens drafted a step, at most, in a tree on each path; fewer for a request near its max_new_tokens, or
            with a gamma of its own.
        stop_ids: the model's own ids that end a text.
        engine: takes the steps; None is eager.
        tokenizer: of the pair; needed for stop strings, and for the text of completions.

    Raises:
        ConfigError: a drafter that this verifier or this gamma does not fit.
    """

    def __init__(
        self,
        target: CachedModel,
        drafter: Drafter | None,
        verifier: Verifier | None,
        gamma: int,
        stop_ids: frozenset[int],
        engine: DecodingEngine | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        if (drafter is None or verifier is None) and gamma > 0:
            raise ValueError(f"gamma={gamma} needs a drafter and a verifier")
        self._most = 0 if drafter is None or verifier is None else check_fit(drafter, verifier, gamma)
        self.components = StepComponents(target, drafter, verifier, gamma)
        self.stop_ids, self.tokenizer = stop_ids, tokenizer
        self.stopwatch = Stopwatch(target.device)
        self.engine = (engine or EagerEngine()).bind(self.components, self.stopwatch)
        self.steps = 0  # with at least one running request
        self._rows: dict[int, Completion] = {}
        self._under_way: deque[tuple[ReadReport, dict[int, Completion]]] = deque()

    @property
    def active(self) -> int:
        """The number of requests that have not ended."""
        return len(self._rows)

    def reserve(self, requests: Sequence[Request], at_once: int) -> None:
        """Allocates memory for the longest of these requests, ``at_once`` of them together, before any is admitted.

        Raises:
            ConfigError: more requests together than the engine has steps for.
        """
        longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
        stops = max(len(self._stops_of(request)) for request in requests)
        self.engine.reserve(min(at_once, len(requests)), longest + self._most + 1, stops)

    def clear_times(self) -> None:
        """Forgets all times and steps so far, such as those of warming up."""
        self.stopwatch.clear()
        self.steps = 0

    def forget(self) -> None:
        """Has the drafter forget the texts that have ended, so that later drafts do not depend on them."""
        if self.components.drafter is not None:
            self.components.drafter.forget()

    def run(self, requests: Sequence[Request], at_once: int = 0) -> list[Completion]:
        """Decodes requests to their end; completions in their order.

        Args:
            at_once: requests decoded together; others take the places of ended ones. 0 is all.
        """
        width = at_once or max(len(requests), 1)
        completions, waiting = self.start(requests[:width]), requests[width:]

        def tokens() -> int:
            return sum(len(completion.token_ids) for completion in completions)

        while self._rows or waiting:
            if waiting and self.active < width:
                free = width - self.active
                completions += self.admit(waiting[:free])
                waiting = waiting[free:]
            if self._rows:
                self.step()
                progress.beat(tokens)
        progress.count(tokens())
        return completions

    def start(self, requests: Sequence[Request]) -> list[Completion]:
        """Forgets all requests and feeds these prompts to the end, in pieces or not; follow with :meth:`step`."""
        self.engine.start()
        self._rows.clear()
        self._under_way.clear()
        completions = self.admit(requests)
        while self.engine.feeding:
            self.engine.feed()
        return completions

    def admit(self, requests: Sequence[Request]) -> list[Completion]:
        """Adds requests to those under way.

        Their prompts are fed here, or in pieces, one before each :meth:`step` (``prompt_chunk`` of the engine).

        Returns:
            Their completions, which :meth:`step` fills in.

        Raises:
            ConfigError: a request whose gamma is above the decoder's; no request is admitted then.
        """
        started = time.perf_counter()
        completions = [Completion(request, tokenizer=self.tokenizer, started=started) for request in requests]
        joining = [completion for completion in completions if completion.remaining > 0]
        for completion in completions:
            completion.finished = "" if completion.remaining > 0 else "length"
        if joining:
            batch = self._batch_of([completion.request for completion in joining])
            rows = self.engine.admit(batch, [completion.request.prompt for completion in joining])
            self._rows.update(zip(rows, joining, strict=True))
        return completions

    def step(self) -> None:
        """Decodes one block for every active request; an engine with a lag reports it at the next step, or at flush().

        Raises:
            ModelError: NaN or infinite logits; names the model, the request and the step.
            ArgumentError: a draft of another form than ``Draft`` has, or with more tokens than were allowed.
        """
        assert self._rows, "start first"
        if self.engine.feeding:
            self.engine.feed()
        while len(self.engine.feeding) == len(self._rows):  # no request can take a step
            self.engine.feed()
        running = {row: completion for row, completion in self._rows.items() if row not in self.engine.feeding}
        longest = max(len(text.request.prompt) + len(text.token_ids) for text in self._rows.values())
        self._under_way.append((self.engine.step(longest - 1), running))
        while len(self._under_way) > self.engine.lag:
            self._read()

    def flush(self) -> None:
        """Reads the reports of all steps that were begun."""
        while self._under_way:
            self._read()

    def _read(self) -> None:
        read_report, rows = self._under_way.popleft()
        report = read_report()
        read = time.perf_counter()  # read_report() has waited for the step
        self.stopwatch.add(PHASES, report.stamps)
        running = {row: completion for row, completion in rows.items() if not completion.finished}
        self.steps += bool(running)
        for row, completion in running.items():
            self._check_draft(completion, report.requests[row])
            completion.record(report.requests[row], self.components.verifier, read)
        ended = [row for row, completion in self._rows.items() if completion.finished]
        if ended:
            if self.components.drafter is not None:
                self.components.drafter.ended([self._rows[row].token_ids for row in ended])
            moved = self.engine.retire(ended, [row for row in ended if self._rows[row].hidden is not None])
            running = {row: completion for row, completion in self._rows.items() if not completion.finished}
            self._rows = {moved.get(row, row): completion for row, completion in running.items()}
        if not self._rows:  # the steps under way have no running request
            self._under_way.clear()

    def _check_draft(self, completion: Completion, step: RequestStep) -> None:
        """Raises ArgumentError for more draft tokens than the limits allowed, with which a text could get too long."""
        limit = min(self._gamma_of(completion.request), completion.remaining - 1)
        if step.draft_depth > limit:
            where = f"prompt {completion.request.name!r} at step {len(completion.steps)}"
            raise ArgumentError(
                f"drafter={config_name('drafter', self.components.drafter)}: it drafted {step.draft_depth} tokens for "
                f"{where}, and propose() was allowed {limit}. Draft at most `limits[b]` tokens for request b."
            )

    def _batch_of(self, requests: Sequence[Request]) -> Batch:
        device = self.components.target.device
        limits = [len(request.prompt) + request.max_new_tokens for request in requests]
        # Blocks are written whole: that of the longest text may begin one token before its end.
        prompts = right_padded([request.prompt for request in requests], device)
        tokens = prompts.new_zeros((len(requests), max(limits) + self._most + 1))
        tokens[:, : prompts.shape[1]] = prompts
        lengths = [len(request.prompt) for request in requests]
        return Batch(
            tokens,
            to_tensor(lengths, device),
            to_tensor(lengths, device),
            to_tensor(limits, device),
            to_tensor([self._gamma_of(request) for request in requests], device),
            to_tensor([request.seed for request in requests], device),
            RowParams.of([request.sampling for request in requests], device),
            torch.full((len(requests),), RUNNING, device=device),
            right_padded([sorted(self._stops_of(request)) for request in requests], device, PADDING),
        )

    def _stops_of(self, request: Request) -> frozenset[int]:
        return request.sampling.ids_that_end(self.stop_ids if request.stop_ids is None else request.stop_ids)

    def _gamma_of(self, request: Request) -> int:
        most = self.components.gamma
        if self.components.drafter is None or request.gamma is None:
            return most
        if not 0 <= request.gamma <= most:
            problem = f"request {request.name!r} has a gamma of its own, {request.gamma}, outside 0..{most}"
            raise ConfigError("gamma", most, problem, f"Give the request 0 to {most}, or raise gamma.")
        return request.gamma
