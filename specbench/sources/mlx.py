"""``mlx_lm.server`` (mlx-lm, on Apple silicon and on CPUs): text in, text and token ids out."""

from typing import Any

from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.http import Server
from specbench.sources.parameters import active_params, unsupported_but
from specbench.sources.served import Reply, ServedSource
from specbench.sources.values import is_name, is_token_ids

_NAMES = ("temperature", "top_p", "top_k", "min_p")  # always sent: the server has defaults of its own
_PROTOCOL = "Is it mlx_lm.server of release 0.31 or later? See source=openai for others."
_MODEL = "default_model"  # as the server calls the model that it was started with
_ALL = 1_000_000  # tokens that a penalty counts; by default the last 20


class MlxSource(ServedSource):
    """Texts of such a server, which serves requests with a seed one at a time.

    Presence and frequency penalties are refused: mlx-lm counts the tokens of the prompt for them, which others do not.
    """

    unsupported = unsupported_but(*_NAMES, "repetition_penalty", "logprobs")
    choices: Any = None  # it takes no number of texts

    def describe(self, server: Server) -> str:
        """Asks for a token: nothing else of the server tells its release."""
        reply = server.json("/v1/completions", {"model": _MODEL, "prompt": "a", "max_tokens": 1, "logprobs": True})
        mark = reply.get("system_fingerprint") if isinstance(reply, dict) else None
        if not is_name(mark):
            raise server.error(f"it has no system_fingerprint: {server.shown(repr(reply))}", _PROTOCOL)
        return f"mlx-lm {mark.partition('-')[0]}"

    def encode(self, text: str) -> None:
        """Prompts are sent as text."""

    def call_of(self, request: TextRequest) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body = {"model": _MODEL, "prompt": request.prompt, "max_tokens": request.max_new_tokens, "seed": request.seed}
        body |= {name: getattr(sampling, name) for name in _NAMES} | {"logprobs": True}  # which have the token ids
        if penalty := active_params(sampling, ("repetition_penalty",)):
            body |= penalty | {"repetition_context_size": _ALL}
        return "/v1/completions", body

    def parts(self, reply: Reply) -> list[Reply]:
        choices = reply.get("choices", list, _PROTOCOL)
        return [Reply(reply.server, choice, reply.request) for choice in choices]

    def read(self, reply: Reply, mode: Mode, seconds: float) -> TextCompletion:
        tokens = reply.within("logprobs", _PROTOCOL)
        logprobs = tokens.logprobs("content", _PROTOCOL)
        ids = [token.get("id") for token in tokens.part["content"]]
        return TextCompletion(
            request=reply.request,
            mode=mode,
            text=reply.get("text", str, _PROTOCOL),
            token_ids=tuple(Reply(reply.server, {"id": ids}, reply.request).get("id", is_token_ids, _PROTOCOL)),
            finish_reason=reply.get("finish_reason", str, _PROTOCOL),
            logprobs=None if reply.request.sampling.logprobs is None else logprobs,
            seconds=seconds,
        )
