"""llama.cpp's server by its own protocol, POST /completion: token ids in and out, and counters for each text."""

from collections.abc import Container
from typing import Any

from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.http import Server, StatusError
from specbench.sources.parameters import active_params, unsupported_but
from specbench.sources.served import Reply, ServedSource
from specbench.sources.values import is_count, is_name, is_token_ids

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_CUTS = ("top_k", "top_p", "min_p")
_NAMES = {  # of sampling parameters, in its protocol
    **{name: name for name in (*_CUTS, *_PENALTIES, "stop", "ignore_eos")},
    **{"repetition_penalty": "repeat_penalty", "logprobs": "n_probs"},
}
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}
_OLD = "Update llama-server, or use source=openai."
_RANDOM_SEED = 2**32 - 1  # with which it takes a seed of its own


class LlamaServerSource(ServedSource):
    """Texts of llama-server. Its penalties are of prompt and text."""

    unsupported = unsupported_but("temperature", "logit_bias", *_NAMES)
    several = "n_cmpl"  # at most its -np

    def describe(self, server: Server) -> str:
        props = server.json("/props")
        if not isinstance(props, dict) or not is_name(props.get("build_info")):
            raise server.error(f"/props has no build_info: {server.shown(repr(props))}", _OLD)
        return f"llama.cpp {props['build_info']}"

    def open(self) -> None:
        """Asks each server what it is. Raises ConfigError if they have different models."""
        super().open()
        sizes = {size for server in self.servers.values() if (size := _size(server))}
        if len(sizes) > 1:
            different = " and ".join(f"{parameters:,} parameters in {size:,} bytes" for parameters, size in sizes)
            problem = f"its model is another one than that of source.url: they have {different}"
            raise self.servers[Mode.PLAIN].error(problem, "Start both servers with the same -m.")

    def encode(self, text: str) -> tuple[int, ...] | None:
        """Token ids of a prompt, as /completion makes them of text."""
        return self.tokenized({"content": text, "add_special": True, "parse_special": True})

    def call_of(self, request: TextRequest) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        active = active_params(sampling, _NAMES)
        body = {
            "prompt": request.prompt if request.token_ids is None else list(request.token_ids),
            "n_predict": request.max_new_tokens,
            "seed": request.seed % _RANDOM_SEED,
            "temperature": sampling.temperature,
            "samplers": _samplers(active, sampling.greedy),
            "return_tokens": True,
            **{_NAMES[name]: value for name, value in active.items()},
        }
        if "penalties" in body["samplers"]:  # of all of the prompt, which has at most a token a byte, and the text
            size = len(request.prompt.encode()) if request.token_ids is None else len(request.token_ids)
            body["repeat_last_n"] = size + 1 + request.max_new_tokens
        if sampling.logit_bias is not None:
            body["logit_bias"] = [list(pair) for pair in dict(sampling.logit_bias).items()]
        return "/completion", body

    def read(self, reply: Reply, mode: Mode, seconds: float) -> TextCompletion:
        request = reply.request
        if reply.get("truncated", bool, _OLD):
            raise reply.server.error(f"it cut prompt {request.prompt_id!r}", "Start it with a longer context (-c).")
        if request.token_ids is not None:
            reply.check_prompt(reply.get("tokens_evaluated", is_count, _OLD))
        stop, ids, logprobs = reply.get("stop_type", str, _OLD), reply.get("tokens", is_token_ids, _OLD), None
        if request.sampling.logprobs is not None:
            logprobs = reply.logprobs("completion_probabilities", _OLD)
            # It has none for the tokens of a stop string, nor for those that end inside a character.
            logprobs = logprobs if len(logprobs) == len(ids) else None
        return TextCompletion(
            request=request,
            mode=mode,
            text=reply.get("content", str, _OLD),
            token_ids=tuple(ids),
            finish_reason=_FINISH.get(stop, stop),
            logprobs=logprobs,
            counters=timings(reply),
            seconds=seconds,
        )


def _size(server: Server) -> tuple[int, int] | None:
    """Parameters and bytes of a server's model; None if it does not tell."""
    try:
        meta = server.json("/v1/models")["data"][0]["meta"]
        return int(meta["n_params"]), int(meta["size"])
    except (StatusError, LookupError, TypeError, ValueError, OverflowError):
        return None


def timings(reply: Reply) -> dict[str, float]:
    """The counters of llama-server's timings; it leaves out those of texts for which nothing was drafted."""
    if not reply.has("timings"):
        return {}
    inner = reply.within("timings", _OLD)
    if not inner.has("draft_n"):
        return {"drafted": 0.0, "accepted": 0.0}
    names = {"drafted": "draft_n", "accepted": "draft_n_accepted"}
    return {what: float(inner.get(name, is_count, _OLD)) for what, name in names.items()}


def _samplers(active: Container[str], greedy: bool) -> list[str]:
    """Those that are on alone, in specbench's order: penalties, temperature, cuts."""
    penalties = ["penalties"] if any(name in active for name in _PENALTIES) else []
    return [*penalties, "temperature", *(name for name in _CUTS if name in active and not greedy)]
