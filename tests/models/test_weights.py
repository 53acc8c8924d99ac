"""Weights: all from the files, tied where they should be, and run by the engine as by the model itself."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine.files import Origin
from specbench.models import CachedModel, Pair, load_pair
from specbench.models.cache import RaggedLayer
from specbench.models.trial import check_runs
from specbench.runs.building import make_requests
from specbench.runs.config import Config, WorkloadConfig
from specbench.runs.workloads import Prompt
from specbench.sampling import SamplingParams
from tests.helpers.checkpoints import (
    EMBEDDING,
    HEAD,
    WEIGHTS,
    config,
    edit_json,
    first_value,
    sharded,
    tensors,
    tiny,
    tokenizer,
    with_tokenizer,
)

SIZES = {"vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
LAYERS = {"num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture
def whole(tmp_path):
    return tiny(tmp_path / "whole")


def load(folder, **options) -> Pair:
    return load_pair(str(folder), str(folder), device="cpu", **options)


def saved(model, folder):
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.2)
    model.save_pretrained(folder)
    return with_tokenizer(folder)


def test_every_weight_is_the_files(whole):
    weights = load_file(whole / WEIGHTS)
    loaded = dict(load(whole).target.state_dict())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_shards_are_read(whole):
    weights = load_file(whole / WEIGHTS)
    sharded(lambda *_: None)(whole)
    assert torch.equal(load(whole).target.state_dict()[HEAD], weights[HEAD])


def test_a_tied_head_is_the_embedding(tmp_path):
    folder = tiny(tmp_path, tie_word_embeddings=True)
    assert HEAD not in load_file(folder / WEIGHTS)
    target = load(folder).target
    assert target.get_output_embeddings().weight is target.get_input_embeddings().weight


def test_a_tied_head_may_be_written_twice(whole):
    """As other tools write it."""
    tensors(lambda weights: weights.update({HEAD: weights[EMBEDDING].clone()}))(whole)
    config(tie_word_embeddings=True)(whole)
    assert load(whole).target.get_output_embeddings().weight.shape == (4096, 32)


def test_buffers_of_old_checkpoints_are_harmless(whole, tmp_path):
    tensors(lambda weights: weights.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))(whole)
    assert load(whole).vocab_size == 4096
    config = GPT2Config(vocab_size=4096, n_embd=32, n_layer=2, n_head=2, eos_token_id=0)
    gpt2 = saved(GPT2LMHeadModel(config), tmp_path / "gpt2")
    masks = {"bias": torch.ones(1, 1, 64, 64, dtype=torch.bool), "masked_bias": torch.tensor(-1e4)}
    for name, mask in masks.items():
        tensors(lambda weights, name=name, mask=mask: weights.update({f"transformer.h.0.attn.{name}": mask}))(gpt2)
    assert load(gpt2).context == 1024


def test_experts_that_cannot_be_put_together_are_named(tmp_path):
    """transformers stacks the experts of old checkpoints, and says only in a log what it could not stack."""
    sizes = {**SIZES, **LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1}
    folder = saved(MixtralForCausalLM(MixtralConfig(**sizes, sliding_window=None)), tmp_path / "moe")
    assert load(folder).vocab_size == 4096
    expert = next(name for name in load_file(folder / WEIGHTS) if "experts.1.w2" in name)
    tensors(lambda weights: weights.update({expert: weights[expert][:5]}))(folder)
    with pytest.raises(ConfigError, match=r"its weights cannot be loaded \(model.layers.0.*experts.*CONVERSION"):
        load(folder)


def test_a_half_written_matrix_is_told(whole, capfd):
    name = "model.layers.0.mlp.up_proj.weight"
    tensors(lambda weights: weights[name].zero_())(whole)
    load(whole)
    assert f"all values are 0 in {name}. Are the files whole?" in capfd.readouterr().err


def test_what_float16_cannot_hold_is_told(whole):
    first_value(EMBEDDING, 1e6)(whole)
    assert load(whole, dtype="bfloat16").target.dtype == torch.bfloat16
    with pytest.raises(ModelError, match=f"infinite values: {EMBEDDING}.*more than float16 can: try dtype=bfloat16"):
        load(whole, dtype="float16")


def test_code_beside_an_architecture_of_transformers_is_passed_over_in_words(whole, capfd):
    config(auto_map={"AutoModelForCausalLM": "mine.Model"})(whole)
    (whole / "mine.py").write_text("raise SystemExit('code of a checkpoint was run')")
    load(whole)
    assert "mine.Model'}) is not run, but transformers' for LlamaConfig." in capfd.readouterr().err


def test_a_window_does_not_bound_the_context(tmp_path):
    """Mistral's first models see 4,096 tokens back, and hold more."""
    folder = saved(MistralForCausalLM(MistralConfig(**SIZES, **LAYERS, sliding_window=16)), tmp_path / "mistral")
    assert load(folder).context == 64


