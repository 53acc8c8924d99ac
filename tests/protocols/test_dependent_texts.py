"""Intervals hold although several texts of one prompt, or turns of a conversation, are alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from specbench.api import texts as api
from specbench.decoding import Completion, Request
from specbench.decoding.requests import Step
from specbench.metrics.disturbance import Disturbance
from specbench.metrics.intervals import ratio_of_sums
from specbench.models.generate import PLAIN
from specbench.protocols import against, predict
from specbench.protocols.judging import speed
from specbench.protocols.judging.text_scorer import ScoredText
from specbench.protocols.model_context import first_of_units, in_groups
from specbench.protocols.record import repeated
from specbench.protocols.rounds import Timed, TimedRounds
from specbench.protocols.scoring import overlap_fields, shared_fields
from specbench.replay.agreement import agreement
from specbench.replay.cost.forecast import _texts_by_prompt, forecast
from specbench.replay.cost.model import Line
from specbench.replay.renewal import replay
from specbench.replay.summary import lengths_with_intervals
from specbench.sampling import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens
from tests.replay.test_cost import flat

pytestmark = pytest.mark.usefixtures("unchecked")
PROMPTS, TEXTS = 8, 4


# --- Texts of a prompt in different batches ---


def requests_of(texts: int) -> list[Request]:
    names = [(f"{prompt}#{k}" if k else f"{prompt}", k) for prompt in range(PROMPTS) for k in range(texts)]
    return [Request(name, (0,), 0, SamplingParams(n=texts), 4, sample=k) for name, k in names]


ONE_PROMPT = requests_of(TEXTS)[:TEXTS]


def timed(batch: Sequence[Request], second: float = 1.0) -> Timed:
    """Later texts take longer."""
    texts = [Completion(request, [0] * 4, [Step(request.name, 0, 3, 3, 4, 3)]) for request in batch]
    return Timed(texts, second * sum(1 + request.sample / 8 for request in batch), 1)


def rounds(batches: Sequence[Sequence[Request]]) -> TimedRounds:
    pairs = [(timed(batch), timed(batch, 0.5)) for batch in batches]
    return TimedRounds([pairs, pairs], Disturbance(None, None, None))


def of_generate(patch: pytest.MonkeyPatch) -> float | None:
    patch.setattr(against, "decode_timed", lambda _, batch: timed(batch))
    patch.setattr(against, "_decoded", lambda _, __, batch: timed(batch, 0.5))
    context: Any = SimpleNamespace(pair=None, gamma=3, sampling=ONE_PROMPT[0].sampling, device=torch.device("cpu"))
    (row,) = against.against(context, [PLAIN], in_groups(ONE_PROMPT, 1), [[0] * 4] * TEXTS, 2, None)
    return row.times_plain_low


def of_prediction(patch: pytest.MonkeyPatch) -> float | None:
    patch.setattr(predict, "timed_rounds", lambda _, __, batches, *rest: rounds(batches))
    context: Any = SimpleNamespace(
        requests=requests_of(1)[:1],
        batch_size=1,
        seed=0,
        decoder=lambda _: None,
        batches=lambda some: in_groups(some, 1),
    )
    return predict.measure(context, 3, repeated(context, TEXTS), 0).speedup_low


def of_the_api(patch: pytest.MonkeyPatch) -> float | None:
    patch.setattr(api, "timed_rounds", lambda _, __, batches, *rest: rounds(batches))
    return api._compared(None, None, ONE_PROMPT, 1)[1]["speedup_low"]


@pytest.mark.parametrize("low", [of_generate, of_prediction, of_the_api])
def test_batches_of_one_prompt_give_a_speedup_no_interval(
    low: Callable[[pytest.MonkeyPatch], float | None], monkeypatch: pytest.MonkeyPatch
):
    """They are one unit; four would give one."""
    assert low(monkeypatch) is None


def test_batches_that_share_a_prompt_are_one_unit():
    requests = requests_of(3)
    assert first_of_units(in_groups(requests, 1)) == [0, 3, 6, 9, 12, 15, 18, 21]
    assert first_of_units(in_groups(requests, 2)) == [0, 3, 6, 9]
    assert first_of_units(in_groups(requests, 3)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert first_of_units([requests]) == [0]
    turns = [Request(f"c{turn}", (0,), 1, SamplingParams(), 4, conversation="c", turn=1) for turn in ("", "#turn-2")]
    assert first_of_units(in_groups(turns, 1)) == [0]


# --- Ratios over texts ---


def test_ratios_hold_the_truth_if_texts_of_a_prompt_are_alike():
    """40 prompts of 4 equal texts: 38 or more of 200 miss with a chance below 1e-7; over texts 66 are expected to."""
    missed, units = 0, np.repeat(np.arange(40), 4).tolist()
    for seed in range(200):
        values = np.repeat(np.random.default_rng(seed).normal(1, 0.2, 40), 4)
        estimate = ratio_of_sums(values, np.ones(160), units)
        assert estimate is not None
        missed += not estimate.low <= 1 <= estimate.high
    assert missed < 38


def twice(name: str, texts: int) -> list[str]:
    """Names of texts that are there twice: as two texts of a prompt, or as two turns of a conversation."""
    return [*map(str, range(texts)), *(f"{i}{name}" for i in range(texts))]


P, Q = markov_pair(4, closeness=0.3, seed=3)
DRAWN = [row[: 10 + i] for i, row in enumerate(sampled_texts(P, 12, 30, seed=1).tolist())]
ONCE = trace_of_tokens(P, Q, DRAWN)
REQUESTS = [Request(str(i), (0,), 0, SamplingParams(), 30) for i in range(12)]
OF_BOTH = [*REQUESTS, *(dataclasses.replace(request, name=f"{request.name}#1", sample=1) for request in REQUESTS)]


@pytest.mark.parametrize("name", ["", "#turn-2"])
def test_replayed_lengths_have_the_same_interval_if_every_text_is_there_twice(name):
    both = trace_of_tokens(P, Q, DRAWN + DRAWN, prompts=twice(name, 12))
    one, other = (lengths_with_intervals(trace, replay(trace, "token", [4]))[0] for trace in (ONCE, both))
    assert (other.low, other.high) == pytest.approx((one.low, one.high))


def test_turns_are_one_conversation_in_tests_of_agreement():
    rng = np.random.default_rng(0)
    once = pd.DataFrame({"prompt": [str(i) for i in range(12)], "tokens": 30, "steps": rng.integers(8, 16, 12)})
    once["expected_steps"] = 12.5
    both = pd.concat([once, once.assign(prompt=once["prompt"] + "#turn-2")])
    assert agreement(both, None).same_text_p == pytest.approx(agreement(once, None).same_text_p)


def test_a_forecast_resamples_conversations_and_feeds_each_turn():
    """Turns of 5 and 9 tokens in one batch are two prompts, each padded to 9 and fed without its last token."""
    both = trace_of_tokens(P, P, DRAWN[:2], prompts=["a", "a#turn-2"])
    assert [texts.tolist() for texts in _texts_by_prompt(both)] == [[0, 1]]
    model = dataclasses.replace(flat(0.01, 0.0), start_both=Line(0.0, 1.0))
    got = forecast(both, "token", 4, 2, [model], prompt_tokens={"a": 5, "a#turn-2": 9}, runs=1)
    assert got.start_seconds == pytest.approx(2 * 8)


def test_overlap_and_shared_mass_have_the_same_interval_if_every_text_is_there_twice():
    shared = SimpleNamespace(shared=torch.tensor([True]))
    context: Any = SimpleNamespace(pair=SimpleNamespace(translation=shared), device=torch.device("cpu"))
    values = [torch.rand(3, generator=torch.Generator().manual_seed(i)) for i in range(12)]
    scored = [{"shared": of_text, "overlap": of_text} for of_text in values]
    once, both = ([Completion(request, [0] * 3) for request in some] for some in (REQUESTS, OF_BOTH))
    one, other = shared_fields(context, once, scored), shared_fields(context, both, scored + scored)
    assert other == pytest.approx(one)
    assert one["shared_mass_low"] < one["shared_mass"] == pytest.approx(float(torch.cat(values).double().mean()))
    of_overlap = overlap_fields(scored + scored, both)
    assert list(of_overlap.values()) == pytest.approx([one[f"shared_mass{end}"] for end in ("", "_low", "_high")])


def test_an_engine_s_acceptance_has_the_same_interval_if_every_text_is_there_twice():
    """As in two rounds of judge_speed, of the same prompts."""
    rng, texts = np.random.default_rng(0), []
    for i, drafted in enumerate(rng.integers(1, 30, 12).tolist()):
        request = TextRequest(prompt_id=str(i), prompt="", sampling=SamplingParams(), seed=0, max_new_tokens=30)
        counters = {"drafted": drafted, "accepted": int(rng.integers(0, drafted + 1)), "steps": 1 + i}
        ids = tuple(DRAWN[i])
        texts.append(TextCompletion(request=request, mode=Mode.PLAIN, text="", token_ids=ids, counters=counters))
    assert len(speed._acceptance(texts, {})) == 4
    for one, other in zip(speed._acceptance(texts, {}), speed._acceptance(texts + texts, {}), strict=True):
        assert dataclasses.astuple(other)[2:] == pytest.approx(dataclasses.astuple(one)[2:])
    nothing = np.zeros((0, 1))
    scores = [
        ScoredText(nothing, *[nothing] * 4, tokens=np.array(text), columns={name: values for name, values in part})
        for text, part in zip(DRAWN, _columns(), strict=True)
    ]
    checkpoint: Any = SimpleNamespace(name="a", score=lambda some: (scores + scores)[: len(some)])
    rows = speed.predicted_rows(checkpoint, texts, 4), speed.predicted_rows(checkpoint, texts + texts, 4)
    for one, other in zip(*rows, strict=True):
        assert dataclasses.astuple(other)[2:] == pytest.approx(dataclasses.astuple(one)[2:])


def _columns() -> list[list[tuple[str, np.ndarray]]]:
    parts = {name: np.split(ONCE.columns[name], ONCE.starts[1:-1]) for name in ("log_p", "log_q", "draft_argmax")}
    return [[(name, parts[name][i]) for name in parts] for i in range(12)]
