"""transformers' own ``generate``, plain and with one of its speculative methods, one text after another."""

import copy
import dataclasses
import time
from collections.abc import Sequence
from importlib.metadata import version

from specbench.core.checks import check_count
from specbench.core.errors import ConfigError
from specbench.decoding.detokenize import text_of
from specbench.models.generate_speculatively import (
    EARLY_EXIT,
    METHODS,
    NEEDING_DRAFT,
    TOKENIZERS,
    Method,
    draft_tokenizer,
    sample_plainly,
    sample_speculatively,
)
from specbench.models.loading import Pair, load_pair
from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.parameters import check_supported, prompt_ids, unsupported_but

_SUPPORTED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "ignore_eos", "stop_token_ids")


class TransformersSource:
    """Texts of ``generate`` with a target, and for some methods a draft.

    Args:
        target, draft, device, dtype, download: see :func:`specbench.load_pair`.
        method: how it speculates, one of METHODS.
        gamma: tokens drafted a step.
        layers: of the target that draft, for method early_exit; None is half of them.
        max_ngram_size: the longest match that prompt_lookup looks for.

    Raises:
        ConfigError: a method that is not known or lacks its draft, or a number out of its range.
    """

    modes = frozenset(Mode)
    unsupported = unsupported_but(*_SUPPORTED)
    takes_seeds = True

    def __init__(
        self,
        target: str,
        draft: str | None = None,
        method: str = "assisted",
        gamma: int = 4,
        layers: int | None = None,
        max_ngram_size: int = 2,
        device: str = "auto",
        dtype: str = "auto",
        download: bool = False,
    ):
        if method not in METHODS:
            raise ConfigError("source.method", method, "not known", f"Use {', '.join(METHODS)}.")
        if method in NEEDING_DRAFT and draft is None:
            raise ConfigError("source.draft", None, f"source.method={method} drafts with a model", "Name one.")
        size = check_count("source.max_ngram_size", max_ngram_size)
        if layers is not None:
            layers = check_count("source.layers", layers)
        self.method = method
        self.settings = Method(method, check_count("source.gamma", gamma), layers, size)
        self.target, self.draft = target, draft if method in NEEDING_DRAFT else None
        self.device, self.dtype, self.download = device, dtype, download
        self.engine = f"transformers {version('transformers')}"
        self.pair: Pair | None = None
        self.greedy_pair: Pair | None = None

    def open(self) -> None:
        differ = self.method == TOKENIZERS
        self.pair = load_pair(
            self.target,
            self.draft,
            device=self.device,
            dtype=self.dtype,
            chat=False,
            download=self.download,
            vocabularies="different" if differ else "same",
        )
        if self.method == EARLY_EXIT and self.settings.layers is None:
            layers = self.pair.target.config.get_text_config().num_hidden_layers
            self.settings = dataclasses.replace(self.settings, layers=max(layers // 2, 1))
        # With another tokenizer generate prunes the draft that it samples from, which greedy decoding cannot use then.
        self.greedy_pair = dataclasses.replace(self.pair, draft=copy.deepcopy(self.pair.draft)) if differ else self.pair
        if differ and self.draft is not None:
            tokenizer = draft_tokenizer("source.draft", self.draft, self.download)
            self.settings = dataclasses.replace(self.settings, draft_tokenizer=tokenizer)

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        """Decodes requests one after another, since assisted generation takes one."""
        check_supported(requests, self.unsupported, self.engine)
        return [self._one(request, mode) for request in requests]

    def encode(self, text: str) -> tuple[int, ...] | None:
        return tuple(self._opened().encode(text))

    def close(self) -> None:
        self.pair = self.greedy_pair = None

    def _one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        pair, start = self._opened(request.sampling.greedy), time.perf_counter()
        arguments = (pair, prompt_ids(pair, request), request.sampling, request.max_new_tokens, request.seed)
        counters: dict[str, float] = {}
        if mode is Mode.PLAIN:
            ids = sample_plainly(*arguments)
        else:
            ids, counts = sample_speculatively(*arguments, self.settings)
            counters = {name: float(count) for name, count in dataclasses.asdict(counts).items()}
        stopped = bool(ids) and ids[-1] in request.sampling.ids_that_end(pair.stop_ids)
        return TextCompletion(
            request=request,
            mode=mode,
            text=text_of(pair.tokenizer, ids, skip_special_tokens=True),
            token_ids=tuple(ids),
            finish_reason="stop" if stopped else "length",
            counters=counters,
            seconds=time.perf_counter() - start,
        )

    def _opened(self, greedy: bool = False) -> Pair:
        pair = self.greedy_pair if greedy else self.pair
        if pair is None:
            raise RuntimeError("open() first")
        return pair
