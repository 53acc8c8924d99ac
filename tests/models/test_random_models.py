"""Models of random weights: the shapes are the published ones, nothing of the vocabulary is cut, seeds are fixed."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from specbench.core.errors import ConfigError
from specbench.decoding import Request
from specbench.models import Pair, load_pair
from specbench.models.checkpoint import locate
from specbench.models.shapes import SHAPES
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams
from tests.helpers.cases import decoder

PUBLISHED = {  # weights, as the models' own pages and safetensors count them
    "llama-8b": 8_030_261_248,
    "llama-1b": 1_235_814_400,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "qwen3-32b": 32_762_123_264,
    "qwen3-0.6b": 596_049_920,
}


@pytest.fixture(scope="module")
def random_pair() -> Pair:
    return load_pair("random:tiny", "random:tiny-draft", device="cpu")


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_the_published_number_of_weights(name):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SHAPES[name]())
    assert model.num_parameters() == PUBLISHED[name]


def test_every_shape_is_held_to_a_published_one():
    assert set(SHAPES) - set(PUBLISHED) == {"tiny", "tiny-draft"}


def test_texts_are_of_the_whole_vocabulary_and_of_full_length(random_pair: Pair):
    """Ids beyond the tokenizer's own are emitted, and can be decoded to text."""
    tokenizer_size = len(random_pair.tokenizer)
    prompt = tuple(random_pair.encode("def f"))
    made = decoder(random_pair).run([Request(str(i), prompt, i, SamplingParams(), 60) for i in range(4)])
    tokens = [token for text in made for token in text.token_ids]
    assert len(tokens) == 4 * 60
    assert tokenizer_size <= max(tokens) < random_pair.vocab_size == random_pair.target.config.vocab_size
    assert isinstance(random_pair.tokenizer.decode(tokens, skip_special_tokens=True), str)


def test_a_greedy_text_ends_at_no_token(random_pair: Pair):
    assert random_pair.stop_ids == frozenset()
    assert random_pair.target.generation_config.eos_token_id is None  # what transformers' generate would go by


def test_weights_repeat_and_a_target_is_not_its_draft(random_pair: Pair):
    torch.manual_seed(7)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    again = load_pair("random:tiny", "random:tiny", device="cpu")
    assert torch.equal(torch.rand(1), drawn)  # what others draw is left alone
    first, second, draft = (model.state_dict() for model in (random_pair.target, again.target, again.draft))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], draft["model.embed_tokens.weight"])


def test_weights_are_of_the_run_s_dtype():
    pair = load_pair("random:tiny", "random:tiny-draft", device="cpu", dtype="bfloat16")
    assert {weight.dtype for weight in (*pair.target.parameters(), *pair.draft.parameters())} == {torch.bfloat16}


def test_an_unknown_shape_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match=r"pair.target=random:llama-9b: no such shape.*random:llama-8b, random:ll"):
        locate("pair.target", "random:llama-9b")
    assert locate("pair.target", "random:llama-8b") == "random:llama-8b"


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        ("random:tiny", "embedded:draft", r"its vocabulary has 4096 ids.*random:tiny's 5000"),
        ("embedded:target", "random:tiny-draft", r"pair.draft=random:tiny-draft: its vocabulary has 5000 ids"),
    ],
)
def test_vocabularies_of_other_sizes_are_refused(target, draft, message):
    with pytest.raises(ConfigError, match=message):
        load_pair(target, draft, device="cpu")


def test_prompts_of_128_tokens_have_128_tokens(random_pair: Pair):
    prompts = load_prompts("embedded:tokens_128.jsonl")
    assert {len(random_pair.encode(prompt.text)) for prompt in prompts} == {128}
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 64
