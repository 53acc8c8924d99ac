"""Tokens that the tokenizer cannot decode end in a message, from every place that shows their text."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specbench.core.errors import ModelError
from specbench.core.sampling_params import SamplingParams
from specbench.decoding.detokenize import text_of
from specbench.decoding.requests import Completion, Request
from specbench.protocols.decode import text_row


@pytest.fixture(scope="module")
def panicking():
    """A tokenizer whose decoder panics at token 0, which is shorter than what it strips."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "bbb": 1, "b": 2}, []))
    tokenizer.decoder = decoders.Strip("a", left=0, right=2)  # ty: ignore
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_tokens_without_a_text_are_named(panicking):
    assert text_of(panicking, [1, 2], skip_special_tokens=True) == "bbbb"
    with pytest.raises(ModelError, match=r"its tokenizer has no text for the ids \[1, 0\] \(PanicException.*\)\. Take"):
        text_of(panicking, [1, 0], skip_special_tokens=True)


@pytest.mark.parametrize(("prompt", "token"), [(0, 1), (1, 0)])
def test_prompts_and_continuations_are_decoded_alike(panicking, prompt, token):
    completion = Completion(Request("p", (prompt,), 0, SamplingParams(), 4), [token], tokenizer=panicking)
    with pytest.raises(ModelError, match="has no text for the ids"):
        text_row(panicking, completion)


def test_an_interrupt_is_no_failure_of_the_tokenizer():
    class Interrupted:
        def decode(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text_of(Interrupted(), [1], skip_special_tokens=True)
