"""Rounds that several settings share: what is decoded in which, who ends early, and what a kill leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.machine.journal import TOGETHER, Journal
from specbench.core.machine.provenance import environment
from specbench.decoding import Decoder, Request
from specbench.protocols import together as module
from specbench.protocols import together_file
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import Together
from specbench.protocols.rounds import Timed, TimedRounds, decode_timed
from specbench.protocols.together import shared_rounds
from specbench.protocols.together_file import FIRST
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.helpers.markov_pair import MarkovDrafter, MarkovModel, markov_pair

pytestmark = pytest.mark.usefixtures("unchecked")
GROUPS = [[Request(f"{i}", (0,), 100 + i, SamplingParams(), 5)] for i in range(30)]
GAMMAS = (1, 2, 3)  # of jobs 0, 1 and 2
SECONDS = {0: 1.0, 1: 0.9, 2: 0.5, 3: 0.8}  # of decoding a group, by gamma; without noise the second job wins


class Toy(ModelContext):
    """A job of a toy pair."""

    def decoder(self, gamma: int | None = None) -> Decoder:
        p, q = markov_pair(vocabulary=6, closeness=0.5)
        gamma = self.gamma if gamma is None else gamma
        drafter: Any = MarkovDrafter(q) if gamma else None
        return Decoder(MarkovModel(p), drafter, MaskedVerifier() if gamma else None, gamma, frozenset())


def toy(sweep: Path, job: int, jobs: tuple[int, ...] = (0, 1, 2)) -> Toy:
    made = object.__new__(Toy)
    fields = {
        "gamma": GAMMAS[job], "title": f"gamma={GAMMAS[job]}", "batch_size": 1, "seed": 0, "journal": Journal(),
        "device": torch.device("cpu"), "pair": SimpleNamespace(tokenizer=None),
        "folder": sweep / str(job), "together": Together(jobs, lambda number: toy(sweep, number, jobs)),
    }  # fmt: skip
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    (sweep / str(job)).mkdir(parents=True, exist_ok=True)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that decoding moves, by ``seconds`` of its gamma and some noise; ``before`` is called first."""
    state = SimpleNamespace(now=0.0, seconds=dict(SECONDS), order=[], before=lambda gamma: None, noise=0.02)

    def timed(decoder: Decoder, batch: list[Request], at_once: int) -> Timed:
        gamma = decoder.components.gamma
        state.before(gamma)
        state.order.append((batch[0].name, gamma))
        rng = np.random.default_rng([int(batch[0].name), gamma])
        seconds = state.seconds[gamma] * float(np.exp(rng.normal(0, state.noise)))
        state.now += seconds
        made = decode_timed(decoder, batch, at_once)
        return Timed(made.completions, seconds, made.steps)

    monkeypatch.setattr(together_file, "decode_timed", timed)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: state.now))
    return state


def rounds(clock: SimpleNamespace) -> list[list[int]]:
    """The gammas of each round, in their order."""
    names = dict.fromkeys(name for name, _ in clock.order)
    return [[gamma for group, gamma in clock.order if group == name] for name in names]


def measured(result: TimedRounds) -> list[Any]:
    """All that rows are made of, but for latencies."""
    first = [[(c.token_ids, c.steps, c.finished) for way in pair for c in way.completions] for pair in result.first]
    times = [array.tolist() for array in vars(result.times).values()]
    return [first, times, {**result.columns, "seconds_prepared": None}]


def run(sweep: Path, job: int = 0, seconds: float = 0) -> TimedRounds:
    return shared_rounds(toy(sweep, job), GROUPS, seconds, 0)


def test_a_round_has_every_setting_that_is_left_and_plain_decoding(tmp_path, clock):
    run(tmp_path)
    orders = rounds(clock)
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders[:6])
    assert len({tuple(order) for order in orders[:6]}) > 1, "the order is drawn anew for each round"
    assert [name for name, _ in clock.order[::4]][:6] != [str(i) for i in range(6)], (
        "the order of the groups is drawn once"
    )


