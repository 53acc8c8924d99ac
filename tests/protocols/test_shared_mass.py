"""How much of a target a draft of another vocabulary can say: the same from a run's trace as from a pass of its own."""

from __future__ import annotations

import pytest
import torch

from specbench.protocols import scoring
from specbench.protocols.record import recorded
from specbench.protocols.scoring import shared_fields
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import make_requests
from tests.helpers.contexts import model_context
from tests.helpers.vocabularies import letter_pair


@pytest.mark.usefixtures("unchecked")
def test_texts_that_were_scored_are_not_scored_again(monkeypatch):
    """Ragged texts, two of them in a batch. Catches another model's probabilities, and those of another token."""
    pair = letter_pair(["a", "b", "ab", "ba", "aba"], ["a", "b", "ab"])
    sampling = SamplingParams(temperature=0.7)
    requests = make_requests(pair, 3, sampling)
    settings = {"sampling": sampling, "gamma": 2, "dtype": torch.float64, "names": ("T", "D")}
    context = model_context(pair, requests=requests, **settings)
    completions = context.decoder(0).run(requests)
    expected = shared_fields(context, completions)
    assert 0.01 < expected["shared_mass"] < 0.99
    scored = recorded(context, requests, completions).columns
    monkeypatch.setattr(scoring, "logits_along", None)
    assert shared_fields(context, completions, scored) == pytest.approx(expected, abs=1e-5)
