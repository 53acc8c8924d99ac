"""Broken checkpoints: one clear message each, before anything is loaded where that can be known."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.core.errors import SpecbenchError
from specbench.models import load_pair
from specbench.models.checkpoint import locate
from tests.helpers.broken_checkpoints import BEFORE_WEIGHTS, IN_THE_FOLDER, WEIGHTS_READ
from tests.helpers.checkpoints import tiny

CASES = [
    pytest.param(*case, table is IN_THE_FOLDER, id=reason)
    for table in (IN_THE_FOLDER, BEFORE_WEIGHTS, WEIGHTS_READ)
    for reason, case in table.items()
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return tiny(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("change", "says", "in_the_folder"), CASES)
def test_a_broken_checkpoint_is_refused_in_words(change, says, in_the_folder, whole, tmp_path, monkeypatch):
    path = tmp_path / "broken"
    shutil.copytree(whole, path)
    change(path)
    if in_the_folder:
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("something was loaded"))
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("a model was loaded"))
        with pytest.raises(SpecbenchError) as located:
            locate("pair.target", str(path))
    with pytest.raises(SpecbenchError) as caught:
        load_pair(str(path), "embedded:draft", device="cpu")
    message = str(caught.value)
    for words in says:
        assert words in message
    assert message.startswith(("pair.target", "pair.chat"))
    assert message.endswith(".")
    assert "\n" not in message
    assert not in_the_folder or str(located.value) == message
