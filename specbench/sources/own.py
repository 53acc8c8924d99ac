"""Our own decoder as an engine under test, so that a verifier, sound or flawed, can be judged by its texts alone."""

import time
from collections.abc import Sequence

import specbench
from specbench.core.checks import check_count
from specbench.decoding import Completion as Decoded
from specbench.decoding import Decoder, DecodingEngine, Request
from specbench.decoding.engines import Requirements
from specbench.decoding.logprobs import completion_logprobs
from specbench.drafters import Drafter
from specbench.models.cached_model import CachedModel
from specbench.models.loading import Pair, load_pair
from specbench.rules.verifier import Verifier
from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.parameters import check_supported, prompt_ids

UNSUPPORTED = ("n", "prompt_logprobs", "truncate_prompt_tokens")


class OwnSource:
    """Texts of specbench's decoder.

    Args:
        target, draft, device, dtype, download: see :func:`specbench.load_pair`.
        verifier, drafter, engine: of the speculative texts.
        gamma: tokens drafted a step.
        batch_size: texts decoded side by side.

    Raises:
        ConfigError: a number out of its range.
    """

    engine = f"specbench {specbench.__version__}"
    modes = frozenset(Mode)
    unsupported = frozenset(UNSUPPORTED)
    takes_seeds = True
    of_run = True  # it is made of the run's pair, drafter, verifier and gamma

    def __init__(
        self,
        target: str,
        draft: str | None,
        verifier: Verifier,
        drafter: Drafter,
        engine: DecodingEngine,
        gamma: int = 4,
        batch_size: int = 16,
        device: str = "auto",
        dtype: str = "auto",
        download: bool = False,
    ):
        self.target, self.draft, self.device, self.dtype, self.download = target, draft, device, dtype, download
        self.verifier, self.drafter, self.decoding = verifier, drafter, engine
        self.gamma = check_count("gamma", gamma)
        self.batch_size = check_count("source.batch_size", batch_size)
        self.pair: Pair | None = None
        self.decoders: dict[Mode, Decoder] = {}

    def open(self) -> None:
        self.drafter.check(self.draft is not None)
        self.pair = pair = load_pair(
            self.target, self.draft, device=self.device, dtype=self.dtype, download=self.download, chat=False
        )
        target = CachedModel(pair.target, pair.vocab_size, "target")
        engine = self.decoding.resolve(Requirements(target.device, self.drafter, self.verifier, self.batch_size))
        drafter = self.drafter.bind(pair, target)
        plain, both = (None, None, 0), (drafter, self.verifier, self.gamma)
        for mode, parts in ((Mode.PLAIN, plain), (Mode.SPECULATIVE, both)):
            self.decoders[mode] = Decoder(target, *parts, pair.stop_ids, engine, pair.tokenizer)

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        """Decodes requests, ``batch_size`` at a time. ``seconds`` is the whole call's, shared evenly."""
        if self.pair is None:
            raise RuntimeError("open() first")
        check_supported(requests, self.unsupported, self.engine)
        requests_made = [self._request(number, request) for number, request in enumerate(requests)]
        start, decoder = time.perf_counter(), self.decoders[mode]
        decoder.reserve(requests_made, self.batch_size)
        decoded = decoder.run(requests_made, self.batch_size)
        seconds = (time.perf_counter() - start) / max(len(requests), 1)
        return [self._completion(*both, mode, seconds) for both in zip(requests, decoded, strict=True)]

    def encode(self, text: str) -> tuple[int, ...] | None:
        return None if self.pair is None else tuple(self.pair.encode(text))

    def close(self) -> None:
        self.pair, self.decoders = None, {}

    def _request(self, number: int, request: TextRequest) -> Request:
        assert self.pair is not None
        ids, sampling = prompt_ids(self.pair, request), self.pair.resolved(request.sampling)
        return Request(str(number), ids, request.seed, sampling, request.max_new_tokens)

    def _completion(self, request: TextRequest, decoded: Decoded, mode: Mode, seconds: float) -> TextCompletion:
        chosen = None
        if request.sampling.logprobs is not None:
            scored = completion_logprobs(self.decoders[mode].components.target, decoded) or []
            chosen = tuple(score.logprob or 0.0 for score in scored)
        counters = {
            "drafted": sum(step.num_draft_tokens for step in decoded.steps),
            "accepted": sum(step.num_accepted for step in decoded.steps),
            "steps": len(decoded.steps),
        }
        return TextCompletion(
            request=request,
            mode=mode,
            text=decoded.text,
            token_ids=tuple(decoded.token_ids),
            finish_reason=decoded.finished,
            logprobs=chosen,
            counters=counters if mode is Mode.SPECULATIVE else {},
            seconds=seconds,
        )
