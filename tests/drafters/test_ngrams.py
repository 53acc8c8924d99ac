"""The indices of prompt lookup draft what a look at the whole text finds, whatever comes, moves and goes."""

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding import Request
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters import ngrams
from specbench.drafters.ngrams import NgramIndex
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.drafters.suffixes import Texts
from tests.decoding.test_decoding import GREEDY, texts
from tests.helpers.cases import CPU, bound, decoder
from tests.helpers.toy import TensorLookup, toy_requests


def lookup(tokens, lengths, longest=3, shortest=1):
    """The place behind the latest earlier match of each text's longest ending that has one; its length without any."""
    places = []
    for text, end in zip(tokens.tolist(), lengths.tolist(), strict=True):
        sizes = range(longest, shortest - 1, -1)
        matches = (i for n in sizes for i in range(end - 1, n - 1, -1) if text[i - n : i] == text[end - n : end])
        places.append(next(matches, end))
    return torch.tensor(places)


def index_of(rows, capacity, longest=3, shortest=1):
    index = NgramIndex(longest, shortest, CPU)
    index.reserve(rows, capacity)
    return index


def first_of(places, lengths):
    """What ``lookup`` returns, from what the index does."""
    sizes = torch.where(places >= 0, torch.arange(places.shape[1]) + 1, 0)
    best = (sizes.amax(dim=1) - 1).clamp(min=0)
    return torch.where(sizes.amax(dim=1) > 0, places.gather(1, best[:, None])[:, 0], lengths)


@pytest.mark.parametrize("vocabulary", [2, 5, 40, 3000])
@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (5, 2), (1, 1)])
def test_both_indices_find_what_the_whole_text_has(vocabulary, longest, shortest):
    """Ragged texts that grow by 0 to 4 tokens at a time; prompts are longer and shorter than a piece, and empty."""
    generator = torch.Generator().manual_seed(vocabulary)
    tokens = torch.randint(vocabulary, (3, 400), generator=generator)
    index, rows = index_of(3, 400, longest, shortest), torch.arange(3)
    index.feed([tokens[0, :150].tolist(), tokens[1, :3].tolist(), []], range(3), [0, 0, 0])
    on_host = [Texts(range(longest, shortest - 1, -1)) for _ in rows]
    lengths, indexed = index.lengths.clone(), [0, 0, 0]
    matches = 0
    for _ in range(60):
        counts = torch.randint(0, 5, (3,), generator=generator)
        new = tokens.gather(1, lengths[:, None] + torch.arange(4))
        lengths += counts
        expected = lookup(tokens, lengths, longest, shortest)
        places = index.append(rows, new, counts)
        assert torch.equal(first_of(places, lengths), expected)
        sizes = torch.where(places >= 0, torch.arange(shortest, longest + 1), 0).amax(dim=1)
        for row, text in enumerate(on_host):
            text.extend(tokens[row, indexed[row] : lengths[row]].tolist())
            assert text.latest() == (int(sizes[row]), int(expected[row]))
        indexed = lengths.tolist()
        matches += int((expected < lengths).sum())
    assert matches > 0 or vocabulary == 3000


def test_collisions_are_never_believed(monkeypatch):
    """All n-grams of a size in one bucket that is too small: some are lost, and what is found is there."""
    monkeypatch.setattr(NgramIndex, "_buckets", _one_bucket)
    tokens = torch.randint(60, (2, 500), generator=torch.Generator().manual_seed(0))
    index, rows = index_of(2, 500), torch.arange(2)
    lost = wrong = 0
    for length in range(1, 500):
        lengths = torch.full((2,), length)
        places = first_of(index.append(rows, tokens[:, length - 1 : length], torch.ones_like(rows)), lengths)
        expected = lookup(tokens, lengths)
        for row in range(2):
            place = int(places[row])
            matches = [n for n in (1, 2, 3) if tokens[row, length - n : length].equal(tokens[row, place - n : place])]
            wrong += place < length and not matches
        lost += int((places != expected).sum())
    assert wrong == 0
    assert lost > 0


def _one_bucket(index, rows, grams):
    sizes = index.table.shape[1]
    tables = (rows[:, None] * sizes + torch.arange(sizes)) * index.table.shape[2]
    return tables[:, None].expand(-1, grams.shape[1], -1)


def test_a_bucket_that_many_share_holds_them_all_up_to_its_ways(monkeypatch):
    """New n-grams of one piece share a bucket without writing over each other."""
    monkeypatch.setattr(NgramIndex, "_buckets", _one_bucket)
    index, text = index_of(1, 64, 1, 1), [*range(ngrams.WAYS), 0]
    index.feed([text], [0], [0])
    assert index.table[0, 0, 0].tolist() == list(range(1, ngrams.WAYS + 1))
    for token in range(ngrams.WAYS):  # appended behind, each is found where it was
        fresh_index = index_of(1, 64, 1, 1)
        fresh_index.feed([text], [0], [0])
        place = fresh_index.append(torch.tensor([0]), torch.tensor([[token]]), torch.tensor([1]))
        assert int(place) == (token + 1 if token else ngrams.WAYS + 1)


