"""The protocol decode: continuous batches have the texts of single ones, and its check fails a biased verifier."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding import Request, decoder
from specbench.exactness.zoo.accept import AcceptsEverything
from specbench.metrics.disturbance import Disturbance
from specbench.metrics.results import STEPS, TEXTS, RunRow
from specbench.models import Pair
from specbench.protocols import Outcome, decode
from specbench.protocols.decode import DecodeProtocol, headline
from specbench.protocols.empirical import CheckSettings, check_first_tokens, uncertain_prefix
from specbench.protocols.protocol import Together
from specbench.protocols.rounds import TimedRounds, timed_rounds
from specbench.protocols.settings import RoundSettings
from specbench.reports.markdown import literal
from specbench.reports.winner import fastest
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.helpers import cases
from tests.helpers.contexts import model_context, run_context
from tests.helpers.made_up_rows import frame, make_row
from tests.helpers.shape_checks import without_shape_checks

LENGTHS = (2, 7, 2, 7, 3, 4)
CHECK = {"prefixes": 1, "draws": 0, "batch_size": 4}


def requests_of(pair: Pair) -> list[Request]:
    """Of different samplers, prompts and lengths."""
    pairs = zip(make_requests(pair, len(LENGTHS)), LENGTHS, strict=True)
    return [dataclasses.replace(request, max_new_tokens=length) for request, length in pairs]


def decoded(pair: Pair, group: int | None, rounds: int = 1, **changes: int) -> Outcome:
    """The protocol's outcome; no text ends before its limit."""
    endless, requests = dataclasses.replace(pair, stop_ids=frozenset()), requests_of(pair)
    context = model_context(endless, sampling=requests[0].sampling, requests=requests, **changes)
    return DecodeProtocol(rounds, rounds, 0, 0, CHECK, group=group).run(context)


@pytest.fixture(scope="module")
def outcomes(pair: Pair) -> dict[str, Outcome]:
    """Batches that end before the next begins, and one continuous batch, in two rounds."""
    with without_shape_checks():
        return {"batches": decoded(pair, None), "continuous": decoded(pair, 0, rounds=2)}


def test_texts_and_step_logs_are_those_of_batches(outcomes):
    """In float32; and the second round repeats the first."""
    batches, continuous = outcomes.values()
    for table in (TEXTS, STEPS):
        assert continuous.tables[table].rows == batches.tables[table].rows
    assert (continuous.measured["differing_texts"], continuous.failure) == (0, None)


def test_a_row_counts_the_prompts_that_were_decoded(pair, monkeypatch):
    """Shared rounds end before the workload does, if they are decided or out of time."""

    def cut(context, groups, *_):
        return timed_rounds(context.decoder(0), context.decoder(), groups[:2], RoundSettings(1, 1, 0))

    monkeypatch.setattr(decode, "shared_rounds", cut)
    requests = requests_of(pair)
    context = model_context(pair, sampling=requests[0].sampling, requests=requests, together=Together([0], int))
    outcome = DecodeProtocol(1, 1, 0, 0, CHECK, together=True).run(context)
    texts = {row.prompt for row in outcome.tables[TEXTS].rows}
    assert (context.columns["prompts"], outcome.measured["prompts_decoded"], len(texts)) == (6, 4, 4)


def test_a_row_says_how_full_the_batch_was(outcomes):
    """Plainly a text takes as many steps as tokens: two at once take 7 + 7 + 4 steps, or 14 in all."""
    batches, continuous = (outcome.measured for outcome in outcomes.values())
    assert (batches["group"], continuous["group"]) == (2, 6)
    assert (batches["batch_plain_steps"], continuous["batch_plain_steps"]) == ([7, 7, 4], [14])
    assert batches["plain_requests_per_step"] == pytest.approx(25 / 18)
    assert continuous["plain_requests_per_step"] == pytest.approx(25 / 14)
    assert batches["requests_per_step"] < continuous["requests_per_step"] <= 2
    assert batches["requests_per_step"] == pytest.approx(batches["steps"] / sum(batches["batch_steps"]))
    assert (sum(batches["batch_tokens"]), continuous["batch_tokens"]) == (25, [25])
    names = {field.name for field in dataclasses.fields(RunRow)}
    assert {"group", "requests_per_step", "plain_requests_per_step"} <= names & set(continuous)


