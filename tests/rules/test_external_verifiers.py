"""Other projects' verifiers: distribution, known defects, limits, and that each adapter hands over the right rows.

Where a package is not installed, a stand-in library takes its place that reads the library's input format and verifies
with ``masked``: the adapter then must agree with ``masked`` token for token, which any row or index handed over wrongly
would break. What the real functions do is tested where they are installed.
"""

import sys

import pytest
import torch
from transformers.generation import utils

from specbench.core.errors import ArgumentError, ConfigError, NotInstalledError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.exactness.fixtures import make_fixture
from specbench.exactness.statistics.g_tests import node_g_test
from specbench.exactness.steps import node_counts, verified_steps
from specbench.exactness.streams import SMALL_PAIRS, request_streams
from specbench.rules.external import adapter
from specbench.rules.external.flashinfer import FlashinferVerifier
from specbench.rules.external.transformers import TransformersVerifier
from specbench.rules.external.vllm_v1 import VllmV1Verifier
from specbench.rules.external.vllm_v2 import VllmV2Verifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Verifier
from specbench.sampling import SamplingParams
from tests.helpers.cases import CPU, MIXED, missing_device, ragged_case
from tests.helpers.stand_ins import install_flashinfer, install_vllm_v1, install_vllm_v2
from tests.helpers.threads import Meeting, in_two_threads

MAKERS = {
    "transformers": TransformersVerifier,
    "vllm_v1": VllmV1Verifier,
    "vllm_v1 kept": lambda: VllmV1Verifier(draft_probs="kept"),
    "vllm_v1 request": lambda: VllmV1Verifier(seeding="request"),
    "vllm_v2": VllmV2Verifier,
    "vllm_v2 block": lambda: VllmV2Verifier(block=True),
    "flashinfer": FlashinferVerifier,
}
WARM = SamplingParams(temperature=0.8)
CUT = SamplingParams(temperature=0.7, top_k=4, top_p=0.9)
DRAWS = 1_500  # with which recovered tokens drawn from p have a p-value below 1e-50


# --- distributions ---


def p_value(
    verifier: Verifier,
    draws: int,
    params: SamplingParams,
    dtype: torch.dtype = torch.float32,
    one_hot: bool = False,
    device: torch.device = CPU,
) -> float:
    """Of a step's joint against the target's, by a G-test of its 31 rows of five tokens; 0 for a malformed step."""
    generator = torch.Generator().manual_seed(3)
    p, q = (1.5 * torch.randn((states, 5), generator=generator) for states in (31, 6))
    fixture = make_fixture("pair", "", p.to(dtype), q.to(dtype), 2, params=(params,), deterministic=one_hot).to(device)
    steps = verified_steps(verifier, fixture, request_streams(1, SMALL_PAIRS, draws, 3, device))
    if steps.malformed.any():
        return 0.0
    return node_g_test(node_counts(steps)[2].cpu().numpy(), fixture.p.cpu().numpy()).p_value


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("params", "dtype", "one_hot"),
    [(WARM, torch.bfloat16, False), (CUT, torch.float32, False), (WARM, torch.float16, True)],
    ids=["warm bf16", "top-k and top-p fp32", "one-hot fp16"],
)
def test_transformers_keeps_the_target_distribution(params, dtype, one_hot):
    """G-test over at most 124 degrees of freedom, false alarm 1e-8."""
    assert p_value(TransformersVerifier(), DRAWS, params, dtype, one_hot) > 1e-8


def test_the_same_test_sees_a_row_in_the_wrong_place():
    """Exchanges the two scored rows of each block: what an adapter that miscounts by one would do."""

    class Shifted(TransformersVerifier):
        def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
            order = torch.arange(len(target)).view(-1, 3)[:, [1, 0, 2]].flatten()
            return super().verify(draft, target.select(order), streams)

    assert p_value(Shifted(), DRAWS, WARM) < 1e-8


def test_the_same_test_sees_that_nothing_was_emitted():
    """As with a library whose kernels were never launched."""

    class Silent(MaskedVerifier):
        def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
            accepted = torch.zeros_like(draft.num_draft_tokens)
            return Verification(torch.full((len(accepted), 3), PADDING), accepted)

    assert p_value(Silent(), DRAWS, WARM) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("params", [WARM, SamplingParams(), CUT, SamplingParams(temperature=0.0)], ids=str)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_joint_of_a_step_on_a_gpu(make, params, one_hot):
    """As above with 200,000 draws where the library is batched."""
    try:
        verifier = make()
    except NotInstalledError as error:
        pytest.skip(str(error))
    draws = 200_000 if verifier.limits.capturable else DRAWS
    assert p_value(verifier, draws, params, torch.bfloat16, one_hot, torch.device("cuda")) > 1e-8


# --- what transformers' function is known to do ---


