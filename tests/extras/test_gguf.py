"""A GGUF file becomes a checkpoint with the same logits, tokens and chat template, or an error in words."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.core.errors import ConfigError, ModelError, NotInstalledError
from specbench.extras.gguf.conversion import convert
from specbench.models import load_pair
from tests.helpers.checkpoints import tiny
from tests.helpers.command_lines import new_process

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
TEXTS = ["def add(a, b):\n    return a + b", "café 🙂\t\x00end"]
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def name_of(weight: str) -> str:
    for ours, theirs in _NAMES.items():
        weight = weight.replace(ours, theirs)
    return weight.replace("model.layers.", "blk.")


def paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries and keys in the order of llama.cpp, whose rotary positions turn neighbours."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


Edit = Callable[[dict[str, np.ndarray]], object]


def written(
    folder: Path, quantised: bool, begins: bool = True, edit: Edit = lambda _: None, path: Path | None = None
) -> Path:
    """The GGUF file of a checkpoint folder, as llama.cpp's converter makes it, with its tensors changed by ``edit``."""
    path = path or folder.with_suffix(".gguf")
    config, tokenizer = json.loads((folder / "config.json").read_text()), AutoTokenizer.from_pretrained(folder)
    raw = json.loads((folder / "tokenizer.json").read_text())["model"]
    made = gguf.GGUFWriter(path, "llama")
    made.add_context_length(config["max_position_embeddings"])
    made.add_block_count(config["num_hidden_layers"])
    made.add_embedding_length(config["hidden_size"])
    made.add_feed_forward_length(config["intermediate_size"])
    made.add_head_count(config["num_attention_heads"])
    made.add_head_count_kv(config["num_key_value_heads"])
    made.add_rope_dimension_count(config["head_dim"])
    made.add_rope_freq_base(10_000.0)
    made.add_layer_norm_rms_eps(config["rms_norm_eps"])
    made.add_vocab_size(config["vocab_size"])
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("default")
    made.add_token_list([tokenizer.convert_ids_to_tokens(i) for i in range(config["vocab_size"])])
    special = set(tokenizer.all_special_ids)
    made.add_token_types([3 if i in special else 1 for i in range(config["vocab_size"])])
    made.add_token_merges([" ".join(pair) for pair in raw["merges"]])
    made.add_bos_token_id(0)
    made.add_eos_token_id(0)
    made.add_add_bos_token(begins)
    made.add_chat_template(TEMPLATE)
    tensors = {}
    for name, tensor in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
        weight = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            weight = paired(weight, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        tensors[name_of(name)] = np.ascontiguousarray(weight)
    edit(tensors)
    for name, weight in tensors.items():
        if quantised and weight.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            made.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            made.add_tensor(name, weight)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return tiny(tmp_path_factory.mktemp("gguf") / "m", head_dim=16, num_key_value_heads=1, num_hidden_layers=2)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("quantised", "begins"), [(False, True), (True, False)])
def test_a_converted_file_is_the_model_it_was_made_of(original, tmp_path, quantised, begins):
    convert(written(original, quantised, begins), tmp_path / "new" / "made")
    made = str(tmp_path / "new" / "made")
    pair = load_pair(made, str(original), device="cpu", dtype="float32")  # one vocabulary, to the id
    before = AutoTokenizer.from_pretrained(original)
    for text in TEXTS:
        assert pair.tokenizer(text)["input_ids"] == before(text)["input_ids"][not begins :]
    assert pair.chat
    assert pair.tokenizer.chat_template == TEMPLATE
    assert pair.stop_ids == {0}
    ids = torch.tensor([before(TEXTS[0])["input_ids"]])
    with torch.inference_mode():
        made, expected = (model(ids).logits for model in (pair.target, pair.draft))
    error = (made - expected).abs().max() / expected.std()
    assert error < (0.05 if quantised else 1e-5)
    assert (error > 1e-4) == quantised
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["made"]


def without_layers(tensors: dict[str, np.ndarray]) -> None:
    for name in [key for key in tensors if key.startswith("blk.")]:
        del tensors[name]


def test_a_tied_file_converts_though_it_also_has_frequencies(tmp_path):
    """Llama 3's files hold factors of its rotary frequencies, which are no weights."""
    sizes = {"head_dim": 16, "num_key_value_heads": 1, "num_hidden_layers": 2}
    folder = tiny(tmp_path / "tied", tie_word_embeddings=True, **sizes)

    def edit(tensors):
        del tensors["output.weight"]
        tensors["rope_freqs.weight"] = np.ones(8, np.float32)

    convert(written(folder, False, edit=edit), tmp_path / "made")
    model = load_pair(str(tmp_path / "made"), device="cpu").target
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (without_layers, "18 weights of the model are not in the files: model.layers.0.input_layernorm.weight"),
        (
            lambda tensors: tensors.pop("blk.1.ffn_up.weight"),
            "1 weights of the model are not in the files: model.layers.1.m",
        ),
        (lambda tensors: tensors.update({"output.weight": tensors["output.weight"][:-1]}), "have other shapes than"),
        (
            lambda tensors: tensors["output_norm.weight"].fill(np.nan),
            "1 weights hold NaN or infinite values: model.norm",
        ),
        (
            lambda tensors: tensors.update({"blk.2.ffn_up.weight": tensors["blk.1.ffn_up.weight"]}),
            r"the file holds .* weights, and the model that it describes has .*, such as blk.2.ffn_up.weight of a",
        ),
        (
            lambda tensors: tensors.update({"blk.1.attn_q.bias": np.ones(32, np.float32)}),
            "the file holds .* weights, and the model that it describes has ",
        ),
    ],
    ids=["no layers", "a matrix", "a row", "NaN", "a layer more", "a bias more"],
)
def test_a_file_that_does_not_hold_the_whole_model_makes_no_folder(original, tmp_path, edit, says):
    """transformers makes up what is missing, at random, and passes over what is too much."""
    with pytest.raises(ModelError, match=says):
        convert(written(original, False, edit=edit, path=tmp_path / "made.gguf"), tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["made.gguf"]


def test_what_cannot_be_converted_is_said_before_anything_is_written(original, tmp_path, monkeypatch):
    whole = written(original, False)
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(whole.read_bytes()[:3000])
    text.write_text("no model")
    taken = tmp_path / "taken"
    taken.mkdir()
    for file, out, words in (
        (tmp_path / "none.gguf", tmp_path / "out", "no such file"),
        (tmp_path, tmp_path / "out", "a folder, not a file"),
        (text, tmp_path / "out", "no GGUF file"),
        (cut, tmp_path / "out", "transformers cannot read it"),
        (whole, taken, "is there already"),
    ):
        with pytest.raises(ConfigError, match=words):
            convert(file, out)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(NotInstalledError, match=r"pip install 'specbench\[gguf\]'"):
        convert(whole, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gguf", "taken", "text.gguf"]
    assert not list(taken.iterdir())


@pytest.mark.thorough
def test_the_command_names_what_is_wrong(tmp_path):
    got = new_process(tmp_path, "-m", "specbench", "convert", "none.gguf", "--out", "made", status=2)
    assert "FILE=none.gguf: no such file" in got.stderr
    assert not list(tmp_path.iterdir())
