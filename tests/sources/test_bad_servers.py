"""Servers that misbehave, are not there or are others: each is named by its key, with a remedy."""

import dataclasses
import math
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from specbench.core.errors import ConfigError, OutageError, SpecbenchError
from specbench.core.sampling_params import SamplingParams
from specbench.sources import Mode
from specbench.sources.http import MEBIBYTE
from specbench.sources.llama_server import LlamaServerSource
from specbench.sources.openai import OpenAiSource
from tests.helpers.text_servers import VLLM_COUNTERS, Raw, VllmCounters, llama, opened, request, serving

DRAFTED = {"drafted": VLLM_COUNTERS["drafted"]}
LOGPROBS_WANTED = dataclasses.replace(request(ids=(7, 8)), sampling=SamplingParams(logprobs=1))


def completing(reply: Any) -> dict[str, Any]:
    """A llama-server that has one reply to all requests for texts."""
    return llama() | {"/completion": lambda _: reply}


def raw(*content: Any, **options: Any) -> dict[str, Any]:
    """A llama-server whose reply to all requests for texts is no JSON of its own; see Raw."""
    return completing(Raw(*content, **options))


def openai(**reply: Any) -> dict[str, Any]:
    """A server of OpenAI's protocol that has one reply to all requests for texts."""
    return VllmCounters().replies | {"/v1/completions": lambda _: reply}


def restarted() -> dict[str, Any]:
    """A server that begins to count anew with its first text."""
    vllm = VllmCounters()
    vllm.texts = 10

    def completion(body: dict[str, Any]) -> Any:
        vllm.texts = 0
        return vllm.completion(body)

    return vllm.replies | {"/v1/completions": completion}


def complete(
    kind: type, replies: dict[str, Any], text_request: Any = None, mode: Mode = Mode.SPECULATIVE, **options: Any
) -> None:
    """Asks a server with these replies for a text."""
    with serving(replies) as server:
        source = opened(kind(server.url, plain_url=server.url, **{"retries": 0, **options}))
        source.complete([text_request or request(ids=(7, 8))], mode)


LLAMA_REPLIES = {
    "no tokens": (llama(tokens=None), r"prompt 'abc' has no tokens that can be read.*Update llama-server"),
    "true for an id": (llama(tokens=[True]), "no tokens that can be read"),
    "no content": (llama(content=None), "no content that can be read"),
    "truncated": (llama(truncated=True), r"it cut prompt 'abc'\. Start it with a longer context \(-c\)\."),
    "a part": (llama(tokens_evaluated=1), "it read 1 of the 2 tokens of prompt 'abc'"),
    "half of the timings": (llama(timings={"draft_n": 4}), r"no timings\.draft_n_accepted that can be read"),
    "a count below 0": (llama(timings={"draft_n": -1}), r"no timings\.draft_n that can be read"),
    "a list of timings": (llama(timings=[3]), "no timings that can be read"),
    "an empty text": (llama(content="", tokens=[]), "prompt 'abc' has an empty text"),
    "html": (raw(b"<html>hello</html>"), r"/completion replied no JSON: '<html>hello</html>'\. Is it the server"),
    "deep": (raw(b"[" * 100_000), "/completion replied no JSON"),
    "a text": (completing("text"), "has no truncated that can be read"),
    "large": (raw(b" " * (MEBIBYTE + 1)), r"replied more than 1 MiB\. .*source\.most_megabytes"),
    "400": (raw(b'{"error": {"message": "too long"}}', 400), r"status 400: 'too long'\. See the server's own log"),
    "429": (raw(b"full", 429), "status 429: 'full'"),
    "500": (raw(b'{"error": "engine is dead"}', 500), r"status 500: 'engine is dead'\. See the server's own log"),
    "401": (raw(b'{"error": "no key"}', 401), r"status 401: 'no key'\. Set the variable that source\.api_key names"),
    "short": (raw(headers={"Content-Length": "100"}), r"/completion broke off 1 times \(RemoteProtocolError"),
    "no gzip": (
        raw(b"plain", headers={"Content-Encoding": "gzip"}),
        r"/completion cannot be exchanged \(DecodingError",
    ),
    "no texts": (completing([]), "returned 0 texts for prompt 'abc', and the request was for 1"),
}


@pytest.mark.parametrize(("replies", "message"), LLAMA_REPLIES.values(), ids=LLAMA_REPLIES.keys())
def test_a_reply_that_is_not_as_it_should_be_is_named(replies, message):
    with pytest.raises(ConfigError, match=rf"^source\.url=http://127\.0\.0\.1:\d+: .*{message}") as error:
        complete(LlamaServerSource, replies, most_megabytes=1)
    outage = message.startswith(("status 429", "status 500", "/completion broke off"))
    assert isinstance(error.value, OutageError) == outage


