"""How much of a target a draft of another vocabulary can say: the same from a run's trace as from a pass of its own."""

from __future__ import annotations

import pytest
import torch

from specbench.drafters.model import ModelDrafter
from specbench.models import CachedModel
from specbench.protocols import ModelContext, shared
from specbench.protocols.record import recorded
from specbench.protocols.shared import shared_fields
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.helpers.cases import bound
from tests.helpers.vocabularies import letter_pair


@pytest.mark.usefixtures("unchecked")
def test_texts_that_were_scored_are_not_scored_again(monkeypatch):
    """Ragged texts, two of them in a batch. Catches another model's probabilities, and those of another token."""
    pair = letter_pair(["a", "b", "ab", "ba", "aba"], ["a", "b", "ab"])
    sampling = SamplingParams(temperature=0.7)
    requests = make_requests(pair, 3, sampling)
    context = ModelContext(
        verifier=MaskedVerifier(), verifier_name="masked", sampling=sampling, gamma=2, batch_size=2, seed=0,
        device=torch.device("cpu"), dtype=torch.float64, title="", command="", names=("T", "D"), pair=pair,
        target=CachedModel(pair.target, pair.vocab_size, "target"), drafter=bound(ModelDrafter(), pair),
        requests=requests,
    )  # fmt: skip
    completions = context.decoder(0).run(requests)
    expected = shared_fields(context, completions)
    assert 0.01 < expected["shared_mass"] < 0.99
    scored = recorded(context, requests, completions).columns
    monkeypatch.setattr(shared, "logits_along", None)
    assert shared_fields(context, completions, scored) == pytest.approx(expected, abs=1e-5)
