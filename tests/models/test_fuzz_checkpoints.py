"""Checkpoints that hypothesis makes up: each loads, with numbers for weights, or is refused in words.

tests/helpers/broken_checkpoints.py has cases written by hand, with the words of each message.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.models import load_pair
from tests.helpers.bounded import refusal
from tests.helpers.mutations import json_files, safetensors_files, try_all

WEIGHTS = "model.safetensors"
COUNTS = pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.long)])
# Libraries warn of some files before they refuse them.
pytestmark = pytest.mark.filterwarnings("ignore")


def smallest(folder: Path) -> Path:
    """A whole checkpoint of a few hundred weights, with a tokenizer of all bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, bos_token_id=256, eos_token_id=257,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # ty: ignore
    tokenizer.decoder = decoders.ByteLevel()  # ty: ignore
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, bytes]:
    """The files of a good checkpoint."""
    folder = smallest(tmp_path_factory.mktemp("good"))
    assert load(folder) is None
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def load(folder: Path) -> str | None:
    """What was said against a checkpoint; None if it loaded, and then it works."""
    return refusal(lambda: check(folder), "pair.target", "pair.draft", "pair.chat", longest=1500)


def check(folder: Path) -> None:
    pair = load_pair(str(folder), str(folder), device="cpu", dtype="float32")
    prompt = pair.encode("def f(x):")
    assert all(torch.isfinite(weight).all() for weight in pair.target.parameters())
    assert all(0 <= token_id < pair.vocab_size for token_id in prompt)
    assert all(0 <= token_id < pair.vocab_size for token_id in pair.stop_ids)


def changed(good: dict[str, bytes], folder: Path, name: str, content: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file_name, whole in good.items():
        (folder / file_name).write_bytes(content if file_name == name else whole)
    return folder


@pytest.mark.cases(1)
@COUNTS
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_checkpoints_of_other_settings_load_or_are_refused(name, count, good, tmp_path):
    made = json_files(json.loads(good[name]))
    try_all(made, lambda content: load(changed(good, tmp_path / "made", name, content)), count)


@COUNTS
def test_checkpoints_of_other_weights_load_or_are_refused(count, good, tmp_path):
    made = safetensors_files(good[WEIGHTS])
    try_all(made, lambda content: load(changed(good, tmp_path / "made", WEIGHTS, content)), count)


@pytest.mark.parametrize("factor", [10**4, 10**9])
def test_no_number_of_a_config_asks_for_all_the_memory(factor, good, tmp_path):
    config = json.loads(good["config.json"])
    for key, value in config.items():
        if isinstance(value, int) and not isinstance(value, bool) and value:
            content = json.dumps(config | {key: value * factor}).encode()
            load(changed(good, tmp_path / "made", "config.json", content))