def test_a_cache_that_does_not_forget_is_found(pair, monkeypatch):
    """The trial by itself: tokens that were taken back stay in sight, and what raises is named."""
    source = Origin("pair.target", "x", "y")
    check_runs(pair.target, pair.vocab_size, source)
    monkeypatch.setattr(CachedModel, "truncate", lambda *_: None)
    with pytest.raises(ModelError, match=r"pair.target=x: .* gives other logits token by token"):
        check_runs(pair.target, pair.vocab_size, source)
    monkeypatch.setattr(RaggedLayer, "update", lambda *_: 1 / 0)
    with pytest.raises(ModelError, match=r"does not run with a cache that takes tokens back \(ZeroDivisionError"):
        check_runs(pair.target, pair.vocab_size, source)


def test_the_trial_allows_for_rounding(pair):
    half = load_pair("embedded:target", "embedded:draft", device="cpu", dtype="bfloat16")
    check_runs(half.target, pair.vocab_size, Origin("pair.target", "x", "y"))


def test_nothing_of_transformers_own_report_is_printed(whole, capfd):
    config(num_hidden_layers=2)(whole)
    with pytest.raises(ModelError, match="9 weights of the model are not in the files"):
        load(whole)
    output = capfd.readouterr()
    assert "REPORT" not in output.out + output.err


def test_a_tokenizer_far_too_small_for_the_outputs_is_refused(whole):
    def few(content):
        vocabulary = content["model"]["vocab"]
        content["model"].update(vocab={t: i for t, i in vocabulary.items() if i < 300}, merges=[])
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < 300]

    tokenizer(few)(whole)
    with pytest.raises(ModelError, match=r"the model has 4096 outputs, and its tokenizer has 300 ids"):
        load(whole)


def test_an_id_far_beyond_the_outputs_is_refused_at_once(whole):
    """Vocabularies are compared by their tokens: counting to the largest id would take hours here."""
    tokenizer(lambda content: content["model"]["vocab"].update({"far away": 10**7 - 1}))(whole)
    with pytest.raises(ModelError, match="4096 outputs for a tokenizer of 10000000 ids"):
        load(whole)


def test_prompts_that_a_tokenizer_fails_on_are_named(whole):
    def words(content):
        content["model"] = {"type": "WordLevel", "vocab": content["model"]["vocab"], "unk_token": "no such token"}
        content.update(pre_tokenizer=None, post_processor=None)

    tokenizer(words)(whole)
    with pytest.raises(ModelError, match=r"its tokenizer fails on the prompt 'qqzzqq' \(.*Leave the prompt out"):
        load(whole).encode("qqzzqq")


def test_ids_that_a_tokenizer_does_not_have_are_refused(whole):
    def later(content):
        for token in content["post_processor"]["special_tokens"].values():
            token["ids"] = [9999]

    tokenizer(later)(whole)
    with pytest.raises(ModelError, match="gives id 9999 for the prompt 'a', and has ids below 4096"):
        load(whole).encode("a")


def test_templates_that_fail_on_a_prompt_are_named(whole):
    template = "{% for m in messages %}{% if '!' in m.content %}{{ raise_exception('no') }}{% endif %}x{% endfor %}"
    edit_json("tokenizer_config.json", chat_template=template)(whole)
    pair = load(whole)
    assert pair.encode("a")
    with pytest.raises(ModelError, match=r"on the prompt 'a!' \(TemplateError: no\).*pair.chat=false"):
        pair.encode("a!")


def test_a_link_to_a_folder_is_a_folder(whole, tmp_path):
    (tmp_path / "link").symlink_to(whole)
    assert load(tmp_path / "link").vocab_size == 4096
    shutil.rmtree(whole)
    with pytest.raises(ConfigError, match="no such folder"):
        load(tmp_path / "link")


def test_prompts_without_tokens_or_room_are_named_with_their_line(whole):
    without_a = {"type": "Replace", "pattern": {"String": "a"}, "content": ""}
    tokenizer(lambda content: content.update(normalizer=without_a, post_processor=None))(whole)
    pair, settings = load(whole), Config(workload=WorkloadConfig(path="p.jsonl"))
    with pytest.raises(ConfigError, match=r"workload.path=p.jsonl: line 7: prompt 'x' has no tokens"):
        make_requests([Prompt("x", "a", "line 7")], pair, SamplingParams(), settings)
    with pytest.raises(ConfigError, match=r"max_new_tokens=64: line 8: prompt 'x' has \d+ tokens, .*context is 128"):
        make_requests([Prompt("x", "b c" * 80, "line 8")], pair, SamplingParams(), settings)


def test_a_prompt_that_no_context_holds_is_not_tokenised(whole, monkeypatch):
    """50 MB of text took 8 GB, before its length was looked at."""
    pair, settings = load(whole), Config(workload=WorkloadConfig(path="p.jsonl"))
    text = "x" * (pair.most_characters + 1)
    monkeypatch.setattr(Pair, "encode", lambda *_: pytest.fail("it was tokenised"))
    with pytest.raises(ConfigError, match=r"line 8: prompt 'x' has [\d,]+ characters, and the pair's context is 128"):
        make_requests([Prompt("x", text, "line 8")], pair, SamplingParams(), settings)