def test_room_for_longer_texts_forgets_nothing():
    tokens = torch.randint(9, (2, 300), generator=torch.Generator().manual_seed(1))
    index, rows = index_of(2, 100), torch.arange(2)
    index.feed(tokens[:, :90].tolist(), range(2), [0, 0])
    for rows_wanted, capacity, grows in ((4, 300, True), (3, 200, False)):
        before = index.layout
        index.reserve(rows_wanted, capacity)
        assert (index.layout != before) == grows
    lengths = torch.tensor([91, 91])
    places = index.append(rows, tokens[:, 90:91], torch.ones_like(rows))
    assert torch.equal(first_of(places, lengths), lookup(tokens, lengths))


def test_a_row_forgets_the_text_before():
    index = index_of(2, 50)
    index.feed([[1, 2, 3, 4], [1, 2, 3, 4]], [0, 1], [0, 0])
    index.feed([[2, 9]], [1], [0])
    places = index.append(torch.arange(2), torch.tensor([[2], [3]]), torch.ones(2, dtype=torch.int64))
    assert places.tolist() == [[2, -1, -1], [-1, -1, -1]]
    index.move([1], [0])
    places = index.append(torch.tensor([0]), torch.tensor([[9]]), torch.tensor([1]))
    assert places.tolist() == [[2, -1, -1]]


def watched(kind):
    """A drafter that compares its drafts with a look at the whole text at every step, and counts their tokens."""

    class Watched(kind):
        compared = 0

        def propose(self, batch, limits, streams):
            draft = super().propose(batch, limits, streams)
            first = lookup(batch.tokens, batch.lengths, self.longest, self.shortest)
            counts = torch.minimum(limits, batch.lengths - first)
            assert torch.equal(draft.num_draft_tokens, counts)
            span = batch.span(first, draft.max_draft_tokens)
            assert torch.equal(draft.token_ids.view(len(batch), -1)[draft.drafted], span[draft.drafted])
            self.compared += int(counts.sum())
            return draft

    return Watched()


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("kind", [EagerEngine, StaticEngine], ids=["eager", "static"])
@pytest.mark.parametrize("drafter", [PromptLookupDrafter, TensorLookup], ids=["host", "tensors"])
def test_drafts_are_those_of_a_look_at_the_whole_text(toy, drafter, kind, chunk):
    """While requests end, move, and take the places of others; prompts whole and in pieces."""
    decoding = decoder(toy, drafter=watched(drafter), engine=kind(prompt_chunk=chunk))
    decoding.run(toy_requests((9, 1, 12, 4, 20, 7)), at_once=3)
    assert decoding.components.drafter.compared > 20


@pytest.mark.parametrize("kind", [PromptLookupDrafter, TensorLookup], ids=["host", "tensors"])
def test_the_length_of_the_match_decides_how_many_are_drafted(pair, kind):
    """Requests of one batch then draft different numbers of tokens, 0 included, and write the plain text.

    Each prompt ends with its first 0 to 4 tokens, so that the first lengths are the same for all weights.
    """
    tokens = tuple(dict.fromkeys(pair.encode("import os, sys\n\ndef add(first, second):\n    return total")))
    requests = [Request(str(n), (*tokens, *tokens[:n]), n, GREEDY, max_new_tokens=16) for n in range(5)]
    completions = decoder(pair, gamma=6, drafter=kind(longest=4, per_match=1.5)).run(requests)
    assert texts(completions) == texts(decoder(pair, gamma=0).run(requests))
    counts = [[step.num_draft_tokens for step in completion.steps] for completion in completions]
    assert [drafts[0] for drafts in counts] == [0, 1, 3, 4, 6]  # 1.5 times 0 to 4 tokens
    # The end of a text leaves less room.
    assert {0, 1, 3, 4, 6} >= {n for drafts in counts for n in drafts[:-4]}


@pytest.mark.parametrize("value", [0, -1, True, float("nan"), "2"])
def test_per_match_is_checked(value):
    with pytest.raises(ConfigError, match=r"drafter\.per_match"):
        PromptLookupDrafter(per_match=value)


def test_a_bound_drafter_has_an_index_of_its_own(pair):
    drafter = TensorLookup()
    (one,), (two,) = (bound(drafter, pair).caches for _ in range(2))
    one.start([[1, 2, 1]], 20)
    assert one.state[1].tolist() == [2]
    assert two.state[1].tolist() == []
    before = one.layout
    one.reserve(1, 20)
    assert one.layout == before
    one.reserve(1, 21)
    assert one.layout != before
