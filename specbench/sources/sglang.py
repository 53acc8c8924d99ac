"""SGLang's server by its own protocol, POST /generate: token ids in and out, and counters for each text."""

from typing import Any

from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.http import Server, StatusError
from specbench.sources.parameters import active_params, unsupported_but
from specbench.sources.served import Reply, ServedSource
from specbench.sources.values import is_count, is_logprob, is_name, is_token_ids

_NAMES = {  # of sampling parameters, in its protocol
    **{name: name for name in ("stop", "stop_token_ids", "ignore_eos", "skip_special_tokens")},
    **{"min_tokens": "min_new_tokens", "include_stop_str_in_output": "no_stop_trim"},
}
# Always sent: what is left out it takes from the model's generation_config.json.
_ALWAYS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_PROTOCOL = "Is it SGLang's server? Update it, or use source=openai source.dialect=sglang."
_COUNTERS = {"drafted": "spec_num_proposed_drafts", "accepted": "spec_num_correct_drafts", "steps": "spec_verify_ct"}


class SglangSource(ServedSource):
    """Texts of SGLang's server.

    It reads seeds only if all of its servers run with ``--enable-deterministic-inference``; ``takes_seeds`` is whether
    they do. SGLang counts a whole draft in each step, so ``drafted`` is steps times the draft's length.
    """

    unsupported = unsupported_but("temperature", "top_k", "logit_bias", "logprobs", *_ALWAYS, *_NAMES)

    def describe(self, server: Server) -> str:
        info = _server_info(server)
        if not isinstance(info, dict) or not is_name(info.get("version")):
            raise server.error(f"/server_info has no version: {server.shown(repr(info))}", _PROTOCOL)
        speculates = info.get("speculative_algorithm") is not None
        if speculates and server is self.servers.get(Mode.PLAIN):
            problem = f"it speculates ({info['speculative_algorithm']}), and source.plain_url must not"
            raise server.error(problem, "Start it without --speculative-algorithm, or swap the addresses.")
        if not speculates and server is self.servers.get(Mode.SPECULATIVE):
            raise server.error("it does not speculate", "Start it with --speculative-algorithm, or swap the addresses.")
        self.takes_seeds = self.takes_seeds and info.get("enable_deterministic_inference") is True
        return f"SGLang {info['version']}"

    def encode(self, text: str) -> tuple[int, ...] | None:
        """Token ids of a prompt, as /generate makes them of text."""
        return self.tokenized({"prompt": text})

    def call_of(self, request: TextRequest) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        params = {
            "max_new_tokens": request.max_new_tokens,
            "sampling_seed": request.seed,
            "top_k": sampling.top_k or -1,  # its word for off
            **{name: getattr(sampling, name) for name in _ALWAYS},
            **{_NAMES[name]: value for name, value in active_params(sampling, _NAMES).items()},
        }
        if sampling.logit_bias is not None:
            params["logit_bias"] = {str(token): bias for token, bias in dict(sampling.logit_bias).items()}
        by_ids = request.token_ids is not None
        prompt = {"input_ids": list(request.token_ids)} if by_ids else {"text": request.prompt}
        return "/generate", {**prompt, "sampling_params": params, "return_logprob": sampling.logprobs is not None}

    def asking_for(self, body: dict[str, Any], count: int) -> dict[str, Any]:
        return {**body, "sampling_params": {**body["sampling_params"], "n": count}}

    def read(self, reply: Reply, mode: Mode, seconds: float) -> TextCompletion:
        request, meta = reply.request, reply.within("meta_info", _PROTOCOL)
        finish = meta.within("finish_reason", _PROTOCOL).get("type", str, _PROTOCOL)
        if finish == "abort":
            raise reply.server.error(f"it ended the text of prompt {request.prompt_id!r}", "See the server's own log.")
        reply.check_prompt(meta.get("prompt_tokens", is_count, _PROTOCOL))
        return TextCompletion(
            request=request,
            mode=mode,
            text=reply.get("text", str, _PROTOCOL),
            token_ids=tuple(reply.get("output_ids", is_token_ids, _PROTOCOL)),
            finish_reason=finish,
            logprobs=None if request.sampling.logprobs is None else _logprobs(meta),
            counters=_counters(meta) if mode is Mode.SPECULATIVE else {},
            seconds=seconds,
        )


def _server_info(server: Server) -> Any:
    """What the server says of itself, under its present or its former address."""
    try:
        return server.json("/server_info")
    except StatusError as error:
        if error.status != 404:
            raise
        return server.json("/get_server_info")


def _logprobs(meta: Reply) -> tuple[float, ...]:
    """The numbers of SGLang's triples: log-probability, token id and text."""
    triples = meta.get("output_token_logprobs", _is_triples, "Leave sampler.logprobs out: it gives none.")
    return tuple(logprob for logprob, *_ in triples)


def _is_triples(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, list) and part and is_logprob(part[0]) for part in value)


def _counters(meta: Reply) -> dict[str, float]:
    """The counters of a text; it leaves out those of texts that end with the token that follows their prompt."""
    if not meta.has("spec_verify_ct"):
        single = meta.get("completion_tokens", is_count, _PROTOCOL) <= 1
        return dict.fromkeys(_COUNTERS, 0.0) if single else {}
    return {what: float(meta.get(name, is_count, _PROTOCOL)) for what, name in _COUNTERS.items()}