OPENAI_REPLIES = {
    "a part of the prompt": (
        openai(choices=[{"text": "a", "token_ids": [1]}], usage={"prompt_tokens": 1}),
        {"dialect": "vllm"},
        r"it read 1 of the 2 tokens of prompt 'abc'\. Start it with a longer",
    ),
    "no token ids": (
        VllmCounters(token_ids=False).replies,
        {"dialect": "vllm"},
        r"no choices\.token_ids that can be read.*Update vLLM \(0\.10\.2",
    ),
    "counts anew": (
        restarted(),
        {"counters": VLLM_COUNTERS},
        r"its counter vllm:spec_decode\w+ went back\. Was it restarted\?",
    ),
}


@pytest.mark.parametrize(("replies", "options", "message"), OPENAI_REPLIES.values(), ids=OPENAI_REPLIES.keys())
def test_a_reply_of_openai_that_is_not_as_it_should_be_is_named(replies, options, message):
    with pytest.raises(ConfigError, match=message):
        complete(OpenAiSource, replies, **options)


@pytest.mark.parametrize("kind", [LlamaServerSource, OpenAiSource])
def test_log_probabilities_that_are_no_numbers_are_named(kind):
    """NaN compares as close to anything, so that a check of log-probabilities would hold."""
    replies = llama(completion_probabilities=[{"logprob": math.nan}])
    replies |= openai(choices=[{"text": "a", "logprobs": {"token_logprobs": [math.nan]}}])
    with pytest.raises(ConfigError, match=r"logprobs? that can be read"):
        complete(kind, replies, LOGPROBS_WANTED)


def test_log_probabilities_that_do_not_fit_their_tokens_are_left_out_or_named():
    """llama-server has none for the tokens of a stop string; others send logits under the name."""
    with serving(llama(completion_probabilities=[{"logprob": -0.5}])) as server:
        (text,) = opened(LlamaServerSource(server.url)).complete([LOGPROBS_WANTED], Mode.SPECULATIVE)
    assert (text.token_ids, text.logprobs) == ((5,) * 4, None)
    with pytest.raises(SpecbenchError, match="prompt 'abc' has the logprob 12.0; give natural logarithms"):
        complete(LlamaServerSource, llama(completion_probabilities=[{"logprob": 12.0}] * 4), LOGPROBS_WANTED)


def test_an_empty_text_that_the_model_ended_is_a_text():
    complete(LlamaServerSource, llama(content="", tokens=[], stop_type="eos"))


def test_a_plain_server_that_drafts_is_refused():
    message = r"^source\.plain_url=.*the server without speculation drafts tokens\. Start it"
    with pytest.raises(ConfigError, match=message):
        complete(LlamaServerSource, llama(), mode=Mode.PLAIN)


def test_nothing_follows_a_redirect_and_no_message_has_the_keys_of_its_location(monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    with serving(llama()) as other:
        location = f"{other.url.replace('//', '//user:pw@')}/s3cret/completion?key=4nother#part"
        moved = raw(status=307, headers={"Location": location})
        message = rf"redirects to '{other.url}/\*\*\*/completion', where nothing is sent\."
        with pytest.raises(ConfigError, match=message):
            complete(LlamaServerSource, moved, api_key="MY_KEY")
        assert other.asked == []


def test_a_request_that_cannot_be_written_is_named(monkeypatch):
    def refuse(*_: Any) -> None:
        raise httpx.LocalProtocolError("Illegal header value")

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
    with pytest.raises(ConfigError, match=r"/props cannot be exchanged \(LocalProtocolError: 'Illegal header value'\)"):
        complete(LlamaServerSource, llama())


@pytest.mark.parametrize("key", ["schlüssel", "key\n", "a\tb"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match=r"^source\.api_key=MY_KEY: its value .*printable ASCII") as error:
        LlamaServerSource("http://x", api_key="MY_KEY")
    assert key not in str(error.value)


@pytest.mark.parametrize("kind", [LlamaServerSource, OpenAiSource])
def test_another_number_of_texts_than_was_requested_is_named_or_returned(kind):
    """One text is needed of a request for one; a judge counts those of a request for several."""
    choice = {"text": "a", "content": "a", "tokens": [1], "truncated": False, "stop_type": "limit"}
    choice |= {"tokens_evaluated": 3, "timings": {}}
    with serving(openai(choices=[choice] * 2) | completing([choice] * 2)) as server:
        source = opened(kind(server.url))
        with pytest.raises(ConfigError, match="returned 2 texts for prompt 'abc', and the request was for 1"):
            source.complete([request()], Mode.SPECULATIVE)
        assert len(source.choices(request(), 3, Mode.SPECULATIVE)) == 2


def test_a_server_that_is_down_is_named_with_what_starts_it():
    with serving({}) as server:
        url = server.url
    source = LlamaServerSource(url)
    with pytest.raises(OutageError, match=rf"^source\.url={url}: cannot be reached .*Start the server \(conf/source"):
        source.open()


@pytest.mark.parametrize(("pause", "timeout"), [(0.6, 0.2), (0.1, 0.3)], ids=["silent", "byte by byte"])
def test_a_reply_that_takes_too_long_is_given_up(pause, timeout):
    """Also one of which something comes in time, again and again."""
    with pytest.raises(OutageError, match=rf"/completion gave no whole reply in {timeout} s\. Raise source\.timeout"):
        complete(LlamaServerSource, raw(b" " * 20, pause=pause), timeout=timeout)


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
        for unnamed in ({}, {"api_key": None}):
            LlamaServerSource(server.url, **unnamed).open()
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
        *("ftp://x", "x", "http://", "http://x/?q=1", "http://[", "http://x:port", "http://x:65536", 8080),
        *("http://u:pw@x", "http://u:pw@x:port", "http://\ud800", "http://a..b", "http://x\n", " http://x"),
    ],
)
def test_what_is_no_address_is_refused_and_passwords_are_not_repeated(url):
    with pytest.raises(ConfigError, match=r"(?s)^source\.url=.*address") as error:
        LlamaServerSource(url)
    assert "pw@" not in str(error.value)


