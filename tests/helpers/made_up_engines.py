"""Made-up engines under test: a small Markov law of tokens, sound or with one fault in the speculative texts."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from specbench.core.errors import SpecbenchError
from specbench.sources import Mode, TextCompletion, TextRequest

VOCABULARY = 40


class Engine:
    """Draws each token given the prompt and the previous token. A fault overrides one method."""

    engine = "made up 1"
    modes = frozenset(Mode)
    unsupported: frozenset[str] = frozenset()
    takes_seeds = True
    gamma = 3
    method = "coupling"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.logits = 1.5 * rng.gumbel(size=(VOCABULARY, VOCABULARY))
        self.of_prompt = 1.5 * rng.gumbel(size=(1000, VOCABULARY))
        self.calls = 0
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        self.calls += len(requests)
        return [self.one(request, mode) for request in requests]

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        rng = np.random.default_rng([request.seed, mode is Mode.SPECULATIVE])
        ids: list[int] = []
        scores = []
        for _ in range(self.limit(request, mode)):
            probs = self.probs(self.prompt(request, mode), ids, request.sampling.temperature, mode)
            ids.append(int(rng.choice(VOCABULARY, p=probs)))
            scores.append(math.log(max(float(self.probs(request.prompt, ids[:-1], 1.0, Mode.PLAIN)[ids[-1]]), 1e-9)))
            stops = [stop for stop in request.sampling.stop if stop in self.text(ids)]
            if stops:
                end = self.text(ids).index(stops[0])
                return self.completion(request, mode, ids, self.text(ids)[:end], "stop", scores)
        return self.completion(request, mode, ids, self.text(ids), "length", scores)

    def completion(
        self, request: TextRequest, mode: Mode, ids: list[int], text: str, finish: str, scores: list[float]
    ) -> TextCompletion:
        drafted = {"drafted": 3.0 * len(ids), "accepted": float(len(ids)), "steps": float(len(ids))}
        return TextCompletion(
            request=request,
            mode=mode,
            text=text,
            token_ids=tuple(ids),
            finish_reason=finish,
            logprobs=None if request.sampling.logprobs is None else tuple(scores),
            counters=drafted if mode is Mode.SPECULATIVE else {},
            seconds=0.01,
        )

    def text(self, ids: Sequence[int]) -> str:
        return "".join(f"w{token} " for token in ids)

    def prompt(self, request: TextRequest, mode: Mode) -> str:
        return request.prompt

    def limit(self, request: TextRequest, mode: Mode) -> int:
        return request.max_new_tokens

    def probs(self, prompt: str, before: list[int], temperature: float, mode: Mode) -> np.ndarray:
        number = sum(prompt.encode()) % 1000
        logits = self.of_prompt[number] + (self.logits[before[-1]] if before else 0)
        if temperature == 0:
            return np.eye(VOCABULARY)[logits.argmax()]
        weights = np.exp((logits - logits.max()) / temperature)
        return weights / weights.sum()


class Biased(Engine):
    """Moves probability to the likeliest token, in speculative texts."""

    def __init__(self, bias: float):
        super().__init__()
        self.bias = bias

    def probs(self, prompt: str, before: list[int], temperature: float, mode: Mode) -> np.ndarray:
        probs = super().probs(prompt, before, temperature, mode)
        if mode is Mode.PLAIN:
            return probs
        moved = min(1.0, self.bias / max(1 - probs.max(), 1e-9))
        return (1 - moved) * probs + moved * np.eye(VOCABULARY)[probs.argmax()]


class AlwaysGreedy(Engine):
    """Ignores the temperature when it speculates."""

    def probs(self, prompt: str, before: list[int], temperature: float, mode: Mode) -> np.ndarray:
        return super().probs(prompt, before, 0.0 if mode is Mode.SPECULATIVE else temperature, mode)


class IgnoresTemperature(Engine):
    """Is greedy both ways."""

    def probs(self, prompt: str, before: list[int], temperature: float, mode: Mode) -> np.ndarray:
        return super().probs(prompt, before, 0.0, mode)


class IgnoresSeeds(Engine):
    """Returns one text of each prompt, another one when it speculates."""

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        completion = super().one(dataclasses.replace(request, seed=7), mode)
        return dataclasses.replace(completion, request=request)


class FreshSeeds(Engine):
    """Draws sound texts, of seeds of its own: the same seed gives another text each time."""

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        completion = super().one(dataclasses.replace(request, seed=self.calls * 1000 + request.seed % 997), mode)
        return dataclasses.replace(completion, request=request)


class CutsPrompts(Engine):
    """Reads the end of the prompt alone when it speculates."""

    def prompt(self, request: TextRequest, mode: Mode) -> str:
        return request.prompt[-3:] if mode is Mode.SPECULATIVE else request.prompt


class OneTooMany(Engine):
    """Returns a token more than it should when it speculates."""

    def limit(self, request: TextRequest, mode: Mode) -> int:
        return request.max_new_tokens + (mode is Mode.SPECULATIVE)


class Several(Engine):
    """Returns several texts of a request: all with the noise of the first, one too few, or none, when it speculates.

    ``plain`` is the fault of plain texts, as of a server with another -np.
    """

    def __init__(self, fault: str = "", plain: str = ""):
        super().__init__()
        self.faults = {Mode.SPECULATIVE: fault, Mode.PLAIN: plain}

    def choices(self, request: TextRequest, count: int, mode: Mode) -> list[TextCompletion]:
        fault = self.faults[mode]
        if fault == "refuses":
            raise SpecbenchError("n is at most 1")
        seeds = [request.seed + (0 if fault == "copies" else i) for i in range(count - (fault == "too few"))]
        texts = self.complete([dataclasses.replace(request, seed=seed) for seed in seeds], mode)
        return [dataclasses.replace(text, request=request) for text in texts]


class Empty(Engine):
    """Returns nothing when it speculates."""

    def limit(self, request: TextRequest, mode: Mode) -> int:
        return 0 if mode is Mode.SPECULATIVE else request.max_new_tokens


class OverrunsStops(Engine):
    """Looks for stop strings in plain texts only."""

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        if mode is Mode.PLAIN:
            return super().one(request, mode)
        without = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, stop=()))
        return dataclasses.replace(super().one(without, mode), request=request)


class HalfStops(Engine):
    """Shows the first character of the stop string when it speculates."""

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        completion, stop = super().one(request, mode), "".join(request.sampling.stop)
        half = stop[:1] if mode is Mode.SPECULATIVE else ""
        return dataclasses.replace(completion, text=completion.text + half)


class ShowsStops(Engine):
    """Shows the stop string, and the rest of its last token if asked to: when it speculates, or both ways."""

    def __init__(self, modes: Sequence[Mode] = (Mode.SPECULATIVE,), whole: bool = False) -> None:
        super().__init__()
        self.shown, self.whole = modes, whole

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        completion = super().one(request, mode)
        if completion.finish_reason != "stop" or mode not in self.shown:
            return completion
        whole = self.text(completion.token_ids or ()).rstrip()
        (stop,) = request.sampling.stop
        return dataclasses.replace(completion, text=whole if self.whole else completion.text + stop)


class RoundsAlone(Engine):
    """Takes another first token at temperature 0 if it speculates for a single request, as rounding may have it."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = False

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        self.alone = len(requests) == 1 and mode is Mode.SPECULATIVE
        return super().complete(requests, mode)

    def probs(self, prompt: str, before: list[int], temperature: float, mode: Mode) -> np.ndarray:
        probs = super().probs(prompt, before, temperature, mode)
        forks = self.alone and temperature == 0 and not before
        return np.roll(probs, VOCABULARY // 2) if forks else probs


class ZeroLogprobs(Engine):
    """Returns 0 for the log-probabilities of drafted tokens."""

    def completion(self, request: TextRequest, mode: Mode, *rest: object) -> TextCompletion:
        completion = super().completion(request, mode, *rest)
        if mode is Mode.PLAIN or completion.logprobs is None:
            return completion
        return dataclasses.replace(completion, logprobs=tuple(0.0 for _ in completion.logprobs))


class WithoutIds(Engine):
    """Returns text alone."""

    def completion(self, request: TextRequest, mode: Mode, *rest: object) -> TextCompletion:
        return dataclasses.replace(super().completion(request, mode, *rest), token_ids=None)


class LosesIds(Several):
    """Returns token ids for every second text alone."""

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        first = self.calls
        completions = enumerate(super().complete(requests, mode), first)
        return [dataclasses.replace(text, token_ids=None) if number % 2 else text for number, text in completions]


class Fails(Engine):
    """Stops working after some texts."""

    error = SpecbenchError("the server is down. Start it.")

    def __init__(self, after: int):
        super().__init__()
        self.after = after

    def one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        self.after -= 1
        if self.after < 0:
            raise self.error
        return super().one(request, mode)
