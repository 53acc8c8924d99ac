"""A longer example of the Python API, step by step; it runs as a test.

The question: which rule and which gamma suit a pair of models, and does the verifier keep the target's distribution?
"""

import pytest
import torch
from scipy import stats

import specbench
from specbench import SamplingParams

PROMPTS = ["def add(a, b):\n", "import os\nimport ", "class Stack:\n    def __init__(self", "for i in range("]
SAMPLING = SamplingParams(temperature=0.8, top_p=0.95)
GAMMAS = [1, 2, 4, 8]
pytestmark = pytest.mark.usefixtures("unchecked")  # for pytest alone: without its checks of every tensor's shape


@pytest.mark.thorough
def test_which_rule_and_gamma_suit_this_pair():
    # 1. Load a pair: folders, hub ids, or the embedded one. `embedded` is small enough for a laptop.
    pair = specbench.load_pair("embedded:target", "embedded:draft", device="cpu")

    # 2. Record some texts of the target once, and replay every gamma under both rules without decoding again.
    trace = specbench.record(pair, PROMPTS, sampling=SAMPLING, samples=6, max_new_tokens=24, seed=1)
    predicted = {
        rule: {prediction.gamma: prediction.acceptance_length for prediction in specbench.replay(trace, rule, GAMMAS)}
        for rule in ("token", "block")
    }
    # Block verification never accepts fewer tokens on average, and with one drafted token the rules are the same.
    assert all(predicted["block"][gamma] >= predicted["token"][gamma] - 1e-9 for gamma in GAMMAS)
    assert abs(predicted["block"][1] - predicted["token"][1]) < 1e-9
    # A longer draft emits more tokens a step; whether it is faster, `+exp=gamma_sweep` measures.
    assert predicted["block"][1] < predicted["block"][4]

    # 3. Decode with the block rule, and look at what came out.
    texts = specbench.decode(pair, PROMPTS * 6, gamma=4, verifier="block", sampling=SAMPLING, max_new_tokens=24, seed=2)
    assert len(texts) == 24
    assert all(text.text and text.finished in ("stop", "length") for text in texts)
    # The prediction is of other texts of the same pair. With these seeds the two are 0.05 apart; 0.5 is far.
    assert abs(texts.acceptance_length - predicted["block"][4]) < 0.5

    # 4. Verify 30,000 requests of logits made by hand at once: is the first token distributed as the target's own?
    requests, vocabulary = 30_000, 5
    generator = torch.Generator().manual_seed(3)
    target_logits, draft_logits = torch.randn(2, 3, vocabulary, generator=generator)  # two drafted tokens and the bonus
    drafted = draft_logits[:2].softmax(dim=1).multinomial(requests, replacement=True, generator=generator).T
    result = specbench.verify(
        target_logits.expand(requests, 3, vocabulary),
        drafted,
        draft_logits[:2].expand(requests, 2, vocabulary),
        seeds=4,
        positions=0,
        verifier="block",
    )
    counts = torch.bincount(result.token_ids[:, 0], minlength=vocabulary).numpy()
    expected = requests * target_logits[0].double().softmax(dim=0).numpy()
    assert stats.chisquare(counts, expected).pvalue > 1e-6

    # 5. That was one distribution. A certificate looks for a bias everywhere (here with a small suite).
    certificate = specbench.certify("block", draws=5000, serial_draws=0, calls=20, use_calls=0, locating_seconds=0.5)
    assert certificate.verdict in ("lossless", "not rejected")  # so few requests may leave more than the word allows
    assert certificate.headline in certificate.page
    assert certificate.tv_upper_bound is not None
    assert certificate.tv_upper_bound < 0.1
