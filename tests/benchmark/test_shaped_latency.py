"""The protocol latency where the sampler penalises, biases or bans: what is made up, what is timed, what is checked."""

import dataclasses

import pandas as pd
import pytest
import torch

from specbench.analysis import verifier_latency
from specbench.benchmark import synthetic
from specbench.benchmark.check import WrongResultError, check
from specbench.benchmark.synthetic import Case, make_case, resolved
from specbench.benchmark.tables import LATENCY, LATENCY_SAMPLES
from specbench.benchmark.timer import Captured, DeviceTimer
from specbench.core.errors import ConfigError
from specbench.core.rng import Stream
from specbench.core.types import Verification
from specbench.protocols.latency import LatencyProtocol
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams, inverse_cdf, launches, where
from tests.analysis.test_latency_analysis import frame
from tests.benchmark.test_result_check import Broken
from tests.helpers.by_definition import shaped_logits
from tests.helpers.cases import BASE, CPU
from tests.helpers.kernel_cases import DEVICE
from tests.protocols.test_agreement import context

SAMPLERS = {
    "penalised": {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.3},
    "biased": {"logit_bias": {0: 2.0, 1: -3.0}, "bad_words": ["stop", "never again"], "min_tokens": 99},
    "allowed": {"allowed_token_ids": [0, 1, 2, 5, 64]},
}
EVERY = pytest.mark.parametrize("name", SAMPLERS)
pytestmark = pytest.mark.usefixtures("small_buffers")


def spec_of(name: str, **changes: object):
    sampling = SamplingParams.from_mapping(SAMPLERS[name], temperature=0.8)
    few = {"batch_size": 3, "vocabulary": 67, "dtype": "float32", "gamma": 3, "context": 24}
    return dataclasses.replace(BASE, sampler=name, sampling=sampling, **{**few, **changes})


