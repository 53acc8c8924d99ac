"""The pieces of the protocol latency: cases, byte floor, timer, intervals."""

import dataclasses
import warnings
from typing import Any, cast

import numpy as np
import pytest
import torch

from specbench.benchmark.check import check
from specbench.benchmark.floor import floor_bytes
from specbench.benchmark.grid import cases, samplers
from specbench.benchmark.synthetic import make_case
from specbench.benchmark.timer import DeviceTimer, calls_by_host, kernels_run
from specbench.core.errors import ConfigError
from specbench.core.rng import Stream
from specbench.metrics.intervals import median, ratio_of_medians
from specbench.rules import batched
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import inverse_cdf
from tests.helpers.cases import BASE, CPU, TRUNCATED

# --- The byte floor, counted by hand: V = 100, 2 bytes; in units of a row, 200 bytes ---
DRAFTED, ACCEPTED = [4, 4, 0, 2], [4, 1, 0, 0]  # whole block, rejection, nothing drafted, rejection


@pytest.mark.parametrize(
    ("rule", "settings", "rows"),
    [
        # 10 drafted rows; p and q of 2 rejected rows; bonus of the whole block and of the request without a draft
        ("token", {}, 10 + 2 * 2 + 2),
        ("token", {"draft_probabilities": False}, 10 + 2 + 2),  # a rejected row's p again, no q
        ("token", {"greedy": True}, 10 + 2),
        ("block", {}, 10 + 2 * 10 + 2),  # p and q of every drafted row again
        ("block", {"draft_probabilities": False}, 10 + 2 + 2),
        ("block", {"greedy": True}, 10 + 2),
        ("vllm_v1", {}, 10 + 2 * 2 + 2),  # an engine's verifier has the token rule's floor
    ],
)
def test_floor_counted_by_hand(rule, settings, rows):
    assert floor_bytes(rule, 100, 2, np.array(DRAFTED), np.array(ACCEPTED), **settings) == 200 * rows


# --- The grid ---


