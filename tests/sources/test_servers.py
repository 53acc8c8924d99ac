"""Sources of servers against stand-ins: what is asked, and what is read."""

import time
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.sources import Mode, Source
from specbench.sources.llama_server import LlamaServerSource
from specbench.sources.openai import OpenAiSource
from specbench.sources.prometheus import totals
from tests.helpers.text_servers import VLLM_COUNTERS, TextServer, VllmCounters, llama, opened, request, serving


def body_of(server: TextServer) -> dict[str, Any]:
    return server.asked[-1][1]


def test_llama_server_is_asked_by_ids_and_its_counters_are_read():
    with serving(llama()) as server, serving(llama(None)) as plain:
        source = opened(LlamaServerSource(server.url, plain.url))
        assert isinstance(source, Source)
        assert source.engine == "llama.cpp b7000-abc"
        assert source.modes == set(Mode)
        (speculative,) = source.complete([request(seed=3, logprobs=1)], Mode.SPECULATIVE)
        (without,) = source.complete([request(seed=3)], Mode.PLAIN)
        source.close()
        source.close()
    assert speculative.token_ids == without.token_ids == (8, 8, 8, 8)
    assert (speculative.text, speculative.finish_reason) == (" text of [7, 8, 9]", "length")
    assert speculative.counters == {"drafted": 6, "accepted": 3}
    assert without.counters == {"drafted": 0, "accepted": 0}
    assert speculative.logprobs == (-0.5,) * 4
    assert without.logprobs is None
    assert speculative.seconds is not None
    body = body_of(plain)
    assert body == {
        "prompt": [7, 8, 9], "n_predict": 4, "seed": 3, "temperature": 1.0, "samplers": ["temperature"],
        "return_tokens": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sampling", "samplers", "more"),
    [
        ({"temperature": 0.0, "top_k": 5}, ["temperature"], {"temperature": 0.0}),
        (
            {"top_k": 5, "top_p": 0.5, "min_p": 0.1},
            ["temperature", "top_k", "top_p", "min_p"],
            {"top_k": 5, "min_p": 0.1},
        ),
        ({"presence_penalty": 0.5}, ["penalties", "temperature"], {"presence_penalty": 0.5, "repeat_last_n": 8}),
        ({"repetition_penalty": 1.5}, ["penalties", "temperature"], {"repeat_penalty": 1.5, "repeat_last_n": 8}),
        ({"ignore_eos": True, "stop": ["x"]}, ["temperature"], {"ignore_eos": True, "stop": ["x"]}),
        ({"logit_bias": {3: 1.5}}, ["temperature"], {"logit_bias": [[3, 1.5]]}),
    ],
    ids=str,
)
def test_llama_server_is_asked_for_the_samplers_that_are_on_alone(sampling, samplers, more):
    """Its defaults would cut: top_k 40, top_p 0.95, min_p 0.05."""
    with serving(llama()) as server:
        source = opened(LlamaServerSource(server.url))
        source.complete([request(**sampling)], Mode.SPECULATIVE)
        assert body_of(server)["samplers"] == samplers
        assert body_of(server).items() >= more.items()


def test_a_seed_that_would_mean_any_seed_is_never_sent():
    with serving(llama()) as server:
        source = opened(LlamaServerSource(server.url))
        source.complete([request(seed=2**32 - 1), request(seed=2**32), request(seed=2**63 - 1)], Mode.SPECULATIVE)
        assert all(0 <= body["seed"] < 2**32 - 1 for path, body in server.asked if path == "/completion")


def test_completions_come_in_the_order_of_their_requests():
    def slowest_first(body: dict[str, Any]) -> Any:
        time.sleep(0.02 * (5 - body["seed"]))
        return completion(body)

    replies = llama()
    completion = replies["/completion"]
    with serving({**replies, "/completion": slowest_first}) as server:
        source = opened(LlamaServerSource(server.url, concurrency=5))
        texts = source.complete([request(seed=seed) for seed in range(5)], Mode.SPECULATIVE)
    assert [text.token_ids for text in texts] == [(5 + seed,) * 4 for seed in range(5)]
    assert [text.request.seed for text in texts] == list(range(5))


def test_vllm_returns_ids_and_its_counters_are_of_all_texts():
    vllm = VllmCounters()
    vllm.texts = 100  # of others, before
    with serving(vllm.replies) as server:
        source = opened(OpenAiSource(f"{server.url}/v1/", dialect="vllm", counters=VLLM_COUNTERS, concurrency=3))
        assert source.engine == "vllm 0.33.0"
        texts = source.complete([request(seed=seed, top_k=7, logprobs=0) for seed in range(3)], Mode.SPECULATIVE)
        source.complete([request()], Mode.SPECULATIVE)
        body = body_of(server) if server.asked[-1][0] != "/metrics" else server.asked[-2][1]
    assert texts[0].token_ids == (0, 1, 2, 3)
    assert texts[0].logprobs == (-0.5,) * 4
    assert source.totals == {Mode.SPECULATIVE: {"drafted": 16, "accepted": 12, "steps": 8}}
    # Sent although they are off: vLLM would take the model's own otherwise.
    assert body.items() >= {"model": "m", "top_k": -1, "min_p": 0.0, "top_p": 1.0, "repetition_penalty": 1.0}.items()
    assert (body["prompt"], body["return_token_ids"], body["max_tokens"]) == ([7, 8, 9], True, 4)