def speculative_sampling(drafted: int, q_logits: torch.Tensor, p_logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    """One request of one drafted token; p_logits has the bonus row too."""
    options = TransformersVerifier()._options  # older releases ask for one argument more
    candidate = torch.tensor([[drafted]])
    tokens, matches = utils._speculative_sampling(candidate, q_logits[None], 1, p_logits[None], **options)
    return tokens, int(matches)


def test_transformers_accepts_a_token_of_probability_zero_where_r_is_zero(monkeypatch):
    """``r_i <= probability_ratio``: if this fails, transformers was mended, and the docstring is out of date."""
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    q_logits, p_logits = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, -torch.inf]] * 2)
    tokens, matches = speculative_sampling(2, q_logits, p_logits)
    assert matches == 1
    assert tokens[0, 0] == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_transformers_draws_nothing_from_a_row_that_bans_every_token(temperature):
    """Token 0 would be the argmax."""
    logits = torch.tensor([[0.0, 1.0, 9.0], [-torch.inf] * 3])
    target = LogitRows(logits, torch.full((2,), temperature), torch.full((2,), -torch.inf), None)
    draft = Draft(torch.tensor([2]), None, torch.tensor([1]), 1)
    with pytest.raises(RuntimeError, match="probability tensor"):
        TransformersVerifier().verify(draft, target, Streams(torch.tensor([5]), torch.tensor([7]), 2))


def test_transformers_raises_where_rounding_leaves_no_residual(monkeypatch):
    """p equals q but for the last bit of fp32, one way: the ratio rejects and max(p - q, 0) sums to 0."""
    monkeypatch.setattr(torch, "rand_like", torch.ones_like)  # next to 1 - 2^-24, the largest that torch.rand gives
    generator = torch.Generator().manual_seed(0)
    for _ in range(10_000):
        q_logits = torch.randn(1, 2, generator=generator)
        p_logits = q_logits + 7 * torch.rand(1, generator=generator)
        p, q = p_logits.softmax(-1), q_logits.softmax(-1)
        smaller = (p / q < 1 - 2**-24).nonzero()
        if len(smaller) and (p <= q).all():
            break
    else:
        pytest.fail("no such pair of rows was found")
    with pytest.raises(RuntimeError, match="probability tensor"):
        speculative_sampling(int(smaller[0, 1]), q_logits, p_logits.expand(2, -1))


# --- the adapters' wiring, against stand-in libraries ---

STAND_INS = {
    "vllm_v1": (install_vllm_v1, MAKERS["vllm_v1"]),
    "vllm_v1 kept": (install_vllm_v1, MAKERS["vllm_v1 kept"]),
    "vllm_v1 request": (install_vllm_v1, MAKERS["vllm_v1 request"]),
    "vllm_v2": (install_vllm_v2, MAKERS["vllm_v2"]),
    "flashinfer": (install_flashinfer, MAKERS["flashinfer"]),
    "flashinfer kept": (install_flashinfer, lambda: FlashinferVerifier(draft_probs="kept")),
}
stand_ins = pytest.mark.parametrize(("install", "make"), STAND_INS.values(), ids=STAND_INS.keys())
RAGGED = [0, 4, 1, 0, 3, 2, 4, 0, 1, 2]
CASES = {
    "uniform, mixed parameters": ([3] * 10, MIXED),
    "ragged, mixed parameters": (RAGGED, MIXED),
    "temperature 1 alone: raw logits": ([2] * 8, [SamplingParams()]),
    "greedy alone": ([2] * 8, [SamplingParams(temperature=0.0)]),
    "nothing drafted": ([0, 0, 0], MIXED),
    "nothing drafted: raw logits": ([0, 0, 0], [SamplingParams()]),
}


@pytest.mark.cases(20)
@stand_ins
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize(("counts", "params"), CASES.values(), ids=CASES.keys())
def test_the_library_gets_every_row_in_its_place(monkeypatch, install, make, counts, params, one_hot):
    """A wrong row, index, temperature, mask or length changes some of the tokens that ``masked`` emits."""
    for seed in range(4):
        draft, target, streams = ragged_case(counts, vocabulary=23, params=params, one_hot=one_hot, seed=seed)
        install(monkeypatch, streams)
        verifier = make()
        if not verifier.limits.ragged and (len(set(counts)) > 1 or not any(counts)):
            with pytest.raises(ArgumentError, match=r"draft\.num_draft_tokens: flashinfer"):
                verifier.verify(draft, target, streams)
            return
        unknown = LogitRows(target.logits, target.temperature, target.cutoff, None)
        expected = MaskedVerifier().verify(draft, target, streams)
        for _ in range(2):  # the second call uses what the first one kept
            got = verifier.verify(draft, unknown, streams)
            assert torch.equal(got.token_ids, expected.token_ids)
            assert torch.equal(got.num_accepted, expected.num_accepted)


def test_a_batch_shorter_than_its_bound_is_padded_to_it(monkeypatch):
    """max_draft_tokens is a bound; vLLM V1 sizes its output by the longest draft instead."""
    draft, target, streams = ragged_case([2, 1], vocabulary=11)
    install_vllm_v1(monkeypatch, streams)
    loose = Draft(draft.token_ids, draft.rows, draft.num_draft_tokens, 6)
    assert VllmV1Verifier().verify(loose, target, Streams(streams.seeds, streams.positions, 7)).token_ids.shape == (
        2,
        7,
    )


