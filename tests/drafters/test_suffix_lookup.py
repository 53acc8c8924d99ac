"""Suffix lookup: the longest ending, its most frequent continuation, and texts that do not depend on either."""

import dataclasses
import random

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.engines import Requirements
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.graph import GraphEngine
from specbench.drafters.suffix_lookup import SuffixLookupDrafter
from specbench.drafters.suffixes import BOUNDARY, MOST, Texts, most_frequent
from specbench.protocols.rounds import timed_rounds
from specbench.protocols.settings import RoundSettings
from specbench.rules.token.masked import MaskedVerifier
from tests.decoding.test_decoding import GREEDY, texts
from tests.helpers.cases import bound, decoder
from tests.helpers.toy import toy_requests


def plainly(tokens, ending):
    """What Texts.longest returns, by a look at every place."""
    lengths = {}
    for place in range(1, len(tokens)):
        length = 0
        while (
            length < min(place, len(ending))
            and tokens[place - 1 - length] == ending[-1 - length]
            and tokens[place - 1 - length] != BOUNDARY
        ):
            length += 1
        if length:
            lengths[place] = length
    longest = max(lengths.values(), default=0)
    return longest, [place for place, length in lengths.items() if length == longest]


def test_the_longest_ending_is_found_wherever_it_is():
    """Tokens come a few at a time, with ends of texts between them; endings are longer and shorter than all keys."""
    rng = random.Random(0)
    tokens, store, sizes = [], Texts(), set()
    while len(tokens) < 180:
        new = [rng.choice([0, 1, 2, BOUNDARY if rng.random() < 0.2 else 0]) for _ in range(rng.randint(0, 4))]
        tokens += new
        store.extend(new)
        ending = [rng.randrange(3 + (rng.random() < 0.1)) for _ in range(rng.randint(1, 12))]
        match = store.longest(ending)
        assert match == plainly(tokens, ending)
        sizes.add(match[0])
    assert {0, 1, 2, 3, 4, 5, 6} <= sizes


def test_of_many_places_the_latest_count():
    store = Texts()
    store.extend([7, 1] * 100 + [7, 2] * MOST + [7])
    length, places = store.longest([7])
    assert (length, len(places)) == (1, MOST)
    assert {tuple(store.following(place, 1)) for place in places} == {(2,)}


def test_what_follows_ends_with_its_text():
    store = Texts()
    store.extend([1, 2, 3, BOUNDARY, 4, 5])
    assert store.following(1, 9) == [2, 3]
    assert store.following(1, 1) == [2]
    assert store.following(5, 9) == [5]


@pytest.mark.parametrize(
    ("following", "most", "share", "expected"),
    [
        ([[1, 2], [1, 3], [1, 3], [4, 4]], 9, 0.0, [1, 3]),
        ([[1, 2], [1, 3], [1, 3], [4, 4]], 9, 0.6, [1]),
        ([[1, 2], [1, 3], [1, 3], [4, 4]], 1, 0.0, [1]),
        ([[1], [2]], 9, 0.0, [2]),
        ([[5, 6], [5]], 9, 0.5, [5, 6]),
        ([[5, 6], [5]], 9, 0.51, [5]),
        ([[], []], 9, 0.0, []),
        ([], 9, 0.0, []),
    ],
    ids=["most frequent", "unsure", "short", "tie", "an ended text counts", "and is too many", "nothing", "no place"],
)
def test_most_frequent(following, most, share, expected):
    assert most_frequent(following, most, share) == expected


@pytest.mark.parametrize("chunk", [None, 5], ids=["whole prompts", "pieces"])
def test_greedy_text_is_plain_text_whatever_was_written_before(toy, chunk):
    """Requests end, move and take the places of others, and then come again; what ended is drafted from."""
    requests = [dataclasses.replace(r, sampling=GREEDY) for r in toy_requests((9, 1, 12, 4, 20, 7))]
    plain = texts(decoder(toy, gamma=0).run(requests))
    decoding = decoder(toy, drafter=SuffixLookupDrafter(), engine=EagerEngine(prompt_chunk=chunk), gamma=4)
    first, again = (decoding.run(requests, at_once=3) for _ in range(2))
    assert texts(first) == texts(again) == plain
    accepted = [
        sum(step.num_accepted for completion in completions for step in completion.steps)
        for completions in (first, again)
    ]
    assert accepted[1] > accepted[0]  # it has seen these texts


def test_a_text_that_was_written_before_is_drafted_whole(toy):
    """After it has ended, and not before; a longer match drafts more; forget() takes it back."""
    request = dataclasses.replace(toy_requests((9,))[0], sampling=GREEDY, max_new_tokens=30)
    decoding = decoder(toy, drafter=SuffixLookupDrafter(), gamma=8, stop_ids=[])
    first, second = (decoding.run([request])[0] for _ in range(2))
    assert len(second.steps) < len(first.steps)
    counts = [step.num_draft_tokens for step in second.steps]
    assert counts[0] <= 1  # nothing or one token matches
    assert max(counts) == 8
    decoding.forget()
    assert decoding.run([request])[0].steps == first.steps


def test_rounds_do_not_learn_from_each_other(toy):
    requests = toy_requests((9, 1, 12))
    plain = decoder(toy, gamma=0)
    speculative = decoder(toy, drafter=SuffixLookupDrafter(), gamma=4)
    speculative.run(requests)  # to warm up
    timed = timed_rounds(plain, speculative, [requests, requests], RoundSettings(3, 3, 0))
    assert timed.differing == 0
    steps = [sum(len(completion.steps) for completion in batch.completions) for _, batch in timed.first]
    assert steps[1] < steps[0]  # in one round it does learn


def test_the_oldest_texts_are_forgotten(toy):
    drafter = bound(SuffixLookupDrafter(remembered=10), toy)
    for first in range(0, 60, 6):
        drafter.ended([list(range(first, first + 6))])
    kept = {token for token in range(60) for store in (drafter._older, drafter._ended) if store.longest([token])[0]}
    assert kept == set(range(36, 60))  # two texts, and the two before them


def test_a_graph_cannot_hold_it():
    with pytest.raises(ConfigError, match=r"drafter=suffix_lookup decides on the host.* engine=eager"):
        GraphEngine().resolve(Requirements(torch.device("cuda"), SuffixLookupDrafter(), MaskedVerifier()))


@pytest.mark.parametrize(("setting", "value"), [("longest", 0), ("per_match", 0)])
def test_settings_are_checked(setting, value):
    with pytest.raises(ConfigError, match=rf"drafter\.{setting}={value}"):
        SuffixLookupDrafter(**{setting: value})
