"""The tokens that begin and end thinking: known, named, or refused before weights are read."""

import copy

import pytest

import specbench
from specbench.benchmark.synthetic import resolved
from specbench.core.errors import ConfigError
from specbench.models.tokenizer import thinking_ids
from specbench.sampling import SamplingParams

PARENTHESES = ["(", ")"]


def test_known_tokens_are_found_and_others_can_be_named(pair):
    assert thinking_ids(pair.tokenizer, None, 4096) is None
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.add_tokens(["</think>", "<think>"])
    assert thinking_ids(tokenizer, None, 4098) == (4097, 4096)
    assert thinking_ids(tokenizer, None, 4096) is None, "ids beyond the model's own"
    named = thinking_ids(tokenizer, PARENTHESES, 4098)
    assert tokenizer.convert_ids_to_tokens(named) == PARENTHESES


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["(", "("], "not two different texts"),
        (["("], "not two different texts"),
        ("()", "not two different texts"),
        (["(", "<think>"], "makes [0-9]+ tokens of '<think>'"),
    ],
)
def test_what_is_no_pair_of_tokens_is_refused_before_weights_are_read(named, says, monkeypatch):
    monkeypatch.setattr("specbench.models.checkpoint.Checkpoint.load", None)
    with pytest.raises(ConfigError, match=rf"^thinking_tokens=.*{says}"):
        specbench.load_pair("embedded:target", thinking_tokens=named)


def test_steps_that_are_made_up_have_made_up_ones():
    assert resolved(SamplingParams(thinking_token_budget=1), 67).thinking_ids == (0, 1)


@pytest.mark.usefixtures("unchecked")
def test_a_decoded_text_thinks_no_longer_than_its_budget(pair):
    thinking = specbench.load_pair("embedded:target", "embedded:draft", thinking_tokens=PARENTHESES)
    sampling = SamplingParams(temperature=0.0, thinking_token_budget=2)
    (text,) = specbench.decode(thinking, "def add(a", gamma=4, sampling=sampling, max_new_tokens=8)
    start, end = thinking.thinking_ids
    # The prompt has one token behind the start.
    assert thinking.encode("def add(a")[-2] == start
    assert text.token_ids[1] == end
    with pytest.raises(ConfigError, match=r"sampling\.thinking_token_budget=2: .*thinking_tokens"):
        specbench.decode(pair, "x", gamma=4, sampling=sampling, max_new_tokens=2)
