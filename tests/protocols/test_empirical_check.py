"""The empirical-against-target check of a run: it passes a sound verifier and fails a biased one, on the real pair."""

import pytest
import torch

from specbench.exactness.zoo.accept import AcceptsEverything
from specbench.protocols.empirical import CheckSettings, check_first_tokens, uncertain_prefix
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.helpers.contexts import model_context

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
