"""Any server of OpenAI's protocol, completions or chat: vLLM, SGLang, TGI, llama-server and others."""

from typing import Any

from specbench.core.checks import check_flag
from specbench.core.errors import ConfigError
from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.http import Server, StatusError
from specbench.sources.llama_server import timings
from specbench.sources.parameters import active_params, unsupported_but
from specbench.sources.served import Reply, ServedSource
from specbench.sources.values import is_count, is_logprobs, is_name, is_token_ids

_TGI = ("temperature", "top_p", "frequency_penalty", "stop")
_OPENAI = (*_TGI, "presence_penalty", "logit_bias", "logprobs")
_SGLANG = (*_OPENAI, "top_k", "min_p", "repetition_penalty", "ignore_eos", "stop_token_ids", "min_tokens")
_VLLM = (*_SGLANG, "bad_words", "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens")
DIALECTS = {"openai": _OPENAI, "vllm": _VLLM, "sglang": _SGLANG, "tgi": _TGI}
# Always sent to servers that know them, which would take the model's own (generation_config.json) for what is left out.
_ALWAYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_PROTOCOL = "Is it a server of OpenAI's protocol? See source.dialect."


class OpenAiSource(ServedSource):
    """Texts of such a server.

    Args:
        model: as the server calls it; None takes the one that it serves.
        chat: whether to ask /v1/chat/completions, with the prompt as the user's message. The server applies its
            template then, and prompts are sent as text.
        dialect: which parameters it takes beside OpenAI's, one of DIALECTS. ``vllm`` returns token ids as well.
        served: see :class:`specbench.sources.served.ServedSource`.

    Raises:
        ConfigError: a dialect that is not known, or what ServedSource refuses.
    """

    several = "n"

    def __init__(
        self, url: str | None, model: str | None = None, chat: bool = False, dialect: str = "openai", **served: Any
    ):
        super().__init__(url, **served)
        if dialect not in list(DIALECTS):
            raise ConfigError("source.dialect", dialect, "not known", f"Use {', '.join(DIALECTS)}.")
        self.model, self.chat, self.dialect = model, check_flag("source.chat", chat), dialect
        self.unsupported = unsupported_but(*DIALECTS[dialect])

    def describe(self, server: Server) -> str:
        self.model, owner = _model(server, self.model)
        for path, name in (("/version", "version"), ("/props", "build_info")):  # of vLLM and llama-server
            try:
                version = server.json(path)[name]
            except (ConfigError, KeyError, TypeError):
                continue
            if is_name(version):
                return f"{owner} {version}"
        return owner

    def encode(self, text: str) -> tuple[int, ...] | None:
        """Token ids of a prompt from vLLM; None from others, and where the server applies a chat template."""
        if self.dialect != "vllm" or self.chat:
            return None
        return self.tokenized({"model": self.model, "prompt": text})

    def call_of(self, request: TextRequest) -> tuple[str, dict[str, Any]]:
        names = DIALECTS[self.dialect]
        always = {name: getattr(request.sampling, name) for name in names if name in _ALWAYS}
        values = active_params(request.sampling, names) | always
        if values.get("top_k") == 0:
            values["top_k"] = -1  # off, as vLLM and SGLang both read it
        if "logit_bias" in values:
            values["logit_bias"] = {str(token): bias for token, bias in dict(request.sampling.logit_bias or ()).items()}
        body = {"model": self.model, "max_tokens": request.max_new_tokens, "seed": request.seed, "n": 1, **values}
        if self.dialect == "vllm":
            body["return_token_ids"] = True
        if not self.chat:
            by_ids = request.token_ids is not None and self.dialect != "tgi"
            return "/v1/completions", {**body, "prompt": list(request.token_ids) if by_ids else request.prompt}
        if "logprobs" in values:
            body |= {"logprobs": True, "top_logprobs": values["logprobs"]}
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": request.prompt}]}

    def parts(self, reply: Reply) -> list[Reply]:
        choices = reply.get("choices", list, _PROTOCOL)
        return [Reply(reply.server, {**reply.part, "choices": [choice]}, reply.request) for choice in choices]

    def read(self, reply: Reply, mode: Mode, seconds: float) -> TextCompletion:
        request, choice = reply.request, reply.within("choices", _PROTOCOL)
        if request.token_ids is not None and not self.chat and self.dialect != "tgi" and reply.has("usage"):
            reply.check_prompt(reply.within("usage", _PROTOCOL).get("prompt_tokens", is_count, _PROTOCOL))
        message = choice.within("message", _PROTOCOL) if self.chat else choice
        remedy = "Update vLLM (0.10.2 and later return token ids), or use source.dialect=openai."
        return TextCompletion(
            request=request,
            mode=mode,
            text=message.get("content" if self.chat else "text", str, _PROTOCOL),
            token_ids=tuple(choice.get("token_ids", is_token_ids, remedy)) if self.dialect == "vllm" else None,
            finish_reason=choice.get("finish_reason", str, _PROTOCOL) if choice.has("finish_reason") else None,
            logprobs=None if request.sampling.logprobs is None else self._logprobs(choice),
            counters=timings(reply),
            seconds=seconds,
        )

    def _logprobs(self, choice: Reply) -> tuple[float, ...]:
        remedy = "Leave sampler.logprobs out: it gives none."
        inner = choice.within("logprobs", remedy)
        if inner.has("content"):
            return inner.logprobs("content", remedy)
        return tuple(inner.get("token_logprobs", is_logprobs, remedy))


def _model(server: Server, model_id: str | None) -> tuple[str, str]:
    """The model to ask for, and who serves it, such as "vllm"."""
    try:
        models = server.json("/v1/models")
        owners = {str(model["id"]): model.get("owned_by") for model in models["data"]}
    except StatusError as error:
        if error.status != 404 or model_id is None:
            raise
        return model_id, "a server"  # it has no list
    except (KeyError, TypeError, AttributeError):
        raise server.error(f"/v1/models lists no models: {server.shown(repr(models))}", _PROTOCOL) from None
    if model_id is None and len(owners) == 1:
        (model_id,) = owners
    if model_id not in owners:
        serves = f"{server.url} serves {', '.join([*owners][:8]) or 'no model'}"
        raise ConfigError("source.model", model_id, serves, "Name one of them.")
    owner = owners[model_id]
    return model_id, owner if is_name(owner) else "a server"
