"""How a vocabulary spells text, and what two vocabularies share: their tokens, and one growing text."""

import random

import pytest

from experiments.embedded_pair.other_vocabulary import in_bytes, in_pieces
from specbench.extras.vocabularies.retokenized import Retokenized
from specbench.extras.vocabularies.spelling import Spelling
from specbench.extras.vocabularies.translation import Translation
from tests.helpers.vocabularies import TEXTS, letters

TOKENIZERS = {"bytes": lambda: in_bytes(TEXTS, 300), "pieces": lambda: in_pieces(iter(TEXTS), 330)}


@pytest.fixture(scope="module", params=TOKENIZERS)
def spelling(request):
    tokenizer = TOKENIZERS[request.param]()
    return Spelling(tokenizer, len(tokenizer))


# Spelling


def test_text_is_spelled_as_it_is(spelling):
    for text in TEXTS:
        ids = spelling._tokenizer(text, add_special_tokens=False).input_ids
        assert spelling.text(ids) == text.encode()
        assert spelling.encode(text.encode()) == ids


def test_any_bytes_are_written_by_some_tokens(spelling):
    rng = random.Random(0)
    for _ in range(50):
        text = bytes(rng.randrange(255) for _ in range(rng.randrange(1, 12)))
        assert spelling.text(spelling.encode(text, b"return ")) == text


def test_special_tokens_are_spelled_by_their_role(spelling):
    end = spelling._tokenizer.eos_token_id
    assert spelling.is_special(end)
    assert spelling.encode(spelling.tokens[end] + b"a")[0] == end
    assert end not in spelling.encode(spelling._tokenizer.eos_token.encode())  # a text that says so ends nothing


def test_what_follows_is_written_as_the_tokenizer_would():
    tokenizer = letters(["a", "b", "ab", "aba"])
    spelling = Spelling(tokenizer, 5)
    assert spelling.encode(b"ba", before=b"a") == [1, 0]  # not one token of both: what stands, stands
    assert spelling.encode(b"aba") == [3]


# What is shared


def test_tokens_are_shared_by_their_bytes():
    made = [make() for make in TOKENIZERS.values()]
    target, draft = (Spelling(tokenizer, len(tokenizer)) for tokenizer in made)
    translation = Translation(target, draft)
    shared = translation.draft_ids.tolist()
    for spelled in (b" ", b"\n", b"return", " é".encode()[:2]):
        if spelled in target.ids and spelled in draft.ids:
            assert shared[target.ids[spelled]] == draft.ids[spelled]
    assert shared[target.ids[b" "]] >= 0
    assert shared[made[0].eos_token_id] == made[1].eos_token_id
    shared_ids = [i for i in shared if i >= 0]
    assert len(set(shared_ids)) == len(shared_ids)
    pieces, counts = translation.pieces
    for token, spelled in enumerate(target.tokens):
        read = pieces[token, : counts[token]].tolist()
        assert draft.text(read) == spelled
        assert (read == [shared[token]]) == (shared[token] >= 0)


def test_of_tokens_that_are_spelled_alike_one_is_shared():
    """A token of the draft that stood for both would be verified with the probability of one of them."""
    target, draft = (Spelling(letters(["a", "b", "c"]), 4) for _ in range(2))
    target.tokens[2] = target.tokens[0]
    assert Translation(target, draft).draft_ids.tolist() == [0, 1, -1, 3]


def test_an_unfinished_character_is_left_out():
    """Its bytes may be the beginning of a token that the target would write otherwise."""
    spelling = Spelling(TOKENIZERS["bytes"](), 300)
    text = Retokenized(Translation(spelling, spelling), spelling.encode(b"x"))
    first, second = (spelling.ids[bytes([byte])] for byte in "é".encode())
    letter = spelling.encode(b"b")
    assert text.read([first]) == []
    assert text.read([*letter, first]) == letter
    assert text.read([first, second]) == spelling.encode("é".encode())


def test_a_beginning_of_text_is_read_as_the_drafts_own():
    target, draft = letters(["a", "b"]), letters(["b", "c"])
    target.add_special_tokens({"bos_token": "<s>"})
    draft.add_special_tokens({"bos_token": "<begin>"})
    translation = Translation(Spelling(target, len(target)), Spelling(draft, len(draft)))
    assert translation.draft_ids.tolist() == [-1, 0, 2, 3]  # the letter a is the draft's nowhere
    assert translation.pieces[0][0, 0] == draft.eos_token_id  # and so is read as nothing it could be taken for


@pytest.mark.parametrize("target", TOKENIZERS)
def test_a_growing_text_is_the_same_text_in_the_drafts_tokens(target):
    """However it grows, and whatever the draft wrote meanwhile."""
    made = {name: make() for name, make in TOKENIZERS.items()}
    target_tokenizer = made.pop(target)
    draft_tokenizer = next(iter(made.values()))
    translation = Translation(
        Spelling(target_tokenizer, len(target_tokenizer)), Spelling(draft_tokenizer, len(draft_tokenizer))
    )
    rng, ids = random.Random(1), target_tokenizer("".join(TEXTS), add_special_tokens=False).input_ids
    text, stands = Retokenized(translation, ids[:3]), 3
    while stands < len(ids):
        rest = translation.target.text(ids[stands:])
        true = translation.draft.encode(rest, translation.target.text(ids[:stands]))
        drafted = [*true[: rng.randrange(4)], rng.randrange(3, 256)]
        read = text.read(drafted)
        assert translation.target.text(read) in translation.draft.text(drafted)
        text.written(drafted)
        fed_ids = text.ids[: text.known] + drafted
        grown = rng.randrange(1, 5)
        text.append(ids[stands : stands + grown])
        stands = min(stands + grown, len(ids))
        assert translation.draft.text(text.ids) == translation.target.text(ids[:stands])
        assert text.ids[: text.known] == fed_ids[: text.known]  # what the model was fed
        assert text.known < len(text.ids)
