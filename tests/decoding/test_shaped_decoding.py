"""Texts under penalties, biases, bans and a budget of thinking have the distribution of the definition.

test_ways.py has that greedy ones are those of one token at a time.
"""

from collections import Counter

import numpy as np
import pytest

from specbench.decoding import Decoder, Request
from specbench.exactness.statistics.g_tests import node_g_test
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams, resolve
from tests.decoding.test_ways import numbers_of
from tests.helpers.by_definition import shaped_logits
from tests.helpers.markov_pair import MarkovDrafter, MarkovModel, markov_pair

MIX = {
    "temperature": 0.9, "presence_penalty": 0.3, "frequency_penalty": 0.5, "repetition_penalty": 1.3,
    "logit_bias": {1: 0.6}, "bad_words": ["1 0"], "min_tokens": 2,
}  # fmt: skip
THINKS = {"temperature": 0.9, "thinking_token_budget": 1, "logit_bias": {1: -0.5}}
LENGTH, COUNT, STOP = 4, 6_000, 2


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("verifier", "mapping"),
    [(MaskedVerifier(), MIX), (BlockVerifier(), MIX), (BlockVerifier(), THINKS)],
    ids=["token", "block", "thinking"],
)
def test_texts_have_the_distribution_of_the_definition(verifier, mapping):
    """6,000 texts of up to four tokens of a stop token and two others against their tiny probabilities. False alarm
    1e-9. Leaving the drafted tokens out of the counts, of bad words or of min_tokens is found with p below 1e-100."""
    p, q = markov_pair(vocabulary=3, closeness=0.5, seed=1)
    sampling = resolve(SamplingParams.from_mapping(mapping), numbers_of, [STOP], 3, thinking_ids=(0, 1))
    made = [Request(str(i), (0, 1), i, sampling, LENGTH) for i in range(COUNT)]
    decoding = Decoder(MarkovModel(p), MarkovDrafter(q), verifier, 3, frozenset({STOP}))
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, COUNT, 3_000):
        counts.update(tuple(completion.token_ids) for completion in decoding.run(made[start : start + 3_000]))
    probs = dict(ended_texts(p, sampling, (0, 1), ()))
    assert sum(probs.values()) == pytest.approx(1)
    assert set(counts) <= set(probs)
    assert node_g_test(np.array([[counts[text] for text in probs]]), np.array([[*probs.values()]])).p_value > 1e-9


def ended_texts(p, sampling, prompt, text):
    """Every text that may come, and its probability."""
    if len(text) == LENGTH or (text and text[-1] == STOP):
        yield text, 1.0
        return
    logits = np.log(p[[*prompt, *text][-1]]).tolist()
    weights = np.exp(np.array(shaped_logits(logits, sampling, prompt, text)) / sampling.temperature)
    for token, weight in enumerate(weights / weights.sum()):
        for whole, prob in ended_texts(p, sampling, prompt, (*text, token)):
            yield whole, weight * prob
