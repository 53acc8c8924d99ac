"""Checkpoints that we make: what loads, what is refused, and in which words."""

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine.devices import choose_device
from specbench.decoding import Request
from specbench.models import CachedModel, load_pair
from specbench.runs.workloads import load_prompts
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers.cases import decoder
from tests.helpers.checkpoints import edit_json, tiny, tokenizer
from tests.helpers.threads import Meeting, in_two_threads


def test_any_local_folder_loads_and_decodes(tmp_path):
    pair = load_pair(str(tiny(tmp_path / "t", seed=1)), str(tiny(tmp_path / "d", seed=2)), device="cpu")
    assert pair.target.dtype == torch.float32
    assert (pair.vocab_size, pair.stop_ids, pair.chat, pair.context) == (4096, {0}, False, 128)
    request = Request("a", tuple(pair.encode("def f")), 1, SamplingParams(), 10)
    assert 1 <= len(decoder(pair).run([request])[0].token_ids) <= 10


def test_threads_load_one_after_another(monkeypatch):
    """transformers unties all models of the process while it loads one; of two at once, one stayed so for good."""
    ours, tied, meeting = AutoModelForCausalLM.from_pretrained, PreTrainedModel.tie_weights, Meeting()

    def watched(*args, **options):
        meeting.visit()
        return ours(*args, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", watched)
    in_two_threads(lambda: load_pair("embedded:draft", device="cpu"))
    assert not meeting.together
    assert PreTrainedModel.tie_weights is tied


def test_a_wider_output_layer_is_fine_and_never_emits_padding(tmp_path):
    folder = tiny(tmp_path / "t", outputs=4100)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
        model.get_output_embeddings().weight[4096:] = 100.0  # padding ids would win almost every draw
        model.get_output_embeddings().weight[4096:, ::2] = -100.0
    model.save_pretrained(folder)
    pair = load_pair(str(folder), str(tiny(tmp_path / "d")), device="cpu")
    requests = [Request(str(i), (0, 5), i, SamplingParams(), 20) for i in range(8)]
    completions = decoder(pair, 2, stop_ids=()).run(requests)
    assert max(token for completion in completions for token in completion.token_ids) < 4096


def test_a_different_size_is_named(tmp_path):
    folder = tiny(tmp_path, outputs=4097)
    longer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")))
    longer.add_special_tokens({"eos_token": "<|end|>", "bos_token": "<|endoftext|>"})
    longer.save_pretrained(folder)
    says = r"sizes: target 4096, draft 4097.*eos_token_id: target 0, draft 4096.*Choose|choose"
    with pytest.raises(ModelError, match=says):
        load_pair("embedded:target", str(folder), device="cpu")


def test_swapped_tokens_are_named(tmp_path):
    def swap(content):
        vocabulary = content["model"]["vocab"]
        first, second = (next(t for t, i in vocabulary.items() if i == n) for n in (300, 301))
        vocabulary[first], vocabulary[second] = 301, 300

    folder = tiny(tmp_path)
    tokenizer(swap)(folder)
    with pytest.raises(ModelError, match="2 ids stand for different tokens .*id 300: .*id 301: "):
        load_pair("embedded:target", str(folder), device="cpu")


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "one-word", "a/b/c"])
def test_a_missing_folder_is_refused(name):
    with pytest.raises(ConfigError, match=r"pair.draft=.*no such folder"):
        load_pair("embedded:target", name, device="cpu")


def test_chat_templates_are_applied_where_there_is_one(tmp_path):
    folder = tiny(tmp_path)
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
    edit_json("tokenizer_config.json", chat_template=template)(folder)
    pair = load_pair(str(folder), str(folder), device="cpu")
    assert pair.chat
    assert pair.tokenizer.decode(pair.encode("hi"), skip_special_tokens=True) == "<user>hi<assistant>"
    assert not load_pair(str(folder), str(folder), device="cpu", chat=False).chat
    with pytest.raises(ConfigError, match="pair.chat"):
        load_pair("embedded:target", "embedded:draft", device="cpu", chat=True)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("auto", torch.float32)])
def test_dtype(dtype, expected):
    assert load_pair("embedded:draft", "embedded:draft", device="cpu", dtype=dtype).target.dtype == expected


def test_the_embedded_pair_overlaps_as_a_useful_pair_does(pair):
    """On Python that neither model was shown (the prompts are ours): within the 0.55 to 0.85 that we designed for."""
    params, overlaps = RowParams.of([SamplingParams()]), []
    for prompt in load_prompts("embedded:embedded.jsonl", 24):
        ids = pair.encode(prompt.text)
        repeated = params.select(torch.zeros(len(ids), dtype=torch.int64))
        scored = (CachedModel(model, pair.vocab_size, "m").score(ids) for model in (pair.target, pair.draft))
        p, q = (logit_rows(logits, repeated).probs() for logits in scored)
        overlaps.append(torch.minimum(p, q).sum(-1).mean())
    assert 0.55 < torch.stack(overlaps).mean() < 0.85


@pytest.mark.parametrize("device", ["cpu:3", "cuda:-1", "mps", "", "cuda:99"])
def test_devices_that_are_none(device):
    with pytest.raises(ConfigError, match=r"^device=.*Use "):
        choose_device(device)


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:1"])
def test_a_gpu_has_a_number(name, monkeypatch):
    """torch.cuda.set_device refuses one without, which every job on a GPU would meet."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(name) == torch.device("cuda", 1 if name == "cuda:1" else 0)