@pytest.mark.usefixtures("unchecked")
def test_acceptance_by_position_is_drawn_if_anything_was_drafted(pair, outcomes):
    assert set(outcomes["batches"].figures) == {"acceptance_histogram", "position_rates"}
    assert set(decoded(pair, None, gamma=0).figures) == {"acceptance_histogram"}


def test_a_row_has_the_latency_of_its_requests(outcomes):
    for measured in (outcome.measured for outcome in outcomes.values()):
        assert 0 < measured["p50_ttft_ms"] <= measured["p99_ttft_ms"]
        assert 0 < measured["p50_tpot_ms"] <= measured["p99_tpot_ms"]


def test_the_clock_of_a_request_starts_when_it_is_admitted(pair, monkeypatch):
    """The clock ticks once an admission and once a step: a request that waited for a place waited outside of it."""
    ticks = itertools.count()
    monkeypatch.setattr(decoder, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    texts = cases.decoder(pair, 0, stop_ids=()).run(requests_of(pair), at_once=2)
    assert [text.first_token - text.started for text in texts] == [1] * len(LENGTHS)
    assert texts[0].ended - texts[0].first_token == 1  # two tokens, and no request admitted between them
    assert texts[2].started == 3  # after the two steps of the first


def test_a_group_that_fills_no_batch_is_refused():
    protocol = DecodeProtocol(1, 1, 0, 0, CHECK, group=3)
    made = run_context(batch_size=4)
    with pytest.raises(ConfigError, match=r"protocol\.group=3: fewer than batch_size=4.*0 for all"):
        protocol.precheck(made)
    protocol.precheck(dataclasses.replace(made, batch_size=3))
    DecodeProtocol(1, 1, 0, 0, CHECK, group=0).precheck(made)
    for wrong in (-1, 1.5, "all", True):
        with pytest.raises(ConfigError, match=r"protocol\.group="):
            DecodeProtocol(1, 1, 0, 0, CHECK, group=wrong)


def test_one_group_has_no_interval_and_the_table_says_what_gives_it_one():
    one = {"batch_tokens": [1000], "batch_plain_tokens": [1000], "batch_seconds": [4.0], "batch_plain_seconds": [5.0]}
    row = make_row(**one, speedup_low=None, speedup_high=None, group=16)
    remedy = "one batch and has no interval: a smaller batch_size or protocol.group or more prompts give it one."
    assert remedy in literal(fastest(frame([row]), ["gamma 4"]))


def test_the_line_of_a_job_says_why_its_speedup_has_no_interval():
    quiet = TimedRounds([[]], Disturbance(None, None, None))
    measured = {"tokens": 20, "steps": 10, "speedup": 1.5, "speedup_low": None, "speedup_high": None}
    sentence = "2.00 tokens a step, 1.50 times plain decoding; no interval, since all was timed in one batch"
    assert headline(measured, quiet) == sentence
    assert "interval" not in headline(measured | {"speedup_low": 1.25, "speedup_high": 1.75}, quiet)


# --- The empirical-against-target check ---

SETTINGS = CheckSettings(prefixes=2, draws=200, batch_size=100)


def make_context(pair, verifier):
    requests = make_requests(pair, 2, SamplingParams())
    return model_context(pair, verifier=verifier, verifier_name="any", gamma=2, batch_size=1, requests=requests)


@pytest.mark.usefixtures("unchecked")
def test_a_sound_verifier_passes_and_a_biased_one_does_not(pair):
    """The seeds are fixed, so that the sound verifier's p-value is what it is; the biased one lies far beyond noise."""
    sound, rows = check_first_tokens(make_context(pair, MaskedVerifier()), SETTINGS)
    biased, _ = check_first_tokens(make_context(pair, AcceptsEverything()), SETTINGS)
    assert sound["check_p_value"] > 0.01
    assert biased["check_p_value"] < 0.002
    assert biased["check_tv"] > biased["check_tv_noise_q99"] > sound["check_tv"]
    assert sum(row.count for row in rows) == SETTINGS.prefixes * SETTINGS.draws


def test_prefixes_are_cut_where_the_target_hesitates(pair):
    context = make_context(pair, MaskedVerifier())
    for request in context.requests:
        cut = uncertain_prefix(context, request)
        assert request.prompt[: len(cut.prompt)] == cut.prompt
        assert len(cut.prompt) > len(request.prompt) // 2
        entropies = torch.special.entr(context.target.score(request.prompt).softmax(-1)).sum(-1)
        assert entropies[len(cut.prompt) - 1] == entropies[len(request.prompt) // 2 :].max()