def test_grid_is_a_cross_product_over_the_base_and_names_each_case_once():
    sampling_by_name = samplers(
        {"greedy": {"temperature": 0.0}, "one_hot": {"draft_probabilities": False}}, BASE.sampling
    )
    grid = [{"batch_size": [1, 8]}, {"gamma": [2, 4], "batch_size": [8]}, {"sampler": ["greedy", "one_hot"]}]
    specs = cases(BASE, grid, sampling_by_name)
    assert [(c.batch_size, c.variant(BASE)) for c in specs] == [
        (1, "base"),
        (8, "base"),
        (8, "gamma=2"),
        (16, "sampler=greedy"),
        (16, "sampler=one_hot"),
    ]
    assert specs[3].sampling.greedy
    assert specs[3].draft_probabilities
    assert not specs[4].draft_probabilities
    assert specs[4].sampling == BASE.sampling


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ([], r"protocol\.grid=\[\]: not a list of cases\. Write \[\{batch_size"),
        (3, r"protocol\.grid=3: not a list of cases"),
        ([{"batch": [1]}], r"protocol\.grid\.batch=\[1\]: unknown axis\. Use batch_size"),
        ([{"batch_size": 1}], r"protocol\.grid\.batch_size=1: not a list of values"),
        ([{"batch_size": []}], "not a list of values"),
        ([{"batch_size": [0]}], r"protocol\.grid\.batch_size=0: not in 1\.\.65536"),
        ([{"dtype": ["float8"]}], r"protocol\.grid\.dtype=float8: unknown\. Use float32, bfloat16"),
        ([{"sampler": ["hot"]}], r"protocol\.grid\.sampler=hot: not in protocol\.samplers\. Use temperature"),
        ([[1]], "not a set of axes"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_grids_are_named(grid, says):
    with pytest.raises(ConfigError, match=says):
        cases(BASE, grid, samplers({}, BASE.sampling))


@pytest.mark.usefixtures("unchecked")
def test_bad_samplers_are_named():
    with pytest.raises(ConfigError, match=r"protocol\.samplers\.hot\.heat=2: unknown key"):
        samplers({"hot": {"heat": 2}}, BASE.sampling)
    with pytest.raises(ConfigError, match=r"^protocol\.samplers\.hot\.top_p=2.0: outside"):
        samplers({"hot": {"top_p": 2.0}}, BASE.sampling)
    for wrong, key in ((None, "protocol.samplers=None"), ({"hot": 3}, "protocol.samplers.hot=3")):
        with pytest.raises(ConfigError, match=f"^{key}: no parameters by name"):
            samplers(cast("Any", wrong), BASE.sampling)


# --- Synthetic cases ---


def test_cases_are_reproducible_and_change_with_the_round():
    first, again, other = (make_case(BASE, 3, number, CPU) for number in (0, 0, 1))
    assert torch.equal(first.target_logits, again.target_logits)
    assert torch.equal(first.token_ids, again.token_ids)
    assert not torch.equal(first.target_logits, other.target_logits)


def test_logits_look_like_a_language_models():
    """Peaked, with an overlap of 0.7 to 0.85: 200 rows, whose mean overlap has a standard error of 0.012."""
    spec = dataclasses.replace(BASE, batch_size=50, vocabulary=32000)
    case = make_case(spec, 0, 0, CPU)
    draft, target, _ = case.inputs()
    p, q = target.select(batched.target_row_of(draft)).probs(), draft.rows.probs()
    assert 0.7 < float(torch.minimum(p, q).sum(1).mean()) < 0.85
    assert 0.5 < float(torch.special.entr(p).sum(1).mean()) < 3.0
    assert 0.4 < float(p.amax(1).mean()) < 0.75
    bonus = target.probs()[spec.gamma :: spec.gamma + 1]
    assert 0.5 < float(torch.special.entr(bonus).sum(1).mean()) < 3.0


@pytest.mark.parametrize("spec", [BASE, TRUNCATED], ids=["temperature", "truncated"])
def test_drafts_are_sampled_from_their_rows(spec):
    case = make_case(spec, 0, 0, CPU)
    draft, _, streams = case.inputs()
    u = streams.uniform(Stream.DRAFT)[:, : spec.gamma].flatten()
    assert torch.equal(draft.token_ids, inverse_cdf(draft.rows.probs(), u))


def test_nothing_is_remembered_between_calls():
    case = make_case(BASE, 0, 0, CPU)
    first, second = case.inputs(), case.inputs()
    assert first[1].log_normalizer is None
    assert first[0].rows.log_normalizer is not None
    for one, other in zip(first, second, strict=True):
        assert one is not other
    # Engines hold the small tensors of a batch from step to step, and adapters know them by identity.
    assert first[1].cutoff is second[1].cutoff
    assert first[0].token_ids is second[0].token_ids


def test_truncation_is_part_of_the_work_unless_cutoffs_are_known():
    case = make_case(TRUNCATED, 0, 0, CPU)
    assert case.inputs()[1] is not case.inputs()[1]
    assert case.inputs(cutoffs_known=True)[1] is case.inputs(cutoffs_known=True)[1]
    kept = case.target_logits >= case.target().cutoff[:, None]
    assert (kept.sum(1) < 60).all()


# --- The timer, on a CPU ---


@pytest.mark.parametrize("flush", ["write", "read"])
def test_bandwidth_is_positive(flush):
    assert DeviceTimer(CPU, flush).copy_bandwidth(repeats=2) > 1e6


def test_unknown_flush_is_named():
    with pytest.raises(ConfigError, match=r"protocol\.flush=rinse: unknown\. Use write or read"):
        DeviceTimer(CPU, "rinse")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    device = torch.device("cuda")

    def test_a_verifier_is_captured_and_its_replays_write_the_outcome(self):
        case, timer = make_case(BASE, 0, 0, self.device), DeviceTimer(self.device)
        verifier = MaskedVerifier()
        captured = timer.capture(lambda: verifier.verify(*case.inputs()))
        assert captured.graph is not None
        captured.outcome.token_ids.fill_(-7)
        times = timer.device_times(captured, lambda: verifier.verify(*case.inputs()), 5)
        assert len(times) == 5
        check(verifier, case, captured.outcome)

    def test_a_verifier_that_waits_is_timed_without_a_graph(self):
        case, timer = make_case(BASE, 0, 0, self.device), DeviceTimer(self.device)
        verifier = NaiveVerifier()
        captured = timer.capture(lambda: verifier.verify(*case.inputs()))
        assert captured.graph is None
        assert "waits for the host" in str(captured.why_not)
        assert len(timer.device_times(captured, lambda: verifier.verify(*case.inputs()), 3)) == 3

    def test_an_empty_graph_takes_a_few_microseconds(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert DeviceTimer(self.device).empty_graph_us(repeats=5) > 0

    def test_kernels_inside_a_graph_are_counted_one_by_one(self):
        x, graph = torch.ones(9, device=self.device), torch.cuda.CUDAGraph()
        x += 1  # loads what the capture needs
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(3):
                x += 1
        assert kernels_run(self.device, graph.replay) == 3
        assert kernels_run(self.device, lambda: x.mul_(2)) == 1
        assert kernels_run(CPU, graph.replay) is None


# --- Medians and their intervals ---


def test_intervals_know_of_rounds():
    """Two rounds that differ: an interval from pooled replays would be far narrower than the rounds are apart."""
    samples = np.stack([np.full(50, 10.0), np.full(50, 12.0)])
    estimate = median(samples)
    assert (estimate.low, estimate.high) == (10.0, 12.0)
    one_round = median(samples[:1])
    assert np.isnan([one_round.low, one_round.high]).all()
    ratio = ratio_of_medians(np.full((3, 5), 6.0), np.full((2, 7), 2.0))
    assert (ratio.value, ratio.low, ratio.high) == (3.0, 3.0, 3.0)


def test_interval_covers_the_median():
    """200 made-up runs whose rounds do not differ; at a true coverage of 0.95, 170 of them are missed once in 1e8."""
    generator = np.random.default_rng(0)
    runs = generator.exponential(size=(200, 4, 20))
    covered = [(e := median(run)).low <= np.log(2) <= e.high for run in runs]
    assert np.mean(covered) > 0.85


def test_slow_calls_are_timed_once_with_the_hosts_part():
    """By their median: one slow call among quick ones is a disturbance. Ten calls of 20 ms take the 0.2 seconds."""
    assert calls_by_host([10.0, 20.0, 1e6], 0.2, 5) == 5
    assert calls_by_host([10.0, 2e4, 3e4], 0.2, 5) == 1
    assert calls_by_host([1.9e4], 0.2, 5) == 5
