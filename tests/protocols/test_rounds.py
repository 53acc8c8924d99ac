"""Paired rounds of decoding: their order, when they end, and whether they repeat the first one's texts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.types import Verification
from specbench.decoding import Decoder, Request
from specbench.metrics.disturbance import Disturbance
from specbench.protocols import rounds as module
from specbench.protocols.decode import DecodeProtocol, repeat_failure
from specbench.protocols.rounds import Timed, TimedRounds, timed_rounds
from specbench.protocols.settings import RoundSettings
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.helpers.markov_pair import MarkovDrafter, MarkovModel, markov_pair

BATCHES = [[Request(f"{i}", (0,), 100 + i, SamplingParams(), 12)] for i in range(6)]


def decoders(verifier: object = None) -> tuple[Decoder, Decoder]:
    """Plain and speculative decoding of a toy pair."""
    p, q = markov_pair(vocabulary=6, closeness=0.5)
    target = MarkovModel(p)
    verifier = verifier or MaskedVerifier()
    return (
        Decoder(target, None, None, 0, frozenset()),
        Decoder(target, MarkovDrafter(q), verifier, 3, frozenset()),  # ty: ignore[invalid-argument-type]
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that decoding moves: plainly by 1 s, speculatively by 0.5 s times ``stretch(number of the call)``."""
    state = SimpleNamespace(now=0.0, stretch=lambda _: 1.0, order=[])

    def decode_timed(decoder: Decoder, batch: list[Request], at_once: int) -> Timed:
        plain = decoder.components.drafter is None
        state.order.append((batch[0].name, "plain" if plain else "speculative"))
        seconds = 1.0 if plain else 0.5 * state.stretch(len(state.order))
        state.now += seconds
        return Timed(decoder.run(batch, at_once), seconds, 1)

    monkeypatch.setattr(module, "decode_timed", decode_timed)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: state.now))
    return state


def test_ways_and_their_order_alternate(clock):
    timed = timed_rounds(*decoders(), BATCHES[:3], RoundSettings(2, 6, 0))
    couples = list(zip(clock.order[::2], clock.order[1::2], strict=True))
    assert all(one[0] == two[0] and one[1] != two[1] for one, two in couples)
    first = [one[1] for one, _ in couples]
    assert first == ["plain", "speculative", "plain", "speculative", "plain", "speculative"]
    assert [one[0] for one, _ in couples] == ["0", "1", "2"] * 2
    assert (timed.times.plain_seconds == 1).all()
    assert (timed.times.seconds == 0.5).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "stretch", "count"),
    [
        ((2, 6, 0), lambda _: 1.0, 2),
        ((1, 1, 0), lambda _: 1.0, 1),
        # Every third decoding takes half as long, and no number of rounds makes up for it,
        ((2, 5, 0), lambda number: 2.0 if number % 3 else 1.0, 5),
        # but time may end them: a round takes some 11 s, so that the third would end after more than 30 s.
        ((2, 6, 30), lambda number: 2.0 if number % 3 else 1.0, 2),
        ((4, 6, 30), lambda number: 2.0 if number % 3 else 1.0, 4),
        # The second round alone is disturbed, in single batches: a median of three is steady.
        ((2, 6, 0), lambda number: 5.0 if number in (14, 20) else 1.0, 3),
    ],
    ids=["agree", "one", "scatter", "time", "at least", "disturbed"],
)
def test_rounds_follow_while_they_scatter(clock, settings, stretch, count):
    clock.stretch = stretch
    timed = timed_rounds(*decoders(), BATCHES, RoundSettings(*settings))
    assert timed.times.seconds.shape == (count, 6)
    assert len(clock.order) == len(timed.rows()) == 12 * count
    assert [row.way for row in timed.rows()[:2]] == ["plain", "speculative"]
    assert timed.differing == 0


def test_seconds_of_prompts_are_those_of_either_way():
    pair = Timed([], 3.0, 1, prompts=1.0), Timed([], 3.0, 1, prompts=2.0)
    assert TimedRounds([[pair], [pair]], Disturbance()).prompts == (2.0, 4.0)


class Own:
    """A verifier with randomness of its own: it emits any token and accepts nothing."""

    rule, lossless = "own", False

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def verify(self, draft, target, streams) -> Verification:
        tokens = torch.full((len(draft.num_draft_tokens), draft.max_draft_tokens + 1), -1)
        tokens[:, 0] = torch.randint(6, (len(tokens),), generator=self.generator)
        return Verification(tokens, torch.zeros_like(draft.num_draft_tokens))


@pytest.mark.usefixtures("unchecked")
def test_texts_of_later_rounds_are_held_against_the_first():
    """Six speculative texts of twelve tokens of six; those of plain decoding repeat."""
    assert timed_rounds(*decoders(), BATCHES, RoundSettings(3, 3, 0)).differing == 0
    assert timed_rounds(*decoders(Own()), BATCHES, RoundSettings(3, 3, 0)).differing == 12


def test_other_texts_are_an_error_where_they_cannot_be_rounding():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    text = repeat_failure(2, cpu, torch.float32)
    assert text is not None
    assert text.startswith("2 texts of later rounds differ")
    assert "protocol.rounds=1 protocol.max_rounds=1" in text
    assert repeat_failure(0, cpu, torch.float32) is None
    assert repeat_failure(2, cpu, torch.bfloat16) is None
    assert repeat_failure(2, gpu, torch.float32) is None


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ((0, 6, 0), "protocol.rounds=0"),
        ((True, 6, 0), "protocol.rounds=True"),
        ((3, 2, 0), "protocol.max_rounds=2: below protocol.rounds=3"),
        ((2, 6, -1), "protocol.seconds=-1"),
        ((2, 6, True), "protocol.seconds=True"),
    ],
)
def test_settings_that_cannot_be(settings, key):
    with pytest.raises(ConfigError, match=key):
        RoundSettings(*settings)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("batch_size", "group", "sizes"),
    [(1, None, [3, 3, 2]), (3, None, [3, 3, 2]), (2, None, [3, 3, 2]), (1, 4, [6, 2]), (1, 0, [8])],
)
def test_texts_of_one_prompt_are_timed_in_one_group(batch_size, group, sizes):
    """Their times depend on each other, and a speedup's interval takes groups as independent (docs/stopping.md)."""
    texts = [
        Request(f"{name}#{k}" if k else name, (0,), k, SamplingParams(n=3), 4, sample=k)
        for name in "ab"
        for k in range(3)
    ]
    turns = [Request(f"c{turn}", (0,), 1, SamplingParams(), 4, conversation="c", turn=1) for turn in ("", "#turn-2")]
    context = SimpleNamespace(requests=[*texts, *turns], batch_size=batch_size)
    check = {"prefixes": 1, "draws": 0, "batch_size": 1}
    groups = DecodeProtocol(1, 1, 0, 0, check, group=group)._groups(context)
    assert [len(group) for group in groups] == sizes
    assert [request for group in groups for request in group] == context.requests
