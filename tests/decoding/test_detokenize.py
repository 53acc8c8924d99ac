"""Texts are their tokens' as the tokenizer decodes them; tokens that it cannot decode end in a message."""

import itertools

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specbench.core.errors import ModelError
from specbench.core.sampling_params import SamplingParams
from specbench.decoding.detokenize import TextStream, text_of
from specbench.decoding.requests import Completion, Request
from specbench.decoding.step_result import FINITE, RequestStep
from specbench.protocols.decode import text_row
from specbench.sampling.batch import RUNNING


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


@pytest.fixture(scope="module")
def of_bytes():
    """A tokenizer that writes a mark for each byte of a broken run, those of complete characters among them."""
    tokenizer = Tokenizer(models.BPE({"<0x41>": 0, "<0xC3>": 1, "<0xA9>": 2, "<0xE2>": 3, "b": 4}, []))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # ty: ignore
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def recorded(tokenizer, tokens, stop, include=False):
    """The continuation whose steps emitted these tokens, one each."""
    sampling = SamplingParams(stop=[stop], include_stop_str_in_output=include)
    completion = Completion(Request("p", (), 0, sampling, len(tokens)), tokenizer=tokenizer)
    for token in tokens:
        completion.record(RequestStep(0, 0, 1, 0, RUNNING, FINITE, [token]), None, 0.0)
    return completion


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("tokens", [[0, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 4]])
def test_a_stopped_text_is_the_text_of_its_tokens(of_bytes, tokens, include):
    completion, whole = recorded(of_bytes, tokens, "b", include), of_bytes.decode(tokens)
    assert completion.stop_reason == "b"
    assert completion.text == (whole if include else whole.removesuffix("b"))


def test_a_stop_string_that_never_comes_changes_no_text(of_bytes, thorough):
    for tokens in itertools.product(range(5), repeat=5 if thorough else 4):
        assert recorded(of_bytes, tokens, "never").text == of_bytes.decode(list(tokens))


@pytest.mark.parametrize(
    ("prompt", "fed", "texts"),
    [
        ([], [[1], [2], [3], [4]], ["", "\u00e9", "", "\ufffdb"]),
        ([1, 2], [[3], [4]], ["", "\ufffdb"]),
        ([1, 2], [[3, 4, 1], [2]], ["\ufffdb", "\u00e9"]),
    ],
)
def test_a_broken_byte_is_one_mark_whatever_was_told_before(of_bytes, prompt, fed, texts):
    stream = TextStream(of_bytes, prompt, True)
    assert [stream.feed(tokens) for tokens in fed] == texts
    assert not stream.rest()


def test_an_interrupt_is_no_failure_of_the_tokenizer():
    class Interrupted:
        def decode(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text_of(Interrupted(), [1], skip_special_tokens=True)
