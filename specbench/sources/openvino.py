"""OpenVINO GenAI in this process, plain and with a draft model or prompt lookup, one text after another."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specbench.core.checks import check_count, check_path
from specbench.core.errors import ConfigError
from specbench.core.extensions import import_optional
from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.parameters import active_params, check_supported, unsupported_but

METHODS = DRAFT, LOOKUP = ("draft", "prompt_lookup")
_SETS = ("stop", "stop_token_ids")
_CUTS = ("temperature", "top_k", "top_p", "min_p")  # which greedy decoding does not read
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_NAMES = {  # of sampling parameters, in its GenerationConfig
    **{name: name for name in (*_CUTS, *_PENALTIES, *_SETS, "ignore_eos", "include_stop_str_in_output")},
    **{"min_tokens": "min_new_tokens", "stop": "stop_strings"},
}


class OpenVinoSource:
    """Texts of OpenVINO GenAI's LLMPipeline with continuous batching.

    Args:
        target, draft: folders of models in OpenVINO's format (IR), with their tokenizers.
        method: how it speculates, one of METHODS.
        gamma: tokens drafted a step (num_assistant_tokens).
        max_ngram_size: the longest match that prompt_lookup looks for.
        device: of both models.
        cache_size: GB of each pipeline's cache.
        properties: of the pipelines, such as KV_CACHE_PRECISION.

    Raises:
        ConfigError: a method that is not known or lacks its draft, or a number out of its range.
    """

    modes = frozenset(Mode)
    unsupported = unsupported_but(*_NAMES)
    takes_seeds = True
    engine = "OpenVINO GenAI"  # until it has been opened

    def __init__(
        self,
        target: str,
        draft: str | None = None,
        method: str = DRAFT,
        gamma: int = 4,
        max_ngram_size: int = 3,
        device: str = "CPU",
        cache_size: int = 1,
        properties: Mapping[str, Any] | None = None,
    ):
        if method not in METHODS:
            raise ConfigError("source.method", method, "not known", f"Use {' or '.join(METHODS)}.")
        if method == DRAFT and draft is None:
            problem = f"source.method={DRAFT} drafts with a model"
            raise ConfigError("source.draft", None, problem, f"Name its folder, or use source.method={LOOKUP}.")
        if not isinstance(properties, Mapping | None):
            raise ConfigError("source.properties", properties, "no mapping", "Use {NAME: VALUE}.")
        self.method, self.target = method, _folder("source.target", target)
        self.draft = None if draft is None or method != DRAFT else _folder("source.draft", draft)
        self.gamma = check_count("source.gamma", gamma)
        self.max_ngram_size = check_count("source.max_ngram_size", max_ngram_size)
        self.cache_size = check_count("source.cache_size", cache_size)
        self.device, self.properties = device, dict(properties or {})
        self.pipelines: dict[Mode, Any] = {}

    def open(self) -> None:
        """Loads the target twice, without speculation and with it, and the draft."""
        names = ("openvino_genai", "openvino")
        self.genai, self.openvino = (import_optional(name, "openvino", "source", "openvino") for name in names)
        self.engine = f"OpenVINO GenAI {self.genai.get_version()}"
        how: dict[str, Any] = {"prompt_lookup": True}
        try:
            if self.draft is not None:
                how = {"draft_model": self.genai.draft_model(self.draft, self.device)}
            self.pipelines = {Mode.PLAIN: self._pipeline(), Mode.SPECULATIVE: self._pipeline(**how)}
        except (RuntimeError, TypeError) as error:
            remedy = "Compare the folders and source.properties with docs/sources.md."
            raise ConfigError("source.target", self.target, f"cannot be loaded ({_short(error)})", remedy) from error

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        """Decodes requests one after another, since a call has one seed."""
        check_supported(requests, self.unsupported, self.engine)
        return [self._one(request, mode) for request in requests]

    def encode(self, text: str) -> tuple[int, ...] | None:
        inputs = self.pipelines[Mode.PLAIN].get_tokenizer().encode(text)
        return tuple(map(int, inputs.input_ids.data.ravel()))

    def close(self) -> None:
        self.pipelines = {}

    def _pipeline(self, **how: Any) -> Any:
        scheduler = self.genai.SchedulerConfig()
        scheduler.cache_size = self.cache_size
        return self.genai.LLMPipeline(self.target, self.device, scheduler_config=scheduler, **how, **self.properties)

    def _one(self, request: TextRequest, mode: Mode) -> TextCompletion:
        pipeline, start = self.pipelines[mode], time.perf_counter()
        tokenizer = pipeline.get_tokenizer()
        if request.token_ids is None:
            prompt = tokenizer.encode(request.prompt)
        else:
            prompt = self.openvino.Tensor(np.array([request.token_ids], dtype=np.int64))
        try:
            result = pipeline.generate(prompt, self._config(request, mode))
        except RuntimeError as error:
            problem = f"it refuses prompt {request.prompt_id!r} ({_short(error)})"
            raise ConfigError(
                "source", self.engine, problem, "Change the sampling parameters or the prompt."
            ) from error
        ids = tuple(map(int, result.tokens[0]))
        return TextCompletion(
            request=request,
            mode=mode,
            text=tokenizer.decode(list(ids)),
            token_ids=ids,
            finish_reason=result.finish_reasons[0].name.lower(),
            counters=_counters(result, len(ids)) if mode is Mode.SPECULATIVE else {},
            seconds=time.perf_counter() - start,
        )

    def _config(self, request: TextRequest, mode: Mode) -> Any:
        config, greedy = self.genai.GenerationConfig(), request.sampling.greedy
        config.apply_chat_template = False
        config.max_new_tokens, config.rng_seed = request.max_new_tokens, request.seed
        config.do_sample = not greedy
        for name, value in active_params(request.sampling, _NAMES).items():
            if not (greedy and name in _CUTS):
                setattr(config, _NAMES[name], set(value) if name in _SETS else value)
        if mode is Mode.SPECULATIVE:
            config.num_assistant_tokens = self.gamma
            if self.draft is None:
                config.max_ngram_size = self.max_ngram_size
        return config


def _counters(result: Any, tokens: int) -> dict[str, float]:
    """The engine's counters; where it has none, as with prompt lookup, what its steps came to."""
    metrics = result.extended_perf_metrics
    try:
        if metrics is None:
            steps = len(result.perf_metrics.raw_metrics.m_batch_sizes)
            return {"accepted": float(tokens - steps), "steps": float(steps)}
        counts = {
            "drafted": metrics.get_num_draft_tokens(),
            "accepted": metrics.get_num_accepted_tokens(),
            "rejected": metrics.get_num_rejected_tokens(),
            "steps": len(metrics.main_model_metrics.raw_metrics.m_batch_sizes),
        }
        return {name: float(count) for name, count in counts.items()}
    except AttributeError as error:
        problem = f"its metrics are of another version ({error})"
        raise ConfigError("source", "openvino", problem, "Install openvino-genai 2026.4, or tell us.") from error


def _folder(key: str, name: object) -> str:
    folder = check_path(key, name)
    if not (folder / "openvino_model.xml").is_file():
        remedy = "Give a folder as optimum-cli export openvino writes it; see docs/sources.md for GGUF."
        raise ConfigError(key, name, "no folder with an openvino_model.xml", remedy)
    return str(folder)


def _short(error: Exception) -> str:
    """The last line of one of OpenVINO's messages: lines before it are of its own source."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
