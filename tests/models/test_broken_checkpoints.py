"""Broken checkpoints: one clear message each, before anything is loaded where that can be known."""

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.core.errors import SpecbenchError
from specbench.models import load_pair
from specbench.models.checkpoint import locate
from tests.helpers.broken_checkpoints import Broken, broken_checkpoints, reasons


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> dict[str, Broken]:
    """All of them, by reason."""
    return {checkpoint.reason: checkpoint for checkpoint in broken_checkpoints(tmp_path_factory.mktemp("broken"))}


@pytest.mark.parametrize("reason", reasons())
def test_a_broken_checkpoint_is_refused_in_words(reason, broken, monkeypatch):
    case = broken[reason]
    if case.in_the_folder:
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("something was loaded"))
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("a model was loaded"))
        with pytest.raises(SpecbenchError) as located:
            locate("pair.target", str(case.path))
    with pytest.raises(SpecbenchError) as caught:
        load_pair(str(case.path), "embedded:draft", device="cpu")
    message = str(caught.value)
    for words in case.says:
        assert words in message
    assert message.startswith(("pair.target", "pair.chat"))
    assert message.endswith(".")
    assert "\n" not in message
    assert not case.in_the_folder or str(located.value) == message
