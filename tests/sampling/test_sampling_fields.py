"""No sampling parameter is silently without effect: it changes what is decoded or told, or it is refused by name."""

import dataclasses

import pytest

import specbench
from specbench.core import sampling_params
from specbench.core.errors import ConfigError
from specbench.models.generate import PLAIN as PLAIN_GENERATE
from specbench.models.generate import obstacle
from specbench.protocols.judge import _checked
from specbench.protocols.settings import check_parameters
from specbench.sampling import RowParams, SamplingParams, where
from specbench.sources.transformers import TransformersSource
from tests.helpers.contexts import run_context
from tests.protocols.test_honest_rows import PROTOCOLS, protocol_of

PLAIN = {"temperature", "top_k", "top_p", "min_p", "processors"}  # test_sampling.py, test_processors.py
# What shapes a distribution by the text before has tests of its own.
BY_HISTORY = {
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words"),
    *("min_tokens", "structured_outputs", "thinking_token_budget"),
}
ENDS = {"stop": [" "], "stop_token_ids": [*range(1, 4096)], "ignore_eos": True, "max_tokens": 3}
REQUESTS = {"n": 2, "seed": 3, "truncate_prompt_tokens": 2}
SHOWN = {
    "include_stop_str_in_output": True, "skip_special_tokens": False, "logprobs": 1, "prompt_logprobs": 1,
    "logprobs_mode": "processed_logprobs",
}  # fmt: skip
TEXTS = {**ENDS, **REQUESTS, **SHOWN}
# A parameter that changes something only if another is given.
BESIDE = {"include_stop_str_in_output": {"stop": [" "]}, "logprobs_mode": {"logprobs": 1, "temperature": 0.5}}
# What each protocol refuses; one that is not named, what protocols/settings.py has for one that says nothing itself.
REFUSED = {
    **dict.fromkeys(("agreement", "cost", "exactness", "latency", "replay"), frozenset(TEXTS)),
    **dict.fromkeys(("predict", "record", "replay_check"), frozenset({*SHOWN, "n"})),
    "judge": frozenset({"n", "seed", "max_tokens"}),
    "decode": frozenset(),
}
TRACE = {"replay": {"trace": "trace.parquet"}}


def test_every_parameter_is_tested_somewhere():
    named = {field.name for field in dataclasses.fields(SamplingParams)}
    assert PLAIN | BY_HISTORY | {*TEXTS} == named


# skip_special_tokens: tests/decoding/test_stopping.py
@pytest.mark.cases(6)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [name for name in TEXTS if name != "skip_special_tokens"])
def test_it_changes_what_is_decoded_or_told(pair, name):
    """For ignore_eos the model's own stop token is the first that it would write."""
    prompt = "import os\nimport "
    others = {"temperature": 0.0} | BESIDE.get(name, {})
    (first,) = specbench.decode(pair, prompt, sampling=SamplingParams(temperature=0.0), max_new_tokens=1)
    ending = dataclasses.replace(pair, stop_ids=frozenset(first.token_ids if name == "ignore_eos" else ()))
    if name == "seed":
        others["temperature"] = 1.0
    default_text, changed_text = (
        repr(specbench.decode(ending, prompt, sampling=SamplingParams(**{**others, **more}), max_new_tokens=6))
        for more in ({}, {name: TEXTS[name]})
    )
    assert default_text != changed_text


def test_every_protocol_says_what_it_refuses():
    assert REFUSED.keys() <= {*PROTOCOLS}
    own = [name for name in PROTOCOLS if hasattr(protocol_of(name, **TRACE.get(name, {})), "ignored_parameters")]
    assert {*own} <= REFUSED.keys()


def test_places_that_name_truncations_refuse_a_new_one(pair, monkeypatch):
    """min_p stands for a truncation that generate, the kernel and the judge's support do not know."""
    monkeypatch.setattr(sampling_params, "RECORDED", ("temperature", "top_k", "top_p"))
    new = SamplingParams(min_p=0.1)
    assert obstacle(pair, PLAIN_GENERATE, 1, SamplingParams(top_p=0.9), 0) == ""
    assert obstacle(pair, PLAIN_GENERATE, 1, new, 0) == "generate is not asked for sampler.min_p"
    context = run_context(source=TransformersSource("gpt2", method="prompt_lookup"), sampling=new)
    with pytest.raises(ConfigError, match=r"sampler\.min_p=0\.1: under it .* leave protocol\.target out"):
        _checked(context, "embedded:target")
    assert _checked(context, None) is context.source
    assert RowParams.of([new]).truncates
    monkeypatch.setattr(where, "by_kernels", lambda logits: True)
    with pytest.raises(ConfigError, match=r"sampler\.min_p=0\.1: no kernel finds its cutoffs on a GPU\. Use"):
        RowParams.of([new])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_refuses_what_it_would_ignore(protocol):
    made = protocol_of(protocol, **TRACE.get(protocol, {}))
    refused = REFUSED.get(protocol, {*SHOWN} if made.needs_models else {*TEXTS})
    check_parameters(SamplingParams(temperature=0.5), made)
    for name, value in TEXTS.items():
        sampling = SamplingParams(**{name: value})
        if name in refused:
            with pytest.raises(ConfigError, match=rf"^sampler\.{name}=.* protocol={protocol} would ignore it\. "):
                check_parameters(sampling, made)
        else:
            check_parameters(sampling, made)


def test_special_tokens_matter_where_stop_strings_are_searched():
    check_parameters(SamplingParams(stop=["<end>"], skip_special_tokens=False), protocol_of("record"))


@pytest.mark.usefixtures("unchecked")
def test_a_recorded_text_ends_at_its_stop_string(pair):
    sampling = SamplingParams(temperature=0.0, stop=["\n"])
    prompt = "def add(a, b):\n    return"
    trace = specbench.record(pair, [prompt], sampling=sampling, max_new_tokens=24)
    (plain,) = specbench.decode(pair, [prompt], sampling=sampling, gamma=0, max_new_tokens=24)
    assert (len(trace), plain.text, plain.finished) == (len(plain.token_ids), " a + b", "stop")
    with pytest.raises(ConfigError, match=r"sampling\.n=2: .*Use samples"):
        specbench.record(pair, [prompt], sampling=SamplingParams(n=2))
