"""Prompts fed by passes of fixed widths leave a cache as whole prompts do; without a graph, on any device."""

import weakref

import pytest
import torch

from specbench.decoding.engines.fixed_prompts import MOST_PASSES, WIDTHS, FixedPrompts
from specbench.models import CachedModel, RowCache
from tests.models.test_cached_model import TOLERANCE

CAPACITY, ROWS = 256, 3


@pytest.fixture
def cache(pair):
    """Row 1 has a text, and all others what a longer one left there, NaN among it. Of the draft, which is smaller."""
    cache = CachedModel(pair.draft, pair.vocab_size, "draft")
    cache.reserve(ROWS, CAPACITY)
    cache.place([text(150), text(21), text(150)], range(ROWS))
    with torch.inference_mode():
        for layer in cache._cache.layers:
            layer.values[::2] = torch.nan
    cache.show(ROWS)
    return cache


@pytest.fixture
def widths():
    return []


@pytest.fixture
def capture(widths):
    def captured(run, width):
        run()  # as trials before a capture do
        return lambda: (widths.append(width), run())

    return captured


@pytest.fixture
def fixed():
    return FixedPrompts()


def text(tokens: int) -> list[int]:
    return [(7 * i + tokens) % 500 for i in range(tokens)]


def assert_cached(cache: CachedModel, texts: list[list[int]]) -> None:
    """Each text but its last token is in the cache."""
    assert cache.lengths.tolist() == [len(text) - 1 for text in texts]
    logits = cache.extend(torch.tensor([[text[-1]] for text in texts]), torch.ones(ROWS, dtype=torch.int64)).logits
    for row, ids in enumerate(texts):
        torch.testing.assert_close(logits[row], cache.score(ids)[-1:], **TOLERANCE)


@pytest.mark.parametrize(("tokens", "passes"), [(1, [32]), (33, [32]), (34, [64]), (150, [128, 32]), (170, [128, 64])])
def test_a_prompt_is_cached_whatever_its_row_held(cache, fixed, capture, widths, tokens, passes):
    prompts = [text(tokens), text(40)]
    pieces = [prompt[:-1] for prompt in prompts]
    assert fixed.takes(cache, pieces)
    fixed.prepare(cache, 2, 0, capture)
    fixed.feed(cache, pieces, [2, 0], [0, 0])
    assert widths == [*passes, 64]
    assert_cached(cache, [prompts[1], text(21), prompts[0]])


@pytest.mark.parametrize(
    ("capacity", "plain"),
    [(CAPACITY, False), (2 * CAPACITY, False), (2 * CAPACITY, True)],
    ids=["same_memory", "memory_grows", "of any width"],
)
def test_pieces_follow_one_another(cache, fixed, capture, capacity, plain):
    """The second piece would fit into one pass as wide as the first cache. Passes of any width, too."""

    def feed(*pieces):
        if plain:
            cache.feed(*pieces)
            return
        fixed.forget()
        fixed.prepare(cache, 0, pieces[2][0], capture)
        fixed.feed(cache, *pieces)

    whole, other = text(201), text(5)
    feed([whole[:40], other[:-1]], [0, 2], [0, 0])
    cache.reserve(ROWS, capacity)
    feed([whole[40:200]], [0], [40])
    cache.show(ROWS)
    assert_cached(cache, [whole, text(21), other])


def test_memory_that_grows_is_not_held(cache, fixed, capture):
    """A view of one row, kept to clear it, would hold all that the cache had."""
    fixed.prepare(cache, 0, 0, capture)
    fixed.feed(cache, [text(10)], [0], [0])
    before = [weakref.ref(layer.keys.untyped_storage()) for layer in cache._cache.layers]
    assert all(storage() is not None for storage in before)
    cache.reserve(ROWS, 2 * CAPACITY)
    assert not any(storage() is not None for storage in before)


def test_many_prompts_and_other_memory_are_not_taken(cache, fixed):
    assert fixed.takes(cache, [text(100)] * MOST_PASSES)
    assert not fixed.takes(cache, [text(100)] * MOST_PASSES + [[]])
    assert not fixed.takes(cache, [text(MOST_PASSES * 128 + 1)])  # wider passes would be as wide as the cache
    assert not fixed.takes(RowCache(), [text(1)])
    cache.reserve(ROWS, 1024)
    assert fixed.takes(cache, [text(MOST_PASSES * WIDTHS[-1])])