def test_beaten_settings_end_early_and_rounds_end_with_the_winner(tmp_path, clock):
    results = [run(tmp_path, job) for job in range(3)]
    counts = [result.times.seconds.shape[1] for result in results]
    assert counts[0] == counts[2] == FIRST == counts[1], "20% more than noise of 2% needs: decided at the first look"
    assert len(clock.order) == 4 * FIRST, "later jobs read the rounds of the first"
    assert [result.columns["looks"] for result in results] == [1, 1, 1]
    text = (tmp_path / "0" / TOGETHER).read_text()
    assert json.loads(text.splitlines()[-1])["ended"] == "it is decided"


def test_equal_settings_end_as_a_tie(tmp_path, clock):
    clock.seconds = {0: 1.0, 1: 0.5, 2: 0.5, 3: 0.8}
    run(tmp_path)
    last = json.loads((tmp_path / "0" / TOGETHER).read_text().splitlines()[-1])["ended"]
    assert last in ("they are as fast, within 5%", "all texts are decoded")
    assert all(3 not in order for order in rounds(clock)[FIRST:]), "the slow one ended at the first look"


@pytest.mark.parametrize("torn", [pytest.param("", marks=pytest.mark.thorough), '{"round": {"0": {"sec'])
def test_an_interrupted_job_goes_on_where_it_was(tmp_path, clock, torn):
    clock.noise = 0.3  # so that nothing is decided at the first look
    whole = run(tmp_path / "whole")
    count = len(rounds(clock))
    assert count > 8

    def interrupt(_: int) -> None:
        if len(clock.order) == 4 * 4 + 2:  # in the fifth round
            raise KeyboardInterrupt

    clock.order, clock.before = [], interrupt
    sweep = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        run(sweep)
    with (sweep / "0" / TOGETHER).open("a") as file:
        file.write(f"\n{torn}" if torn else "")
    clock.order, clock.before = [], lambda _: None
    again = run(sweep)
    assert len(rounds(clock)) == count - 4, "four rounds were on disk"
    assert measured(again) == measured(whole)


def test_rounds_of_another_machine_are_made_anew(tmp_path, clock, monkeypatch):
    run(tmp_path)
    before = len(clock.order)
    monkeypatch.setattr(module, "environment", lambda device: {**environment(device), "hardware": "another"})
    run(tmp_path)
    assert len(clock.order) == 2 * before
    assert "another" in (tmp_path / "0" / TOGETHER).read_text()


def test_a_setting_that_fails_leaves_the_others_alone_and_fails_by_itself(tmp_path, clock):
    def fail(gamma: int) -> None:
        if gamma == 1:
            raise ValueError("broken")

    clock.before = fail
    assert run(tmp_path, 1).times.seconds.shape[1] == FIRST
    assert '"failed": {"0": "ValueError: broken"}' in (tmp_path / "1" / TOGETHER).read_text()
    with pytest.raises(ValueError, match="broken"):
        run(tmp_path, 0)
    clock.before = lambda _: None
    assert shared_rounds(toy(tmp_path, 0, (0,)), GROUPS, 0, 0).columns["rounds_of"] == 0, "alone, once it is mended"


def test_too_few_seconds_for_a_round_are_refused(tmp_path, clock):
    with pytest.raises(
        ConfigError, match=r"protocol.seconds=4: too short: a round of 3 settings takes 3\.\d s.*Use 3\d"
    ):
        run(tmp_path, seconds=4)


def test_seconds_bound_all_settings_together(tmp_path, clock):
    clock.noise = 0.5
    result = run(tmp_path, seconds=40)
    assert 8 <= result.times.seconds.shape[1] < 20
    assert clock.now <= 40
    assert "another would pass the limit of 40 s" in (tmp_path / "0" / TOGETHER).read_text()
