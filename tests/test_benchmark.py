"""The pieces of the protocol latency: cases, byte floor, timer, and the check that what was timed is right."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from specbench.benchmark.check import WrongResultError, check, check_again, cutoff_excess, expected_accepted
from specbench.benchmark.floor import floor_bytes
from specbench.benchmark.grid import CaseSpec, cases, samplers
from specbench.benchmark.synthetic import make_case
from specbench.benchmark.timer import DeviceTimer
from specbench.errors import ConfigError
from specbench.metrics.latency import median, ratio_of_medians
from specbench.rng import Stream, Streams
from specbench.sampling import RowParams, SamplingParams, inverse_cdf, logit_rows
from specbench.types import Draft, LogitRows, Verification
from specbench.verifiers import batched
from specbench.verifiers.block import BlockVerifier
from specbench.verifiers.masked import MaskedVerifier
from specbench.verifiers.naive import NaiveVerifier

CPU = torch.device("cpu")
BASE = CaseSpec(16, 501, 4, "bfloat16", "temperature", SamplingParams(temperature=0.8))
TRUNCATED = dataclasses.replace(
    BASE, sampler="truncated", sampling=SamplingParams(temperature=0.8, top_k=50, top_p=0.9)
)


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


def test_floor_of_the_headline():
    """Field figures: 12 bytes a vocabulary entry and request at gamma 4 in bf16 after a rejection, block 24."""
    rejected = np.array([3])
    assert floor_bytes("token", 128256, 2, np.array([4]), rejected) == 12 * 128256
    assert floor_bytes("block", 128256, 2, np.array([4]), rejected) == 24 * 128256


# --- The grid ---


def test_grid_is_a_cross_product_over_the_base_and_names_each_case_once():
    known = samplers({"greedy": {"temperature": 0.0}, "one_hot": {"draft_probabilities": False}}, BASE.sampling)
    grid = [{"batch_size": [1, 8]}, {"gamma": [2, 4], "batch_size": [8]}, {"sampler": ["greedy", "one_hot"]}]
    found = cases(BASE, grid, known)
    assert [(c.batch_size, c.variant(BASE)) for c in found] == [
        (1, "base"),
        (8, "base"),
        (8, "gamma=2"),
        (16, "sampler=greedy"),
        (16, "sampler=one_hot"),
    ]
    assert found[3].sampling.greedy
    assert found[3].draft_probabilities
    assert not found[4].draft_probabilities
    assert found[4].sampling == BASE.sampling


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ([{"batch": [1]}], r"protocol\.grid\.batch=\[1\]: unknown axis\. Use batch_size"),
        ([{"batch_size": 1}], r"protocol\.grid\.batch_size=1: not a list of values"),
        ([{"batch_size": []}], "not a list of values"),
        ([{"batch_size": [0]}], r"protocol\.grid\.batch_size=0: not in 1\.\.65536"),
        ([{"dtype": ["float8"]}], r"protocol\.grid\.dtype=float8: unknown\. Use bfloat16"),
        ([{"sampler": ["hot"]}], r"protocol\.grid\.sampler=hot: not in protocol\.samplers\. Use temperature"),
        ([[1]], "not a set of axes"),
    ],
)
def test_bad_grids_are_named(grid, says):
    with pytest.raises(ConfigError, match=says):
        cases(BASE, grid, samplers({}, BASE.sampling))


def test_bad_samplers_are_named():
    with pytest.raises(ConfigError, match=r"protocol\.samplers\.hot\.heat=2: unknown key"):
        samplers({"hot": {"heat": 2}}, BASE.sampling)
    with pytest.raises(ConfigError, match=r"top_p=2.0: outside"):
        samplers({"hot": {"top_p": 2.0}}, BASE.sampling)


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


def test_host_times_count_each_call_and_flush_before_it():
    timer, order = DeviceTimer(CPU), []
    flush = timer.flush
    timer.flush = lambda: (order.append("flush"), flush())
    times = timer.host_times(lambda: order.append("call"), 3)
    assert order == ["flush", "call"] * 3
    assert len(times) == 3
    assert min(times) > 0


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


# --- Medians and their intervals ---


def test_intervals_know_of_rounds():
    """Two rounds that differ: an interval from pooled replays would be far narrower than the rounds are apart."""
    samples = np.stack([np.full(50, 10.0), np.full(50, 12.0)])
    estimate = median(samples)
    assert (estimate.low, estimate.high) == (10.0, 12.0)
    ratio = ratio_of_medians(np.full((3, 5), 6.0), np.full((2, 7), 2.0))
    assert (ratio.value, ratio.low, ratio.high) == (3.0, 3.0, 3.0)


def test_interval_covers_the_median():
    """200 made-up runs whose rounds do not differ; at a true coverage of 0.95, 170 of them are missed once in 1e8."""
    generator = np.random.default_rng(0)
    runs = generator.exponential(size=(200, 4, 20))
    covered = [(e := median(run)).low <= np.log(2) <= e.high for run in runs]
    assert np.mean(covered) > 0.85


# --- The check notices ---


@dataclasses.dataclass
class Broken:
    """A verifier with one mistake, made where ``mistake`` says; rule and claims as given."""

    mistake: str
    rule: str = "token"
    lossless: bool = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        right = (BlockVerifier() if self.rule == "block" else MaskedVerifier()).verify(draft, target, streams)
        token_ids, accepted = right.token_ids.clone(), right.num_accepted.clone()
        if self.mistake == "residual is the target":
            p, _ = batched.next_rows(draft, target, accepted)
            token_ids = batched.assemble(draft, accepted, inverse_cdf(p, streams.uniform(Stream.EMIT)[:, 0])).token_ids
        elif self.mistake == "accepts one too many":
            b = int((accepted < draft.num_draft_tokens).nonzero()[0])
            accepted[b] += 1
            token_ids[b, accepted[b] - 1] = draft.token_ids[draft.first_row[b] + accepted[b] - 1]
            token_ids[b, accepted[b]] = 5
        elif self.mistake == "no padding":
            token_ids[0] = token_ids[0].clamp(min=0)
        elif self.mistake == "one token off":
            token_ids[3, accepted[3]] ^= 1
        elif self.mistake == "everything accepted":
            p, _ = batched.next_rows(draft, target, draft.num_draft_tokens)
            accepted = draft.num_draft_tokens.clone()
            token_ids = batched.assemble(draft, accepted, inverse_cdf(p, streams.uniform(Stream.EMIT)[:, 0])).token_ids
        elif self.mistake == "outside the support":
            token_ids[2, accepted[2]] = int(target.probs()[:, :].amin(0).argmin())
        return Verification(token_ids, accepted)


TWINNED = ["residual is the target", "accepts one too many", "no padding", "one token off", "everything accepted"]


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("mistake", TWINNED)
def test_a_wrong_token_fails_the_check(mistake, rule):
    case = make_case(BASE, 0, 0, CPU)
    verifier = Broken(mistake, rule)
    with pytest.raises(WrongResultError, match=r"request \d+ emits .* by the (token|block) rule it is"):
        check(verifier, case, verifier.verify(*case.inputs()))


@pytest.mark.parametrize("mistake", ["no padding", "everything accepted", "outside the support"])
def test_a_verifier_with_noise_of_its_own_is_held_to_form_support_and_acceptance(mistake):
    case = make_case(dataclasses.replace(TRUNCATED, batch_size=64), 0, 0, CPU)
    verifier = Broken(mistake, "its own")
    with pytest.raises(WrongResultError):
        check(verifier, case, verifier.verify(*case.inputs()))


@pytest.mark.parametrize("spec", [BASE, TRUNCATED], ids=["temperature", "truncated"])
def test_right_results_pass(spec):
    case = make_case(spec, 0, 0, CPU)
    for verifier in (MaskedVerifier(), NaiveVerifier(), BlockVerifier(), Broken("none", "its own")):
        outcome = verifier.verify(*case.inputs())
        checked = check(verifier, case, outcome)
        assert checked.num_accepted == outcome.num_accepted.tolist()
        assert checked.rounding == 0
        check_again(verifier, case, outcome, checked)


def test_a_replay_that_writes_something_else_fails_the_check():
    case, verifier = make_case(BASE, 0, 0, CPU), MaskedVerifier()
    outcome = verifier.verify(*case.inputs())
    checked = check(verifier, case, outcome)
    outcome.token_ids[7, 0] = -7  # the copy that was checked is a copy
    with pytest.raises(WrongResultError, match="request 7"):
        check_again(verifier, case, outcome, checked)


def test_expected_acceptance_is_that_of_many_verifications():
    """600 steps of 16 requests: 5 standard errors of the mean and of the variance, false alarm 1e-6."""
    case = make_case(BASE, 0, 0, CPU)
    draft, target, _ = case.inputs()
    mean, variance = expected_accepted(draft, target)
    known, got = logit_rows(case.target_logits, case.target_params), []
    for step in range(600):
        streams = Streams(case.seeds, case.positions + 10_000 * step, 5)
        got.append(float(MaskedVerifier().verify(draft, known, streams).num_accepted.sum()))
    assert abs(np.mean(got) - mean) < 5 * (variance / len(got)) ** 0.5
    assert np.var(got) == pytest.approx(variance, rel=0.3)


def one_row(probs: list[float], params: SamplingParams) -> tuple[LogitRows, RowParams]:
    row_params = RowParams.of([params])
    return logit_rows(torch.tensor([probs]).double().log().float(), row_params), row_params


def test_cutoffs_differ_by_rounding_only_where_the_mass_is_next_to_top_p():
    rows, params = one_row([0.5, 0.4 - 1e-7, 0.06, 0.04 + 1e-7], SamplingParams(top_p=0.9))
    logits = rows.logits.double()[0]
    assert rows.cutoff[0] == logits[2]  # 0.9 - 1e-7 does not reach 0.9
    assert float(cutoff_excess(rows, logits[1:2], params)) == pytest.approx(1e-7, rel=0.6)
    assert float(cutoff_excess(rows, logits[3:4], params)) == pytest.approx(0.06, rel=1e-3)
    assert float(cutoff_excess(rows, rows.cutoff, params)) == 0
    few, k_params = one_row([0.5, 0.4, 0.06, 0.04], SamplingParams(top_k=2))
    assert float(cutoff_excess(few, few.logits.double()[0, 2:3], k_params)) == float("inf")
