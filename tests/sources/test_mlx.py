"""mlx-lm's server, against a stand-in: what is sent, what is read, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.sources import Mode, Source
from specbench.sources.contract import SourceOfSeveral
from specbench.sources.mlx import MlxSource
from tests.helpers.text_servers import Body, request, serving


def replies(mark: Any = "0.32.2-0.32.4-Linux-x86_64", **changes: Any) -> dict[str, Callable[[Body], Any]]:
    """mlx_lm.server's reply, of release 0.32.2."""

    def completion(body: Body) -> Any:
        tokens = [{"id": 5, "logprob": -0.5}] * body["max_tokens"]
        choice = {"index": 0, "finish_reason": "length", "logprobs": {"content": tokens}, "text": " text", **changes}
        return {"object": "text_completion", "system_fingerprint": mark, "choices": [choice]}

    return {"/v1/completions": completion}


def test_texts_come_with_their_ids():
    with serving(replies()) as server, serving(replies()) as plain:
        source = MlxSource(server.url, plain.url, retries=0)
        source.open()
        assert isinstance(source, Source)
        assert not isinstance(source, SourceOfSeveral), "the server passes a number of texts over"
        assert (source.engine, source.modes) == ("mlx-lm 0.32.2", set(Mode))
        (speculative,) = source.complete([request(seed=3, logprobs=1)], Mode.SPECULATIVE)
        (without,) = source.complete([request(seed=3)], Mode.PLAIN)
        source.close()
    assert speculative.token_ids == without.token_ids == (5, 5, 5, 5)
    assert (speculative.text, speculative.finish_reason, speculative.logprobs) == (" text", "length", (-0.5,) * 4)
    assert without.logprobs is None
    assert plain.asked[-1][1] == {
        "model": "default_model", "prompt": request().prompt, "max_tokens": 4, "seed": 3, "logprobs": True,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
    }  # fmt: skip


def test_a_penalty_counts_all_tokens():
    """By default the server counts the last 20."""
    with serving(replies()) as server:
        MlxSource(server.url).complete([request(repetition_penalty=1.2)], Mode.SPECULATIVE)
    assert server.asked[-1][1].items() >= {"repetition_penalty": 1.2, "repetition_context_size": 1_000_000}.items()


@pytest.mark.parametrize("sampling", [{"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"stop": ["x"]}], ids=str)
def test_parameters_of_another_meaning_are_refused(sampling):
    with (
        serving(replies()) as server,
        pytest.raises(ConfigError, match=f"sampler.{next(iter(sampling))}.*cannot set it"),
    ):
        MlxSource(server.url).complete([request(**sampling)], Mode.SPECULATIVE)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mark": None}, r"no system_fingerprint.*source=openai"),
        ({"logprobs": None}, "no logprobs that can be read"),
        ({"logprobs": {"content": [{"logprob": -0.5}] * 4}}, "no id that can be read"),
        ({"logprobs": {"content": [7]}}, "no logprob that can be read"),
        ({"text": 3}, "no text that can be read"),
    ],
    ids=str,
)
def test_replies_of_other_servers_are_named(changes, problem):
    with serving(replies(**changes)) as server:
        source = MlxSource(server.url, retries=0)
        with pytest.raises(ConfigError, match=problem):
            [source.open(), source.complete([request()], Mode.SPECULATIVE)]
