"""Prompts fed in pieces: no request that decodes waits for more than a piece. test_ways.py has their texts."""

import dataclasses

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.types import Draft
from specbench.decoding import Decoder, Request
from specbench.decoding.engines import Requirements
from specbench.decoding.engines.auto import AutoEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.prompts import PromptQueue
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters import Drafter
from specbench.models import CachedModel, RowCache
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.toy import toy_decoder, toy_requests

CHUNK = 7


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Of prompts from one token to many pieces."""
    return toy_requests((9, 1, 40, 17, 2, 25, 4))


@pytest.mark.parametrize("engine", [EagerEngine(CHUNK), StaticEngine(prompt_chunk=CHUNK)], ids=["eager", "static"])
def test_a_long_prompt_stalls_nobody_for_more_than_a_piece(toy, requests, engine, monkeypatch):
    first, second = (dataclasses.replace(requests[i], max_new_tokens=20) for i in (3, 2))
    second = dataclasses.replace(second, prompt=(second.prompt * 2)[: 6 * CHUNK])
    decoding, events = toy_decoder(dataclasses.replace(toy, stop_ids=frozenset()), "model", engine, 0), []
    feed, extend = decoding.components.target.feed, decoding.components.target.extend
    target = decoding.components.target
    monkeypatch.setattr(target, "feed", lambda fed, *rest: (events.append(sum(map(len, fed))), feed(fed, *rest))[1])
    monkeypatch.setattr(target, "extend", lambda *fed, **kwargs: (events.append("step"), extend(*fed, **kwargs))[1])
    completion = decoding.start([first])[0]
    assert set(events) <= set(range(CHUNK + 1))  # memory is needed for a piece alone
    decoding.step()
    events.clear()
    (other,) = decoding.admit([second])
    assert (events, decoding.active) == ([], 2)
    for _ in range(6):
        assert not other.steps
        decoding.step()
    assert events == [CHUNK, "step"] * 5 + [CHUNK - 1, "step"]
    decoding.flush()
    assert (len(completion.steps), len(other.steps)) == (7, 1)
    assert decoding.stopwatch.prompt_seconds > 0


def test_the_queue_gives_the_first_prompt_first_and_fills_up_with_others():
    queue = PromptQueue()
    queue.add([4, 0, 2], [range(4), range(10, 20), [30]])
    pieces = queue.take(8)
    assert (pieces.rows, list(map(list, pieces.tokens))) == ([4, 0], [[0, 1, 2], [10, 11, 12]])
    assert (pieces.first, pieces.fed, pieces.last) == ([0, 0], [3, 3], [True, False])
    assert set(queue.rows) == {0, 2}
    queue.move({0: 1})
    pieces = queue.take(5)
    assert (pieces.rows, list(pieces.tokens[0]), pieces.first, pieces.last) == ([1], [13, 14, 15, 16, 17], [3], [False])
    assert list(queue.take(4).tokens[0]) == [18]  # all but the last token of the prompt
    assert set(queue.rows) == set()


class Whole(Drafter):
    """Takes prompts as a whole."""

    takes_pieces = False


class Feeds(Drafter, RowCache):
    """Is its own cache, and takes pieces."""

    def __init__(self):
        self.caches = (self,)

    def feed(self, pieces, rows, first):
        self.fed = rows

    def propose(self, batch, limits, streams):
        return Draft.empty(len(batch), batch.lengths.device)


def test_what_takes_no_pieces_is_refused_by_name(toy, requests):
    target = CachedModel(toy.target, toy.vocab_size, "target")
    for engine in (EagerEngine(4), StaticEngine(prompt_chunk=4)):
        says = r"engine\.prompt_chunk=4: drafter=Whole takes prompts as a whole.*prompt_chunk=null"
        with pytest.raises(ConfigError, match=says):
            Decoder(target, Whole(), MaskedVerifier(), 3, frozenset(), engine)
        drafter = Feeds()
        Decoder(target, drafter, MaskedVerifier(), 3, frozenset(), engine).run(requests[:1])
        assert drafter.fed == [0]
    for wrong in (0, -1, 1.5, "all", True):
        for engine in (EagerEngine, StaticEngine, AutoEngine):
            with pytest.raises(ConfigError, match=r"engine\.prompt_chunk="):
                engine(prompt_chunk=wrong)
    assert AutoEngine(9).resolve(Requirements(torch.device("cpu"), None, None)).prompt_chunk == 9
    assert AutoEngine(9).resolve(Requirements(torch.device("cuda"), None, None)).prompt_chunk == 9
