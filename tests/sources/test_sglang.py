"""SGLang's server by its own protocol, against a stand-in: what is sent, what is read, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.sources import Mode, Source
from specbench.sources.contract import SourceOfSeveral
from specbench.sources.sglang import SglangSource
from tests.helpers.text_servers import Body, Raw, TextServer, request, serving

COUNTERS = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 8, "spec_num_correct_drafts": 3}


def replies(
    algorithm: str | None = "STANDALONE",
    seeded: bool = False,
    counters: Body | None = None,
    meta: Body | None = None,
    **changes: Any,
) -> dict[str, Callable[[Body], Any]]:
    """SGLang's replies, of release 0.5.17."""
    if counters is None:
        counters = {} if algorithm is None else COUNTERS

    def generate(body: Body) -> Any:
        params = body["sampling_params"]
        count = params["max_new_tokens"]
        logprobs = {"output_token_logprobs": [[-0.5, 5, None]] * count} if body["return_logprob"] else {}
        info = {
            "finish_reason": {"type": "length", "length": count}, "prompt_tokens": len(body.get("input_ids", "ab")),
            "completion_tokens": count, **logprobs, **counters, **(meta or {}),
        }  # fmt: skip
        text = {"text": " text", "output_ids": [5] * count, "meta_info": info, **changes}
        return [text] * params["n"] if params.get("n", 1) > 1 else text

    info = {
        "version": "0.5.17",
        "speculative_algorithm": algorithm,
        "enable_deterministic_inference": seeded,
        "model_path": "m",
    }
    return {
        "/server_info": lambda _: info,
        "/generate": generate,
        "/tokenize": lambda body: {"tokens": [len(body["prompt"])], "count": 1},
    }


def opened(speculative: TextServer, plain: TextServer | None = None, **options: Any) -> SglangSource:
    source = SglangSource(speculative.url, plain and plain.url, retries=0, **options)
    source.open()
    return source


def test_texts_are_asked_for_by_ids_and_their_counters_are_read():
    with serving(replies()) as server, serving(replies(None)) as plain:
        source = opened(server, plain)
        assert isinstance(source, Source)
        assert isinstance(source, SourceOfSeveral)
        assert (source.engine, source.modes) == ("SGLang 0.5.17", set(Mode))
        (speculative,) = source.complete([request(seed=3, logprobs=1)], Mode.SPECULATIVE)
        (without,) = source.complete([request(seed=3)], Mode.PLAIN)
        source.close()
    assert speculative.token_ids == without.token_ids == (5, 5, 5, 5)
    assert (speculative.text, speculative.finish_reason, speculative.logprobs) == (" text", "length", (-0.5,) * 4)
    assert speculative.counters == {"drafted": 8, "accepted": 3, "steps": 2}
    assert (without.counters, without.logprobs) == ({}, None)
    assert plain.asked[-1] == (
        "/generate",
        {
            "input_ids": [7, 8, 9],
            "return_logprob": False,
            "sampling_params": {
                "max_new_tokens": 4, "sampling_seed": 3, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
                "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            },
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sampling", "params"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.1}, {"top_k": 5, "top_p": 0.5, "min_p": 0.1}),
        ({"logit_bias": {3: 1.5}}, {"logit_bias": {"3": 1.5}}),
        ({"stop": ["x"], "stop_token_ids": [4]}, {"stop": ["x"], "stop_token_ids": [4]}),
        ({"ignore_eos": True, "min_tokens": 2}, {"ignore_eos": True, "min_new_tokens": 2}),
        ({"include_stop_str_in_output": True}, {"no_stop_trim": True}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ],
    ids=str,
)
def test_sampling_parameters_have_the_names_of_sglang(sampling, params):
    with serving(replies()) as server:
        opened(server).complete([request(**sampling)], Mode.SPECULATIVE)
        assert server.asked[-1][1]["sampling_params"].items() >= params.items()


def test_several_texts_and_more_parameters_join_the_sampling_parameters():
    """SGLang reads both there alone; put in place of the others they would silently sample at its defaults."""
    with serving(replies()) as server:
        source = opened(server, extra={"sampling_params": {"regex": "a*"}, "rid": "x"})
        assert len(source.choices(request(temperature=0.5), 3, Mode.SPECULATIVE)) == 3
        body = server.asked[-1][1]
    assert body["rid"] == "x"
    assert body["sampling_params"].items() >= {"n": 3, "regex": "a*", "temperature": 0.5}.items()


def test_a_prompt_without_ids_is_sent_as_text_and_the_server_encodes():
    with serving(replies()) as server:
        source = opened(server)
        assert source.encode("abc") == (3,)
        source.complete([request(ids=None)], Mode.SPECULATIVE)
        assert server.asked[-1][1]["text"] == "abc"
        assert "input_ids" not in server.asked[-1][1]


@pytest.mark.parametrize(("seeded", "plain_seeded"), [(True, True), (True, False), (False, True)])
def test_seeds_count_if_both_servers_read_them(seeded, plain_seeded):
    with serving(replies(seeded=seeded)) as server, serving(replies(None, seeded=plain_seeded)) as plain:
        assert opened(server, plain).takes_seeds == (seeded and plain_seeded)


def test_an_older_server_is_read_at_its_own_address():
    older = replies()
    older["/get_server_info"] = older.pop("/server_info")
    with serving(older) as server:
        assert opened(server).engine == "SGLang 0.5.17"


def test_a_text_that_ends_with_its_first_token_has_no_steps_and_unknown_names_are_no_zeros():
    for tokens, counters in ((1, {"drafted": 0, "accepted": 0, "steps": 0}), (4, {})):
        with serving(replies(counters={}, meta={"completion_tokens": tokens})) as server:
            (text,) = opened(server).complete([request()], Mode.SPECULATIVE)
            assert text.counters == counters


REFUSED = {
    "aborted": ({"meta": {"finish_reason": {"type": "abort", "message": "x"}}}, "it ended the text of prompt 'abc'"),
    "a part of the prompt": ({"meta": {"prompt_tokens": 2}}, "it read 2 of the 3 tokens of prompt 'abc'"),
    "no ids": ({"output_ids": None}, r"no output_ids that can be read.*source\.dialect=sglang"),
    "no meta": ({"meta_info": None}, "no meta_info that can be read"),
    "half of the counters": ({"counters": {"spec_verify_ct": 2}}, r"no meta_info\.spec_num_proposed_drafts"),
    "pairs for triples": ({"meta": {"output_token_logprobs": [0.5]}}, r"no meta_info\.output_token_logprobs"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_reply_that_is_not_as_it_should_be_is_named(changes, message):
    with serving(replies(**changes)) as server, pytest.raises(ConfigError, match=rf"^source\.url=http.*{message}"):
        opened(server).complete([request(logprobs=1)], Mode.SPECULATIVE)


def test_a_server_in_the_place_of_the_other_is_named():
    with serving(replies()) as speculative, serving(replies(None)) as plain:
        with pytest.raises(ConfigError, match=r"^source\.url=.*it does not speculate\. Start it with --spec"):
            opened(plain, speculative)
        with pytest.raises(ConfigError, match=r"^source\.plain_url=.*it speculates \(STANDALONE\)"):
            opened(speculative, speculative)


@pytest.mark.parametrize("info", [{}, [], {"version": 3}, Raw(b"{}", status=404)], ids=str)
def test_another_server_is_no_sglang(info):
    with serving({"/server_info": lambda _: info}) as server, pytest.raises(ConfigError, match="server_info"):
        opened(server)