def test_counters_are_summed_over_labels_whatever_these_hold():
    text = '# HELP a b\na{model="x}",by="\\"}"} 2\nbare\na{model="y"} 3 1700000000\nb 4\n'
    assert totals(text) == {"a": 5.0, "b": 4.0}


def test_completions_of_openai_itself_are_texts():
    with serving(VllmCounters().replies) as server:
        source = opened(OpenAiSource(server.url, model="m", extra={"user": "u"}))
        (text,) = source.complete([request(ids=None, temperature=0.0, logit_bias={3: -1.0})], Mode.SPECULATIVE)
        body = body_of(server)
    assert (text.text, text.token_ids, text.finish_reason) == (" of abc", None, "length")
    assert body.items() >= {"prompt": "abc", "temperature": 0.0, "user": "u", "logit_bias": {"3": -1.0}}.items()
    assert not {"top_k", "min_p", "ignore_eos", "return_token_ids"} & set(body)


@pytest.mark.parametrize(
    ("kind", "options", "replies", "name", "token_ids"),
    [
        (OpenAiSource, {"dialect": "vllm", "extra": {"n": 1}}, VllmCounters().replies, "n", [(0, 1, 2, 3)] * 3),
        (LlamaServerSource, {}, llama(), "n_cmpl", [(8,) * 4, (9,) * 4, (10,) * 4]),
    ],
)
def test_several_texts_of_a_request_are_asked_of_the_server_together(kind, options, replies, name, token_ids):
    with serving(replies) as server:
        texts = opened(kind(server.url, **options)).choices(request(seed=3), 3, Mode.SPECULATIVE)
        assert body_of(server)[name] == 3
    assert [text.token_ids for text in texts] == token_ids


def test_chat_sends_the_prompt_as_a_message():
    with serving(VllmCounters().replies) as server:
        source = opened(OpenAiSource(server.url, chat=True))
        (text,) = source.complete([request(logprobs=1)], Mode.SPECULATIVE)
    assert (text.text, text.finish_reason, text.logprobs) == ("ABC", "stop", (-0.25,))
    assert body_of(server).items() >= {"logprobs": True, "top_logprobs": 1}.items()
    assert "prompt" not in body_of(server)


@pytest.mark.parametrize(
    ("dialect", "sampling", "name"),
    [("openai", {"top_k": 3}, "top_k"), ("tgi", {"logprobs": 1}, "logprobs"), ("vllm", {"n": 2}, "n")],
)
def test_a_parameter_that_the_server_does_not_take_is_refused(dialect, sampling, name):
    with serving(VllmCounters().replies) as server:
        source = opened(OpenAiSource(server.url, dialect=dialect))
        count = len(server.asked)
        with pytest.raises(ConfigError, match=rf"^sampler\.{name}=.*prompt 'abc' asks for it\. Leave it out"):
            source.complete([request(**sampling)], Mode.SPECULATIVE)
        assert len(server.asked) == count


@pytest.mark.parametrize("reply", [{"tokens": [7, 8]}, {"tokens": ["The"]}, {"tokens": [True]}, {}, []], ids=str)
def test_token_ids_of_prompts_are_the_servers_own(reply):
    """llama-server and vLLM tell them; other servers, and those that apply a template, are not asked."""
    bodies: list[Any] = []
    tokenize = {"/tokenize": lambda body: bodies.append(body) or reply}
    with serving(llama() | tokenize) as server, serving(VllmCounters().replies | tokenize) as vllm:
        sources = [opened(LlamaServerSource(server.url)), opened(OpenAiSource(vllm.url, dialect="vllm"))]
        for source in sources:
            if reply == {"tokens": [7, 8]}:
                assert source.encode("The") == (7, 8)
            else:
                with pytest.raises(ConfigError, match="/tokenize returned no token ids"):
                    source.encode("The")
        assert bodies == [
            {"content": "The", "add_special": True, "parse_special": True},
            {"model": "m", "prompt": "The"},
        ]
        others = [OpenAiSource(vllm.url), OpenAiSource(vllm.url, dialect="vllm", chat=True)]
        assert [source.encode("The") for source in others] == [None, None]
        assert len(bodies) == 2