@pytest.fixture
def in_place(monkeypatch):
    """Kernels on any device, which write into the logits that they are given."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)


def protocol(**changes: object) -> LatencyProtocol:
    settings = {
        "vocabulary": 67, "context": 24, "grid": [{"sampler": ["temperature", *SAMPLERS], "batch_size": [2]}],
        "samplers": SAMPLERS, "rounds": 2, "replays": 3, "seconds": 0.001, "budget": 60.0, "host_calls": 1,
        "flush": "read", "cpu_logits": 10**6,
    }  # fmt: skip
    return LatencyProtocol(**{**settings, **changes})


# --- What is made up ---


@EVERY
def test_rows_are_those_of_the_definition_along_the_draft(name, monkeypatch):
    """The draft's, from which its tokens were drawn, and the target's, as the check expects them."""
    made = []
    pair_of_logits = synthetic.pair_of_logits
    monkeypatch.setattr(synthetic, "pair_of_logits", lambda *args: made.append(pair_of_logits(*args)) or made[-1])
    case = make_case(spec_of(name, vocabulary=67 if name == "allowed" else 12, context=8), 0, 0, CPU)
    gamma, params = case.spec.gamma, resolved(case.spec.sampling, case.spec.vocabulary)
    draft, target, streams = case.shaped_before.inputs()
    for raw, rows, places in zip(made[0], (draft.rows, target), (gamma, gamma + 1), strict=True):
        for row, logits in enumerate(raw):
            b, offset = divmod(row, places)
            text = case.history.texts[b, :8].tolist() + case.token_ids[b * gamma : b * gamma + offset].tolist()
            expected = torch.tensor(shaped_logits(logits.tolist(), params, text[:4], text[4:]))
            torch.testing.assert_close(rows.logits[row], expected, rtol=0, atol=1e-5)
            assert not torch.equal(rows.logits[row], logits)
    u = streams.uniform(Stream.DRAFT)[:, :gamma].flatten()
    assert torch.equal(draft.token_ids, inverse_cdf(draft.rows.probs(), u))


def test_texts_repeat_their_tokens_as_real_ones_do():
    """465 of 1,024 different ones on average, with a standard deviation of about 11 a text."""
    case = make_case(spec_of("penalised", batch_size=20, vocabulary=128_256, gamma=0, context=1024), 0, 0, CPU)
    different = [len(set(text[:1024].tolist())) for text in case.history.texts]
    assert abs(sum(different) / 20 - 465) < 15


# --- What is timed ---


def test_a_replay_begins_with_what_the_last_one_changed_restored():
    timer, order = DeviceTimer(CPU, "read"), []
    timer.flush = lambda: order.append("flush")
    nothing = Captured(None, Verification(torch.zeros(0, 0).long(), torch.zeros(0).long()))
    times = timer.device_times(nothing, lambda: order.append("call"), 2, lambda: order.append("restore"))
    assert order == ["restore", "flush", "call"] * 2
    assert len(times) == 2
    assert min(times) > 0


def test_the_same_call_without_penalties_is_timed_beside():
    outcome = protocol(rounds=2).run(context(MaskedVerifier(), dtype=torch.float32))
    rows = pd.DataFrame(outcome.tables[LATENCY].rows)
    assert rows["sampler"].tolist() == ["temperature", *SAMPLERS]
    assert rows["skipped"].isna().all(), rows["skipped"].tolist()
    assert rows["plain_us"].isna().tolist() == [True, False, False, False]
    assert rows["context"].tolist()[1:] == [24] * 3
    assert '"presence_penalty": 0.5' in rows["shaping"][1]
    samples = pd.DataFrame(outcome.tables[LATENCY_SAMPLES].rows)
    for case, row in rows[1:].iterrows():
        of_case = samples[samples["case"] == case]
        assert of_case["plain_microseconds"].median() == pytest.approx(row.plain_us)
        assert row.times_plain == pytest.approx(row.median_us / row.plain_us)
        assert row.times_plain_low <= row.times_plain <= row.times_plain_high


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["penalised", "allowed"])
def test_the_fused_verifier_is_timed_on_rows_that_kernels_have_penalised_in_place(name, in_place):
    run = context(FusedVerifier(), device=DEVICE, dtype=torch.float32, gamma=1)
    (row,) = protocol(rounds=1, grid=[{"sampler": [name], "batch_size": [1]}]).run(run).tables[LATENCY].rows
    assert row.skipped is None
    assert row.checked == 1
    assert row.times_plain > 0


# --- What is checked ---


@pytest.mark.cases(1)
@pytest.mark.parametrize("dropped", ["presence", "frequency", "repetition"])
def test_a_kernel_that_drops_a_penalty_fails_the_check(dropped, in_place, monkeypatch):
    shape, off = launches.shape_in_place, 1.0 if dropped == "repetition" else 0.0

    def dropping(logits, params, history):
        shape(logits, dataclasses.replace(params, **{dropped: torch.full_like(params.presence, off)}), history)

    case, verifier = make_case(spec_of("penalised", batch_size=1), 0, 0, DEVICE), MaskedVerifier()
    check(verifier, case, verifier.verify(*case.inputs()))
    monkeypatch.setattr(launches, "shape_in_place", dropping)
    with pytest.raises(WrongResultError, match=r"row 0 .*: the logit of token \d+ is .*, by the sampling parameters"):
        check(verifier, case, verifier.verify(*case.inputs()))


@pytest.mark.parametrize("name", ["penalised", "biased"])
def test_a_verifier_that_is_wrong_on_shaped_rows_fails_the_check(name):
    case, verifier = make_case(spec_of(name, batch_size=8), 0, 0, CPU), Broken("one token off")
    with pytest.raises(WrongResultError, match="request 3 emits .* by the token rule it is"):
        check(verifier, case, verifier.verify(*case.inputs()))


def test_a_verifier_of_raw_rows_fails_the_check():
    """Whoever verifies before anything is banned emits what is banned."""
    case = make_case(spec_of("allowed", batch_size=8), 0, 0, CPU)
    raw: Case = dataclasses.replace(case, target_params=dataclasses.replace(case.target_params, shaping=None))
    verifier = MaskedVerifier()
    with pytest.raises(WrongResultError, match="by the token rule it is"):
        check(verifier, case, verifier.verify(*raw.inputs()))


# --- What is refused or left out ---


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"seconds": -1}, r"protocol\.seconds=-1: no time in seconds\. Use a number from 0"),
        ({"budget": "long"}, r"protocol\.budget=long: no time in seconds"),
        ({"seconds": float("inf")}, r"protocol\.seconds=inf: no time in seconds"),
        ({"budget": float("nan")}, r"protocol\.budget=nan: no time in seconds"),
        ({"cpu_logits": 1.5}, r"protocol\.cpu_logits=1\.5: not a count"),
        ({"vocabulary": 1}, r"protocol\.vocabulary=1: not a count\. Use a whole number from 2 to 16777216"),
        ({"context": 0}, r"protocol\.context=0: not a count\. Use a whole number from 1 to 1048576"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_settings_are_named(settings, says):
    with pytest.raises(ConfigError, match=says):
        protocol(**settings)


def test_an_id_beyond_a_vocabulary_is_refused_before_anything_is_timed():
    with pytest.raises(ConfigError) as caught:
        protocol(vocabulary=40).specs(context(MaskedVerifier()))
    assert (caught.value.key, caught.value.value) == ("protocol.samplers.allowed.allowed_token_ids", 64)
    assert caught.value.problem == "id 64 is beyond the vocabulary of 40"
    assert caught.value.remedy == "Use ids from 0 to 39, or leave that sampler out of protocol.grid."
    sampling = SamplingParams(logit_bias={90: 1.0})
    with pytest.raises(ConfigError, match=r"^sampler\.logit_bias=90: id 90 is beyond the vocabulary of 67"):
        protocol().specs(context(MaskedVerifier(), sampling=sampling))


def test_an_engines_own_verifier_is_not_timed_with_penalties():
    rows = protocol(rounds=1).run(context(Broken("none", "its own"), dtype=torch.float32)).tables[LATENCY]
    assert [row.skipped is None for row in rows.rows] == [True, False, False, False]
    assert "its engine penalises and bans in ways of its own" in rows.rows[1].skipped


# --- The report ---


def test_the_report_says_which_cases_meet_the_goal():
    def case(times: float, **changes: object) -> dict[str, object]:
        numbers = {"plain_us": 40.0, "plain_us_low": 39.0, "plain_us_high": 41.0, "context": 1024}
        ratio = {"times_plain": times, "times_plain_low": times - 0.01, "times_plain_high": times + 0.01}
        return {"variant": "sampler=penalised", **numbers, **ratio, **changes}

    rows = frame({}, case(1.1), case(1.2), case(1.145), case(1.0, device="cpu"), case(1.0, comparable=False))
    table = verifier_latency.shaping(rows[rows["times_plain"].notna()])
    assert table.shown["at most 1.15"].tolist() == ["met", "missed", "open", "not comparable", "not comparable"]
    assert table.shown["ratio"][0] == "1.10 [1.09, 1.11]"
    assert table.shown["parameters"].tolist() == ["penalised"] * 5
