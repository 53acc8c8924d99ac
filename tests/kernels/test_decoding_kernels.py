"""Decoding with drafts, bonus tokens, cutoffs and uniforms from kernels, which are interpreted if there is no GPU."""

import pytest

from specbench.decoding import Request
from specbench.models import load_pair
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams, where
from tests.helpers.cases import decoder
from tests.helpers.kernel_cases import DEVICE


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(temperature=0.8, top_k=20), SamplingParams(), SamplingParams(temperature=0.0)],
    ids=["top-k", "plain", "greedy"],
)
@pytest.mark.parametrize("made", [MaskedVerifier, FusedVerifier])
@pytest.mark.usefixtures("few_programs")
def test_the_kernels_decode_the_text_of_their_plain_twins(pair, monkeypatch, sampling, made):
    if DEVICE.type == "cuda":
        pair = load_pair("embedded:target", "embedded:draft", device="cuda", dtype="float32")
    requests = [Request(name, tuple(pair.encode(f"def {name}(")), 7, sampling, 5) for name in ("add", "mean")]

    def texts(gamma: int) -> list[list[int]]:
        return [list(each.token_ids) for each in decoder(pair, gamma, verifier=made()).run(requests)]

    monkeypatch.setattr(where, "by_kernels", lambda _: False)
    plain = [texts(gamma) for gamma in (0, 2)]
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    assert [texts(gamma) for gamma in (0, 2)] == plain
