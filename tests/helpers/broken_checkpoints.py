"""What breaks a checkpoint (tests/helpers/checkpoints.py), and the words that a message about each must have."""

import base64
import os
import shutil

import torch
from safetensors.torch import save_file

from tests.helpers.checkpoints import (
    EMBEDDING,
    HEAD,
    INDEX,
    LFS,
    NORM,
    SECOND,
    WEIGHTS,
    Change,
    all_of,
    config,
    cut,
    edit_json,
    first_value,
    instead,
    quantised,
    remove,
    sharded,
    tensors,
    tokenizer,
    write,
)

Cases = dict[str, tuple[Change, tuple[str, ...]]]  # by reason
CODE = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
DOUBLED = {"type": "Replace", "pattern": {"String": "d"}, "content": "dd"}
SPACED = {"type": "BPEDecoder", "suffix": ""}
LONG = "a" * 10_000
LONG_TABLE = base64.b64encode(bytes(4) + b"a" + LONG.encode()).decode()  # an index of 0 bytes, then a text of 10,001
RUNS = "raise SystemExit('code of a checkpoint was run')"
# Found out before anything is loaded.
IN_THE_FOLDER: Cases = {
    # The folder and its files
    "folder missing": (shutil.rmtree, ("no such folder", "Give a folder with config.json")),
    "folder is a file": (lambda f: (shutil.rmtree(f), f.write_text("")), ("a file, not a folder",)),
    "config without end": (lambda f: os.truncate(f / "config.json", 2**33), ("config.json is longer than 256 MiB",)),
    "folder is a pipe": (lambda f: (shutil.rmtree(f), os.mkfifo(f)), ("a named pipe, not a file",)),
    "folder is a loop": (lambda f: (shutil.rmtree(f), f.symlink_to(f.name)), ("cannot be read (too many levels",)),
    "folder empty": (lambda f: (shutil.rmtree(f), f.mkdir()), ("no config.json in the folder",)),
    "adapter": (write("adapter_config.json", "{}"), ("an adapter (LoRA)", "merge_and_unload")),
    "pipe for config": (instead("config.json", os.mkfifo), ("config.json cannot be read (a named pipe",)),
    "pipe for weights": (instead(WEIGHTS, os.mkfifo), (f"{WEIGHTS} cannot be read (a named pipe",)),
    "pipe for tokenizer": (instead("tokenizer.json", os.mkfifo), ("tokenizer.json cannot be read (a named pipe",)),
    "dead link for tokenizer": (instead("tokenizer.json", lambda p: p.symlink_to("nowhere")), ("(no such file",)),
    "pipe for template": (instead("chat_template.jinja", os.mkfifo), ("chat_template.jinja cannot be read",)),
    # config.json
    "config cut off": (write("config.json", '{"a":\n 1'), ("config.json is not JSON", "line 2")),
    "config list": (write("config.json", "[]"), ("config.json is not a JSON object",)),
    "config deep": (write("config.json", '{"a":' * 100_000), ("config.json is not JSON (nested too deeply)",)),
    "config latin-1": (write("config.json", b'{"a": "\xe9"}'), ("config.json is not JSON ('utf-8' codec",)),
    "config not fetched": (write("config.json", LFS), ("config.json is a pointer of Git LFS", "git lfs pull")),
    "no model_type": (config(model_type=...), ("config.json has no model_type (it says None)",)),
    "model_type a list": (config(model_type=["llama"]), ("config.json has no model_type (it says ['llama'])",)),
    "model_type a surrogate": (config(model_type="\ud800"), ("config.json has no model_type",)),
    "model_type unknown": (config(model_type="nope"), ("model_type 'nope' is not one of transformers", "update")),
    "code of its own": (
        all_of(config(model_type="nope", auto_map=CODE), write("mine.py", RUNS)),
        ("code of the checkpoint's own", "mine.Model", "does not run", "Choose a model whose architecture"),
    ),
    "layers a text": (config(num_hidden_layers="two"), ("num_hidden_layers is 'two' in config.json",)),
    "layers 0": (config(num_hidden_layers=0), ("num_hidden_layers is 0 in config.json, not a whole number from 1",)),
    "layers without end": (config(num_hidden_layers=10**9), ("num_hidden_layers is 1000000000", "more than any")),
    "labels without end": (config(num_labels=10**10), ("num_labels is 10000000000", "more than any")),
    "heads true": (config(num_attention_heads=True), ("num_attention_heads is True in config.json",)),
    "quantised by a text": (config(quantization_config="x"), ("quantization_config is 'x'", "not an object")),
    # Other JSON
    "generation config cut off": (write("generation_config.json", "{"), ("generation_config.json is not JSON",)),
    "generation config list": (write("generation_config.json", "[1]"), ("generation_config.json is not a JSON obj",)),
    "tokenizer config list": (write("tokenizer_config.json", "[]"), ("tokenizer_config.json is not a JSON object",)),
    "special tokens cut off": (write("special_tokens_map.json", "{"), ("special_tokens_map.json is not JSON",)),
    "no tokenizer": (remove("tokenizer.json", "tokenizer_config.json"), ("no tokenizer in the folder",)),
    # Files of weights
    "no weights": (remove(WEIGHTS), ("no weights in the folder", "*.safetensors")),
    "pickled weights": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), ("pickles can run code",)),
    "other weights": (lambda f: (f / WEIGHTS).rename(f / "m.gguf"), ("no weights (m.gguf) that can be read",)),
    "weights of another name": (lambda f: (f / WEIGHTS).rename(f / "my.safetensors"), ("my.safetensors", "Rename")),
    "weights named elsewhere": (config(transformers_weights="../x.safetensors"), ("'../x.safetensors'",)),
    "weights cut off": (cut(lambda data: data[:-100]), (f"{WEIGHTS} is not a whole safetensors file",)),
    "weights too long": (cut(lambda data: data + b"x"), (f"{WEIGHTS} is not a whole safetensors file",)),
    "weights not fetched": (write(WEIGHTS, LFS), (f"{WEIGHTS} is a pointer of Git LFS", "git lfs pull")),
    "weights of nothing": (lambda f: save_file({}, f / WEIGHTS), (f"{WEIGHTS} holds no tensor",)),
    "integers for weights": (
        tensors(lambda weights: weights.update({HEAD: weights[HEAD].to(torch.int8)})),
        ("1 weights are held as I8", "no quantization_config", HEAD, "bfloat16"),
    ),
    "index cut off": (all_of(remove(WEIGHTS), write(INDEX, "{")), (f"{INDEX} is not JSON",)),
    "index without a map": (all_of(remove(WEIGHTS), write(INDEX, "{}")), (f"{INDEX} has no weight_map",)),
    "index of another folder": (
        sharded(lambda _, index: index["weight_map"].update({HEAD: "../model.safetensors"})),
        (f"'../model.safetensors' for {HEAD}",),
    ),
    "index of pickles": (
        sharded(lambda f, index: (write("x.bin", "")(f), index["weight_map"].update({HEAD: "x.bin"}))),
        (f"'x.bin' for {HEAD}, which is no safetensors file",),
    ),
    "shard missing": (sharded(lambda f, _: (f / SECOND).unlink()), (f"are missing: {SECOND}",)),
    "shard cut off": (sharded(lambda f, _: write(SECOND, b"x")(f)), (f"{SECOND} is not a whole safetensors file",)),
    "tensor not in its shard": (
        sharded(lambda _, index: index["weight_map"].update({"model.more": "model-00001-of-00002.safetensors"})),
        ("model-00001-of-00002.safetensors holds model.more, and it does not",),
    ),
    "tensor in two shards": (
        sharded(
            lambda f, _: save_file({NORM: torch.ones(32), HEAD: torch.ones(1)}, f / "model-00002-of-00002.safetensors")
        ),
        (f"{NORM} is in model-00001-of-00002.safetensors and in {SECOND}",),
    ),
    "shards of a distributed run": (
        lambda f: (f / WEIGHTS).rename(f / "shard-00000-model-00001-of-00001.safetensors"),
        ("distributed run", "Gather them"),
    ),
}
# Found out when the configuration and the tokenizer are read.
BEFORE_WEIGHTS: Cases = {
    "hidden size a text": (config(hidden_size="x"), ("config.json describes no model", "hidden_size")),
    "context below 0": (config(max_position_embeddings=-1), ("a context of -1 tokens by config.json",)),
    "encoder and decoder": (config(model_type="bart"), ("it has an encoder", "Choose a decoder")),
    "no text": (config(model_type="clip"), ("model_type 'clip' is no language model that continues text",)),
    "layers without attention": (
        config(model_type="qwen3", layer_types=["linear_attention"], head_dim=16),
        ("layers of kind ['linear_attention']", "from attention only"),
    ),
    "window of nothing": (
        config(model_type="mistral", sliding_window=-4),
        ("sliding_window is -4 in config.json, not a whole number from 1", "null"),
    ),
    "quantised by nothing": (quantised(), ("it is quantised (None), and cannot be loaded here", "choose")),
    "quantised in a way unknown": (quantised(quant_method="nope"), ("it is quantised ('nope')", "no such method")),
    "quantised, no library": (quantised(quant_method="gptq", bits=4), ("'gptq'", "(ImportError: ")),
    "rope unknown": (
        config(rope_parameters={"rope_type": "nope", "rope_theta": 1e4}),
        ("config.json describes no model that can be built", "nope"),
    ),
    "vocabulary without end": (config(vocab_size=10**10), ("config.json describes a model of 640,0", "the files hold")),
    "generation config of nonsense": (
        write("generation_config.json", '{"early_stopping": "x"}'),
        ("generation_config.json cannot be used", "Mend it, or remove it"),
    ),
    "tokenizer garbage": (write("tokenizer.json", b"\xff\x00"), ("its tokenizer cannot be read (UnicodeDecodeError",)),
    "tokenizer of nothing": (write("tokenizer.json", "{}"), ("its tokenizer cannot be read (KeyError",)),
    "tokenizer without tokens": (
        all_of(
            remove("tokenizer_config.json"),
            tokenizer(lambda t: t["model"].update(vocab={}, merges=[])),
            tokenizer(lambda t: t.update(added_tokens=[], post_processor=None)),
        ),
        ("its tokenizer has no tokens",),
    ),
    "tokenizer with an id of billions": (
        tokenizer(lambda t: t["model"]["vocab"].update({"zzzz": 2**31})),
        ("tokenizer.json gives 'zzzz' the id 2147483648", "from the model's own release"),
    ),
    "vocabulary with an id of billions": (
        all_of(remove("tokenizer.json"), write("vocab.json", '{"zzzz": 2147483648}'), write("merges.txt", "")),
        ("vocab.json gives 'zzzz' the id 2147483648",),
    ),
    "merges that lack the prefix": (
        tokenizer(lambda t: t["model"].update(continuing_subword_prefix="#", merges=[["d", "é"]])),
        ("tokenizer.json merges ['d', 'é'], which lacks continuing_subword_prefix '#'",),
    ),
    "table of a normaliser cut off": (
        tokenizer(lambda t: t.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "////fw=="})),
        ("tokenizer.json is damaged", "precompiled_charsmap is cut off"),
    ),
    "normaliser that doubles text forty times": (
        tokenizer(lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [DOUBLED] * 40})),
        ("tokenizer.json has a normalizer that makes up to 16,384 bytes of one", "10,000 allowed"),
    ),
    "decoder that doubles text forty times": (
        tokenizer(lambda t: t.update(decoder={"type": "Sequence", "decoders": [DOUBLED] * 40})),
        ("tokenizer.json has a decoder that makes up to 16,384 bytes of one",),
    ),
    "decoder that writes between letters": (
        tokenizer(lambda t: t.update(decoder={"type": "Sequence", "decoders": [SPACED] * 40})),
        ("tokenizer.json has a decoder that makes up to 16,384 bytes of one",),
    ),
    "normaliser that writes between letters": (
        tokenizer(lambda t: t.update(normalizer={"type": "Replace", "pattern": {"Regex": "()"}, "content": LONG})),
        ("tokenizer.json has a normalizer that makes up to 10,001 bytes of one",),
    ),
    "table of a normaliser with a long text": (
        tokenizer(lambda t: t.update(normalizer={"type": "Precompiled", "precompiled_charsmap": LONG_TABLE})),
        ("tokenizer.json has a normalizer that makes up to 10,001 bytes of one",),
    ),
    "tokenizer without end": (
        lambda f: os.truncate(f / "tokenizer.json", 2**33),
        ("tokenizer.json has 8,192 MiB, more than the 256 MiB allowed",),
    ),
    "tokenizer with code": (
        all_of(
            edit_json("tokenizer_config.json", tokenizer_class="Mine", auto_map={"AutoTokenizer": ["mine.Mine", None]}),
            write("mine.py", RUNS),
        ),
        ("its tokenizer cannot be read", "code of its own", "mine.Mine", "does not run"),
    ),
    "another vocabulary": (
        tokenizer(lambda t: t["model"]["vocab"].update({"zzzz": 4096})),
        ("different vocabularies", "target 4097, draft 4096"),
    ),
    "template that does not parse": (
        edit_json("tokenizer_config.json", chat_template="{% for"),
        ("chat template does",),
    ),
    "template that raises": (
        edit_json("tokenizer_config.json", chat_template="{{ raise_exception('no') }}"),
        ("chat template does not work (TemplateError: no)", "pair.chat=false"),
    ),
    "template a list": (edit_json("tokenizer_config.json", chat_template=["a"]), ("(TypeError",)),
}
# Found out from the weights.
WEIGHTS_READ: Cases = {
    "tensor dropped": (
        tensors(lambda weights: weights.pop("model.layers.0.mlp.up_proj.weight")),
        ("1 weights of the model are not in the files: model.layers.0.mlp.up_proj.weight", "same release"),
    ),
    "head dropped": (tensors(lambda weights: weights.pop(HEAD)), (f"are not in the files: {HEAD}",)),
    "layers more": (config(num_hidden_layers=3), ("18 weights of the model are not in the files: model.layers.1.",)),
    "another architecture": (
        config(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=32, n_head=2, n_layer=1),
        ("weights of the model are not in the files: ", "have no place in the model: ", "model.layers.0.mlp"),
    ),
    "tensor more": (
        tensors(lambda weights: weights.update({"model.layers.1.mlp.up_proj.weight": torch.ones(64, 32)})),
        ("1 tensors of the files have no place in the model: model.layers.1.mlp.up_proj.weight",),
    ),
    "another shape": (
        tensors(lambda weights: weights.update({HEAD: weights[HEAD][:4000]})),
        (f"1 weights have other shapes than config.json says: {HEAD} 4000x32 instead of 4096x32",),
    ),
    "not a number": (first_value(NORM, torch.nan), (f"1 weights hold NaN or infinite values: {NORM}", "fetch")),
    "rotary base 0": (config(rope_theta=0.0, rope_parameters=...), ("model.rotary_emb.inv_freq",)),
    "infinite": (first_value(EMBEDDING, -torch.inf), (f"NaN or infinite values: {EMBEDDING}",)),
    "embedding of zeros": (tensors(lambda weights: weights[EMBEDDING].zero_()), (f"all values are 0 in {EMBEDDING}",)),
    "all zeros": (tensors(lambda weights: [tensor.zero_() for tensor in weights.values()]), ("all values are 0 in ",)),
    "head not tied": (config(tie_word_embeddings=True), (f"ties {HEAD} to {EMBEDDING}", "two that differ", "false")),
    "normalised by nothing": (config(rms_norm_eps=float("nan")), ("its logits are NaN",)),
    "stop token unknown": (
        edit_json("generation_config.json", eos_token_id=[0, 4096]),
        ("eos_token_id 4096 is not an id of its tokenizer", "0 to 4095", "generation_config.json"),
    ),
    "stop token a text": (edit_json("generation_config.json", eos_token_id="x"), ("eos_token_id 'x' is not an id",)),
}
