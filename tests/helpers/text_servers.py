"""Stand-ins for servers of texts: what llama-server, vLLM and others reply, and servers that misbehave."""

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from specbench.core.sampling_params import SamplingParams
from specbench.sources import Mode, TextRequest
from tests.helpers.made_up_engines import Engine
from tests.helpers.stand_in_server import Asked, Raw, StandIn, running

Body = dict[str, Any]


class TextServer(StandIn):
    """Replies to each path by a function of the request's body, and keeps what it was asked.

    Attributes:
        replies: by path.
        asked: path and body of each request.
        headers: of each request.
    """

    def __init__(self, replies: dict[str, Callable[[Body], Any]]) -> None:
        super().__init__(self._reply)
        self.replies = replies
        self.asked: list[tuple[str, Body]] = []
        self.headers: list[dict[str, str]] = []

    def _reply(self, http_request: Asked) -> Any:
        body = json.loads(http_request.body or b"{}")
        self.asked.append((http_request.path, body))
        self.headers.append(http_request.headers)
        make = self.replies.get(http_request.path)
        return Raw(b"{}", status=404) if make is None else make(body)


def serving(replies: dict[str, Callable[[Body], Any]]) -> AbstractContextManager[TextServer]:
    """A server in a thread of its own."""
    return running(TextServer(replies))


def llama(drafted: int | None = 6, **changes: Any) -> dict[str, Callable[[Body], Any]]:
    """llama-server's replies, of build b7000.

    Args:
        drafted: tokens in each text; None for a server without speculation.
        changes: of the reply to /completion; None takes a field out.
    """

    def completion(body: Body) -> Any:
        count = body["n_predict"]
        timings = {"predicted_n": count}
        if drafted is not None:
            timings |= {"draft_n": drafted, "draft_n_accepted": drafted // 2}
        prompt = body["prompt"]
        reply = {
            "content": f" text of {prompt}", "tokens": [5 + body["seed"]] * count, "truncated": False,
            "stop_type": "limit", "tokens_evaluated": len(prompt), "timings": timings,
            "completion_probabilities": [{"id": 5, "logprob": -0.5}] * count, **changes,
        }  # fmt: skip
        return {name: value for name, value in reply.items() if value is not None}

    return {"/props": lambda _: {"build_info": "b7000-abc"}, "/completion": several_of(completion)}


def several_of(completion: Callable[[Body], Any]) -> Callable[[Body], Any]:
    """llama-server's reply to a request for n_cmpl texts: a list, if they are several."""

    def several(body: Body) -> Any:
        count = body.get("n_cmpl", 1)
        return [completion({**body, "seed": body["seed"] + i}) for i in range(count)] if count > 1 else completion(body)

    return several


class VllmCounters:
    """vLLM's replies with counters that grow by 4 drafted and 3 accepted tokens and 2 steps a text."""

    def __init__(self, prefix: str = "vllm:spec_decode_num", token_ids: bool = True, models: tuple[str, ...] = ("m",)):
        self.prefix, self.token_ids, self.models, self.texts = prefix, token_ids, models, 0
        self.lock = threading.Lock()

    @property
    def replies(self) -> dict[str, Callable[[Body], Any]]:
        return {
            "/v1/models": lambda _: {"data": [{"id": name, "owned_by": "vllm"} for name in self.models]},
            "/version": lambda _: {"version": "0.33.0"},
            "/metrics": lambda _: Raw(self.metrics().encode()),
            "/v1/completions": self.completion,
            "/v1/chat/completions": self.chat,
        }

    def metrics(self) -> str:
        counts = {"drafts": 2, "draft_tokens": 4, "accepted_tokens": 3}
        lines = [
            f'{self.prefix}_{name}_total{{engine="{engine}",model_name="m"}} {count * self.texts / 2}'
            for name, count in counts.items()
            for engine in (0, 1)
        ]
        return "\n".join(["# HELP x y", "# TYPE x counter", *lines, f"{self.prefix}_drafts_created 1.7e9", "odd line"])

    def completion(self, body: Body) -> Any:
        with self.lock:
            self.texts += 1
        logprobs = {"token_logprobs": [-0.5] * body["max_tokens"]}
        choice = {"text": f" of {body['prompt']}", "finish_reason": "length", "logprobs": logprobs}
        if self.token_ids and body.get("return_token_ids"):
            choice["token_ids"] = list(range(body["max_tokens"]))
        return {"choices": [choice] * body["n"], "usage": {"prompt_tokens": len(body["prompt"])}}

    def chat(self, body: Body) -> Any:
        logprobs = {"content": [{"token": "x", "logprob": -0.25}]}
        message = {"role": "assistant", "content": body["messages"][0]["content"].upper()}
        return {"choices": [{"message": message, "finish_reason": "stop", "logprobs": logprobs}]}


def opened(source: Any) -> Any:
    """The source, opened."""
    source.open()
    return source


def request(
    prompt: str = "abc", ids: tuple[int, ...] | None = (7, 8, 9), seed: int = 0, **sampling: Any
) -> TextRequest:
    """A request for four tokens."""
    return TextRequest(
        prompt_id=prompt, prompt=prompt, token_ids=ids, sampling=SamplingParams(**sampling), seed=seed, max_new_tokens=4
    )


VLLM_COUNTERS = {
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "steps": "vllm:spec_decode_num_drafts_total",
}


def llama_of(engine: Engine, mode: Mode) -> dict[str, Callable[[Body], Any]]:
    """llama-server's replies with the texts of a made-up engine, of one of its modes."""

    def completion(body: Body) -> Any:
        sampling = SamplingParams(temperature=body["temperature"], stop=tuple(body.get("stop", ())))
        text = engine.one(
            TextRequest(
                prompt_id="", prompt=body["prompt"], sampling=sampling, seed=body["seed"],
                max_new_tokens=body["n_predict"],
            ),
            mode,
        )  # fmt: skip
        ids = list(text.token_ids or ())
        stop = {"stop": "word"}.get(text.finish_reason or "", "limit")
        return {
            "content": text.text, "tokens": ids, "truncated": False, "stop_type": stop, "tokens_evaluated": 1,
            "completion_probabilities": [{"id": token, "logprob": -1.0} for token in ids],
        }  # fmt: skip

    return {**llama(), "/completion": several_of(completion)}