def test_one_of_the_servers_is_enough_and_none_is_not():
    assert LlamaServerSource("http://x").modes == {Mode.SPECULATIVE}
    assert LlamaServerSource(None, "http://x").modes == {Mode.PLAIN}
    message = r"^source\.url=None: no server\. Give source\.url, source\.plain_url or both"
    with pytest.raises(ConfigError, match=message):
        LlamaServerSource(None)


NOT_THIS_ONE = {
    "several models": (
        OpenAiSource,
        VllmCounters(models=("a", "b")).replies,
        {},
        r"^source\.model=None: http.* serves a, b\. Name one",
    ),
    "another model": (
        OpenAiSource,
        VllmCounters().replies,
        {"model": "c"},
        r"^source\.model=c: http.* serves m\. Name",
    ),
    "no model": (OpenAiSource, VllmCounters(models=()).replies, {}, "serves no model"),
    "no list of models": (OpenAiSource, {"/v1/models": lambda _: ["a"]}, {}, "lists no models"),
    "another protocol": (LlamaServerSource, VllmCounters().replies, {}, "/props replied status 404"),
    "counters of another version": (
        OpenAiSource,
        VllmCounters("vllm:spec_v3_num").replies,
        {"counters": VLLM_COUNTERS},
        r"^source\.counters\.drafted=vllm:spec_decode_num_draft.*another version\. It has vllm:spec_v3_num_acc",
    ),
    "no counters": (
        LlamaServerSource,
        llama(),
        {"counters": VLLM_COUNTERS},
        r"no metrics \(status 404\).*--metrics",
    ),
    "a counter that is no number": (
        OpenAiSource,
        VllmCounters().replies | {"/metrics": lambda _: Raw(f"{DRAFTED['drafted']} NaN\n".encode())},
        {"counters": DRAFTED},
        r"^source\.counters\.drafted=.*no such",
    ),
    **{
        f"{build!a} for a name": (
            LlamaServerSource,
            {**llama(), "/props": lambda _, build=build: {"build_info": build}},
            {},
            "/props has no build_info",
        )
        for build in (None, {"a": 1}, "\ud800")
    },
}


@pytest.mark.parametrize(("kind", "replies", "options", "message"), NOT_THIS_ONE.values(), ids=NOT_THIS_ONE.keys())
def test_a_server_that_cannot_be_the_one_is_refused_before_any_request(kind, replies, options, message):
    with serving(replies) as server, pytest.raises(ConfigError, match=message):
        kind(server.url, **options).open()


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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        *((LlamaServerSource, "timeout", 0), (LlamaServerSource, "timeout", 1e300), (LlamaServerSource, "retries", -1)),
        *((LlamaServerSource, "concurrency", 0), (LlamaServerSource, "most_megabytes", 0)),
        *((LlamaServerSource, "extra", "abc"), (LlamaServerSource, "extra", [1])),
        *((LlamaServerSource, "extra", {"a": math.nan}), (LlamaServerSource, "counters", ["drafted"])),
        *((LlamaServerSource, "api_key", 3), (OpenAiSource, "chat", "no"), (OpenAiSource, "dialect", [])),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(kind, key, value):
    with pytest.raises(ConfigError, match=rf"^source\.{key}="):
        kind("http://x", **{key: value})


def test_counters_of_other_names_are_refused():
    with pytest.raises(ConfigError, match=r"^source\.counters\.draft=x: not known\. Use drafted, accepted, steps"):
        OpenAiSource("http://x", counters={"draft": "x"})


def test_half_of_a_surrogate_pair_is_sent_as_it_is():
    """A stop string that is cut from a text may hold one."""
    asking = dataclasses.replace(request(ids=(7, 8)), sampling=SamplingParams(stop="\ud800"))
    with serving(llama()) as server:
        opened(LlamaServerSource(server.url)).complete([asking], Mode.SPECULATIVE)
        assert server.asked[-1][1]["stop"] == ["\ud800"]


def test_what_models_say_of_themselves_is_left_out_if_it_cannot_be_read():
    """An owner without a name, and a size that is no number."""
    models = {"data": [{"id": "m", "owned_by": "\ud800", "meta": {"n_params": math.inf, "size": 1}}]}
    with serving({**llama(), **VllmCounters().replies, "/v1/models": lambda _: models}) as server:
        LlamaServerSource(server.url, server.url).open()
        source = opened(OpenAiSource(server.url))
    assert source.engine == "a server 0.33.0"