def test_flashinfer_gets_logits_that_begin_between_its_loads_from_a_copy(monkeypatch):
    """Its kernels load 16 bytes at once, and end with "misaligned address" on rows that begin elsewhere."""
    draft, target, streams = ragged_case([2, 2], vocabulary=12, params=[SamplingParams()])
    install_flashinfer(monkeypatch, streams)
    storage = torch.empty(target.logits.numel() + 1)
    storage[1:] = target.logits.flatten()
    offset = LogitRows(storage[1:].view_as(target.logits), target.temperature, target.cutoff, None)
    expected = MaskedVerifier().verify(draft, target, streams)
    assert torch.equal(FlashinferVerifier().verify(draft, offset, streams).token_ids, expected.token_ids)


def test_vllm_v2_refuses_two_temperatures(monkeypatch):
    draft, target, streams = ragged_case([2, 1], vocabulary=11, params=[SamplingParams()])
    install_vllm_v2(monkeypatch, streams)
    assert draft.rows is not None
    warmer = LogitRows(draft.rows.logits, draft.rows.temperature * 2, draft.rows.cutoff, None)
    with pytest.raises(ArgumentError, match=r"draft\.rows\.temperature"):
        VllmV2Verifier().verify(Draft(draft.token_ids, warmer, draft.num_draft_tokens, 2), target, streams)


# --- randomness ---


def test_the_global_generator_is_left_alone_and_does_not_matter():
    draft, target, streams = ragged_case([3, 0, 2], vocabulary=11)
    state = torch.get_rng_state()
    first = TransformersVerifier().verify(draft, target, streams)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(TransformersVerifier().verify(draft, target, streams).token_ids, first.token_ids)


def test_the_global_generator_is_restored_after_an_error():
    def draw_and_fail() -> None:
        with adapter.private_generator(torch.device("cpu"), 5):
            raise ZeroDivisionError(torch.rand(3))

    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_global_generator_has_one_user_at_a_time():
    meeting = Meeting()

    def draw() -> None:
        with adapter.private_generator(torch.device("cpu"), 5):
            meeting.visit()

    in_two_threads(draw)
    assert not meeting.together


def test_library_seeds_differ_by_request_and_position():
    """1,000 seeds of 63 bits: two that are equal by chance would be a matter of 5e-14."""
    requests = torch.arange(100).repeat(10)
    streams = Streams(requests, torch.arange(10).repeat_interleave(100), 1)
    seeds = adapter.library_seeds(streams)
    assert len(seeds.unique()) == 1000
    assert (seeds >= 0).all()
    # Not the words that the first drafted token was drawn by, which the libraries' Philox would meet again.
    assert not torch.equal(seeds, requests)


# --- what is kept between calls ---


def test_memo_follows_its_tensors():
    made = []
    memo: adapter.Memo[int] = adapter.Memo()
    tensor, other = torch.zeros(2), torch.zeros(2)

    def make() -> int:
        made.append(None)
        return len(made)

    assert [memo([tensor], make), memo([tensor], make)] == [1, 1]
    tensor.add_(1)
    assert memo([tensor], make) == 2
    assert memo([other], make) == 3
    assert memo([other, tensor], make) == 4
    with torch.inference_mode():  # has no version counter, so a write would go unseen
        unseen = torch.zeros(2)
        assert [memo([unseen], make), memo([unseen], make)] == [5, 6]
    assert memo([torch.zeros(2)], make) == 7  # this one dies at once
    assert memo._value is None


# --- absent packages, wrong devices ---


@pytest.mark.parametrize(
    ("make", "package"), [(VllmV1Verifier, "vllm"), (VllmV2Verifier, "vllm"), (FlashinferVerifier, "flashinfer")]
)
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, make, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotInstalledError, match=rf"verifier=external/.*pip install 'specbench\[{package}\]'") as caught:
        make()
    assert caught.value.key == "verifier"


def test_flashinfer_refuses_a_cpu(monkeypatch):
    draft, target, streams = ragged_case([2, 2], vocabulary=11)
    limits = FlashinferVerifier.limits
    install_flashinfer(monkeypatch, streams)
    monkeypatch.setattr(FlashinferVerifier, "limits", limits)
    assert "cuda" in missing_device(FlashinferVerifier())
    with pytest.raises(ArgumentError, match="target: logits on cpu; flashinfer runs on cuda alone"):
        FlashinferVerifier().verify(draft, target, streams)


@pytest.mark.parametrize("make", [VllmV1Verifier, FlashinferVerifier])
def test_an_unknown_setting_is_refused_before_the_package_is_asked_for(make):
    with pytest.raises(ConfigError, match=r"verifier\.draft_probs=cached"):
        make(draft_probs="cached")
