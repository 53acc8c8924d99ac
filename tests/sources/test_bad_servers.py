"""Servers that misbehave, are not there or are others: each is named by its key, with a remedy."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from specbench.core.errors import ConfigError, OutageError
from specbench.core.sampling_params import SamplingParams
from specbench.sources import Mode
from specbench.sources.http import MEBIBYTE
from specbench.sources.llama_server import LlamaServerSource
from specbench.sources.openai import OpenAiSource
from tests.helpers.text_servers import VLLM_COUNTERS, Raw, VllmCounters, llama, request, serving


@pytest.fixture
def complete() -> Callable[..., None]:
    """Asks a llama-server with some replies for a text."""

    def run(
        replies: dict[str, Any], mode: Mode = Mode.SPECULATIVE, ids: tuple[int, ...] = (7, 8), **given: Any
    ) -> None:
        with serving(replies) as server:
            source = LlamaServerSource(server.url, server.url, **{"retries": 0, **given})
            source.open()
            source.complete([request(ids=ids)], mode)

    return run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, r"prompt 'abc' has no tokens that can be read.*Update llama-server"),
        ({"tokens": ["a"]}, r"no tokens that can be read"),
        ({"tokens": [True]}, r"no tokens that can be read"),
        ({"tokens": [2**32]}, r"no tokens that can be read"),
        ({"content": None}, r"no content that can be read"),
        ({"truncated": True}, r"it cut prompt 'abc'\. Start it with a longer context \(-c\)\."),
        ({"tokens_evaluated": 1}, r"it read a part of prompt 'abc'"),
        ({"timings": {"draft_n": 4}}, r"no timings\.draft_n_accepted that can be read"),
        ({"timings": {"draft_n": 10**400}}, r"no timings\.draft_n that can be read"),
        ({"timings": {"draft_n": -1}}, r"no timings\.draft_n that can be read"),
        ({"timings": [3]}, r"no timings that can be read"),
        ({"content": "", "tokens": []}, r"prompt 'abc' has an empty text"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", str(value))[:30],
)
def test_a_reply_that_is_not_as_it_should_be_is_named(changes, message, complete):
    with pytest.raises(ConfigError, match=rf"^source\.url=http://127\.0\.0\.1:\d+: .*{message}"):
        complete(llama(**changes))


def test_an_empty_text_that_the_model_ended_is_a_text(complete):
    complete(llama(content="", tokens=[], stop_type="eos"))


def test_a_plain_server_that_drafts_is_refused(complete):
    with pytest.raises(
        ConfigError, match=r"^source\.plain_url=.*the server without speculation drafts tokens\. Start it"
    ):
        complete(llama(), Mode.PLAIN)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Raw(b"<html>hello</html>"), r"/completion replied no JSON: '<html>hello</html>'\. Is it the server"),
        (Raw(b"[" * 100_000), r"/completion replied no JSON"),
        (Raw(b'"text"'), r"has no truncated that can be read"),
        (Raw(b" " * (MEBIBYTE + 1)), r"replied more than 1 MiB\. .*source\.most_megabytes"),
        (Raw(b'{"error": {"message": "too long"}}', 400), r"status 400: 'too long'\. See the server's own log"),
        (Raw(b"full", 429), r"status 429: 'full'"),
        (Raw(b'{"error": "engine is dead"}', 500), r"status 500: 'engine is dead'\. See the server's own log"),
        (Raw(b'{"error": "no key"}', 401), r"status 401: 'no key'\. Set the variable that source\.api_key names"),
        (Raw(headers={"Content-Length": "100"}), r"/completion broke off 1 times \(RemoteProtocolError"),
        (Raw(b"plain", headers={"Content-Encoding": "gzip"}), r"/completion cannot be exchanged \(DecodingError"),
        (Raw(b"[]"), r"returned 0 texts for prompt 'abc', and the request was for 1"),
    ],
    ids=["html", "deep", "text", "large", "400", "429", "500", "401", "short", "no gzip", "no texts"],
)
def test_a_server_that_misbehaves_is_named(reply, message, complete):
    with pytest.raises(ConfigError, match=rf"^source\.url=http://127\.0\.0\.1:\d+: .*{message}") as error:
        complete({**llama(), "/completion": lambda _: reply}, most_megabytes=1)
    outage = message.startswith(("status 429", "status 500", "/completion broke off"))
    assert isinstance(error.value, OutageError) == outage


def test_a_reply_without_end_is_left_early(complete):
    """100 MB are announced and sent; no more than a little above the limit is read."""
    replies = {**llama(), "/completion": lambda _: Raw(b"x" * 100 * MEBIBYTE)}
    with pytest.raises(ConfigError, match="replied more than 2 MiB"):
        complete(replies, most_megabytes=2)


def test_nothing_follows_a_redirect_and_no_message_has_the_keys_of_its_location(complete, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    with serving(llama()) as other:
        location = f"{other.url.replace('//', '//user:pw@')}/s3cret/completion?key=4nother#part"
        moved = Raw(status=307, headers={"Location": location})
        with pytest.raises(
            ConfigError, match=rf"redirects to '{other.url}/\*\*\*/completion', where nothing is sent\."
        ):
            complete({**llama(), "/completion": lambda _: moved}, api_key="MY_KEY")
        assert other.asked == []


def test_a_request_that_cannot_be_written_is_named(complete, monkeypatch):
    def refuse(*_: Any) -> None:
        raise httpx.LocalProtocolError("Illegal header value")

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
    with pytest.raises(ConfigError, match=r"/props cannot be exchanged \(LocalProtocolError: 'Illegal header value'\)"):
        complete(llama())


@pytest.mark.parametrize("key", ["schlüssel", "key\n", "a\tb"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match=r"^source\.api_key=MY_KEY: its value .*printable ASCII") as error:
        LlamaServerSource("http://x", api_key="MY_KEY")
    assert key not in str(error.value)


@pytest.mark.parametrize(("count", "replies"), [(3, 2), (1, 2), (2, 3)])
def test_another_number_of_texts_than_was_requested_is_named(count, replies):
    choice = {"text": "a", "content": "a", "tokens": [1], "truncated": False, "stop_type": "limit"}
    several = {"tokens_evaluated": 3, "timings": {}}
    llama_reply = {**llama(), "/completion": lambda _: [choice | several] * replies}
    openai_reply = {**VllmCounters().replies, "/v1/completions": lambda _: {"choices": [choice] * replies}}
    with serving(llama_reply) as server, serving(openai_reply) as other:
        for source in (LlamaServerSource(server.url), OpenAiSource(other.url)):
            source.open()
            message = rf"returned {replies} texts for prompt 'abc', and the request was for {count}"
            with pytest.raises(ConfigError, match=message):
                _ = (
                    source.complete([request()], Mode.SPECULATIVE)
                    if count == 1
                    else source.choices(request(), count, Mode.SPECULATIVE)
                )


def test_a_server_that_is_down_is_named_with_what_starts_it():
    with serving({}) as server:
        url = server.url
    source = LlamaServerSource(url)
    with pytest.raises(OutageError, match=rf"^source\.url={url}: cannot be reached .*Start the server \(conf/source"):
        source.open()


@pytest.mark.parametrize(("pause", "timeout"), [(0.6, 0.2), (0.1, 0.3)], ids=["silent", "byte by byte"])
def test_a_reply_that_takes_too_long_is_given_up(pause, timeout, complete):
    """Also one of which something comes in time, again and again."""
    with pytest.raises(OutageError, match=rf"/completion gave no whole reply in {timeout} s\. Raise source\.timeout"):
        complete({**llama(), "/completion": lambda _: Raw(b" " * 20, pause=pause)}, timeout=timeout)


def test_a_server_that_loads_its_model_is_asked_again(monkeypatch):
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)  # threads of other servers sleep as well
    monkeypatch.setattr("specbench.sources.http.time", clock)
    loading = [Raw(b"", 503, {"Retry-After": "2"}), Raw(b"", 503), Raw(headers={"Content-Length": "9"})]
    replies = llama()
    with serving({**replies, "/props": lambda body: loading.pop(0) if loading else replies["/props"](body)}) as server:
        LlamaServerSource(server.url, retries=3).open()
    assert waits == [2, 1, 2]


def test_the_key_comes_from_its_variable_alone_and_no_message_has_it(monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    refusal = Raw(b'{"error": {"message": "wrong key s3cret"}}', 403)
    with serving(llama()) as server:
        LlamaServerSource(server.url).open()
        assert "Authorization" not in server.headers[-1]
        LlamaServerSource(server.url, api_key="MY_KEY").open()
        assert server.headers[-1]["Authorization"] == "Bearer s3cret"
        server.replies["/props"] = lambda _: refusal
        with pytest.raises(ConfigError, match=r"wrong key \*\*\*'\. Set the variable") as error:
            LlamaServerSource(server.url, api_key="MY_KEY").open()
    assert "s3cret" not in str(error.value)


def test_proxies_of_the_environment_see_nothing(monkeypatch):
    with serving(llama()) as server, serving(llama()) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        LlamaServerSource(server.url).open()
        assert proxy.asked == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "url",
    [
        *(
            "ftp://x",
            "x",
            "http://",
            "http://x/?q=1",
            "http://[",
            "http://x:port",
            "http://u:pw@x",
            "http://u:pw@x:port",
        ),
        *(
            "http://\ud800",
            "http://a..b",
            "http://x\n",
            "http://xn--",
            "http://" + "a" * 64,
            " http://x",
            "http://x:65536",
        ),
        *("http://x/\ud800", 8080),
    ],
)
def test_what_is_no_address_is_refused_and_passwords_are_not_repeated(url):
    with pytest.raises(ConfigError, match=r"(?s)^source\.url=.*address") as error:
        LlamaServerSource(url)
    assert "pw@" not in str(error.value)


def test_one_of_the_servers_is_enough_and_none_is_not():
    assert LlamaServerSource("http://x").modes == {Mode.SPECULATIVE}
    assert LlamaServerSource(None, "http://x").modes == {Mode.PLAIN}
    with pytest.raises(
        ConfigError, match=r"^source\.url=None: no server\. Give source\.url, source\.plain_url or both"
    ):
        LlamaServerSource(None)


@pytest.mark.parametrize(
    ("models", "wanted", "message"),
    [
        (("a", "b"), None, r"^source\.model=None: http.* serves a, b\. Name one"),
        (("a",), "c", r"^source\.model=c: http.* serves a\. Name one"),
        ((), None, r"serves no model"),
    ],
)
def test_a_model_that_is_not_served_is_named_with_those_that_are(models, wanted, message):
    with serving(VllmCounters(models=models).replies) as server, pytest.raises(ConfigError, match=message):
        OpenAiSource(server.url, model=wanted).open()


@pytest.mark.parametrize("size", [100, 101, None])
def test_llama_servers_with_different_models_are_named(size):
    def models(size: int | None) -> dict[str, Any]:
        return {"/v1/models": lambda _: {"data": [{"id": "m", "meta": size and {"n_params": 50, "size": size}}]}}

    with serving(llama() | models(100)) as server, serving(llama() | models(size)) as plain:
        source = LlamaServerSource(server.url, plain.url)
        if size == 101:
            message = rf"^source\.plain_url={plain.url}: its model is another one .*101 bytes.*with the same -m\.$"
            with pytest.raises(ConfigError, match=message):
                source.open()
        else:
            source.open()


def test_a_server_of_another_protocol_is_named():
    with serving({"/v1/models": lambda _: ["a"]}) as server, pytest.raises(ConfigError, match="lists no models"):
        OpenAiSource(server.url).open()
    with serving(VllmCounters().replies) as server, pytest.raises(ConfigError, match=r"/props replied status 404"):
        LlamaServerSource(server.url).open()


def test_a_prompt_that_a_server_of_openai_cut_is_named():
    def cut(body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"text": "a", "token_ids": [1]}], "usage": {"prompt_tokens": 2}}

    with serving(VllmCounters().replies | {"/v1/completions": cut}) as server:
        source = OpenAiSource(server.url, dialect="vllm")
        source.open()
        with pytest.raises(ConfigError, match=r"it read 2 of the 3 tokens of prompt 'abc'\. Start it with a longer"):
            source.complete([request()], Mode.SPECULATIVE)


def test_token_ids_that_are_missing_are_named():
    with serving(VllmCounters(token_ids=False).replies) as server:
        source = OpenAiSource(server.url, dialect="vllm")
        source.open()
        with pytest.raises(ConfigError, match=r"no choices\.token_ids that can be read.*Update vLLM \(0\.10\.2"):
            source.complete([request()], Mode.SPECULATIVE)


def test_counters_of_another_version_are_named_with_those_that_are_there():
    with serving(VllmCounters("vllm:spec_v3_num").replies) as server:
        message = (
            r"^source\.counters\.drafted=vllm:spec_decode_num_draft.*another version\. It has vllm:spec_v3_num_acc"
        )
        with pytest.raises(ConfigError, match=message):
            OpenAiSource(server.url, counters=VLLM_COUNTERS).open()
        with pytest.raises(ConfigError, match=r"^source\.counters\.draft=x: not known\. Use drafted, accepted, steps"):
            OpenAiSource(server.url, counters={"draft": "x"})
    with serving(llama()) as server, pytest.raises(ConfigError, match=r"no metrics \(status 404\).*--metrics"):
        LlamaServerSource(server.url, counters=VLLM_COUNTERS).open()


def test_counters_that_go_back_say_that_the_server_was_restarted():
    vllm = VllmCounters()
    vllm.texts = 10

    def restarted(body: dict[str, Any]) -> Any:
        vllm.texts = 0
        return vllm.completion(body)

    with serving({**vllm.replies, "/v1/completions": restarted}) as server:
        source = OpenAiSource(server.url, counters=VLLM_COUNTERS)
        source.open()
        with pytest.raises(ConfigError, match=r"its counter vllm:spec_decode\w+ went back\. Was it restarted\?"):
            source.complete([request()], Mode.SPECULATIVE)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "given",
    [
        *({"timeout": 0}, {"timeout": 1e300}, {"retries": -1}, {"concurrency": 0}, {"most_megabytes": 0}),
        *({"extra": "abc"}, {"extra": [1]}, {"extra": {"a": math.nan}}, {"counters": ["drafted"]}, {"api_key": 3}),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(given):
    with pytest.raises(ConfigError, match=rf"^source\.{next(iter(given))}="):
        LlamaServerSource("http://x", **given)


@pytest.mark.parametrize("logprob", [math.nan, math.inf, 10**400, True, "a"], ids=str)
def test_log_probabilities_that_are_no_numbers_are_named(logprob):
    """NaN compares as close to anything, so that a check of log-probabilities would hold."""
    asking = dataclasses.replace(request(ids=(7, 8)), sampling=SamplingParams(logprobs=1))
    openai_reply = {"choices": [{"text": "a", "logprobs": {"token_logprobs": [logprob]}}]}
    openai_replies = {**VllmCounters().replies, "/v1/completions": lambda _: openai_reply}
    with serving(llama(completion_probabilities=[{"logprob": logprob}])) as server, serving(openai_replies) as other:
        for source in (LlamaServerSource(server.url), OpenAiSource(other.url)):
            source.open()
            with pytest.raises(ConfigError, match=r"logprobs? that can be read"):
                source.complete([asking], Mode.SPECULATIVE)


def test_half_of_a_surrogate_pair_is_sent_as_it_is():
    """A stop string that is cut from a text may hold one."""
    asking = dataclasses.replace(request(ids=(7, 8)), sampling=SamplingParams(stop="\ud800"))
    with serving(llama()) as server:
        source = LlamaServerSource(server.url)
        source.open()
        source.complete([asking], Mode.SPECULATIVE)
        assert server.asked[-1][1]["stop"] == ["\ud800"]


@pytest.mark.parametrize("build", [None, {"a": 1}, "\ud800"], ids=ascii)
def test_an_engine_without_a_name_is_refused(build):
    replies = {**llama(), "/props": lambda _: {"build_info": build}}
    with serving(replies) as server, pytest.raises(ConfigError, match="/props has no build_info"):
        LlamaServerSource(server.url).open()


def test_owners_that_are_no_names_are_left_out():
    models = {"data": [{"id": "m", "owned_by": "\ud800"}]}
    with serving({**VllmCounters().replies, "/v1/models": lambda _: models}) as server:
        source = OpenAiSource(server.url)
        source.open()
    assert source.engine == "a server 0.33.0"


def test_sizes_of_models_that_are_no_numbers_are_left_out():
    models = {"data": [{"id": "m", "meta": {"n_params": math.inf, "size": 1}}]}
    with serving({**llama(), "/v1/models": lambda _: models}) as server:
        LlamaServerSource(server.url, server.url).open()


def test_a_counter_that_is_no_number_is_named():
    metrics = Raw(f"{VLLM_COUNTERS['drafted']} NaN\n".encode())
    replies, message = VllmCounters().replies | {"/metrics": lambda _: metrics}, r"^source\.counters\.drafted=.*no such"
    with serving(replies) as server, pytest.raises(ConfigError, match=message):
        OpenAiSource(server.url, counters={"drafted": VLLM_COUNTERS["drafted"]}).open()


def test_no_key_is_sent_without_a_name_of_one():
    with serving(llama()) as server:
        LlamaServerSource(server.url, api_key=None).open()
        assert "Authorization" not in server.headers[-1]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "value"), [("chat", "no"), ("dialect", [])])
def test_settings_of_openai_that_are_others_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"^source\.{name}="):
        OpenAiSource("http://x", **{name: value})
