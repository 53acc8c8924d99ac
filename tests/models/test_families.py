"""Every family of decoders, through the engine against whole passes; what cannot be run is refused by name."""

import pytest
import torch
import transformers as t
from transformers import AutoModelForCausalLM

from specbench.core.errors import ArgumentError, ModelError
from specbench.core.machine.files import Origin
from specbench.kernels import launch, launch_attention
from specbench.models import CachedModel, attention, cached_model, plain_attention
from specbench.models.architecture import load_config
from specbench.models.plain_attention import places, seen
from specbench.models.trial import check_runs
from tests.helpers import families
from tests.helpers.families import CONFIGS, CONTEXT, SIZES, VOCABULARY, WINDOW, made
from tests.helpers.kernel_cases import on_a_gpu
from tests.helpers.no_reading import NoReading

SOURCE = Origin("pair.target", "x", "y")
# Of the logits' spread: rounding in float32 is 5e-6, a wrong key 0.01 and more.
TOLERANCE = 3e-5
OTHERS = [name for name in CONFIGS if name != "gemma2"]


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_give_the_logits_of_whole_passes(name):
    assert families.apart(name) < TOLERANCE


def test_padding_may_lie_beyond_learned_positions():
    """A step that is as wide for all requests, near the end of the context, where positions have no row."""
    model, text = made("gpt2"), [7] * (CONTEXT - 1)
    cached = CachedModel(model, VOCABULARY, "target")
    cached.start([text], CONTEXT + 4)
    cached.show(1)
    logits = cached.extend(torch.tensor([[7, 1, 1, 1]]), torch.tensor([1])).logits
    torch.testing.assert_close(logits[0, 0], cached.score(text)[-1], rtol=0, atol=1e-4)


@pytest.mark.cases(1)
@pytest.mark.skipif(not launch.INTERPRETED, reason="on a GPU these are the kernels")
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
def test_steps_by_the_kernel_give_the_logits_of_whole_passes(name, monkeypatch):
    """Groups; a window and softcapping; sinks."""
    monkeypatch.setattr(plain_attention, "chosen", lambda *_: launch_attention.attend)
    assert families.apart(name) < TOLERANCE


@on_a_gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_on_a_gpu_give_the_logits_of_whole_passes(name):
    assert families.apart(name, "cuda") < 10 * TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_a_forward_in_decoding_reads_nothing_back(name, monkeypatch):
    """So it can be captured in a CUDA graph."""
    monkeypatch.setattr(cached_model, "known_max", lambda _, bound: bound)
    running = CachedModel(made(name), VOCABULARY, name)
    running.start([[1, 2, 3], [4, 5]], 16)
    ids, counts = torch.tensor([[6, 7], [8, 9]]), torch.tensor([2, 1])
    with NoReading():
        running.extend(ids, counts)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["gemma2", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_a_forward_in_decoding_is_traced_whole(name, monkeypatch):
    """One graph, without a break; dynamic=False as a captured engine compiles it."""
    monkeypatch.setattr(cached_model, "known_max", lambda _, bound: bound)
    torch.compiler.reset()
    logits = []
    for compiled in (False, True):
        running = CachedModel(made(name), VOCABULARY, name)
        running.start([[1, 2, 3], [4, 5]], 16)
        if compiled:
            running.model.forward = torch.compile(running.model.forward, backend="eager", dynamic=False, fullgraph=True)
        logits.append(running.extend(torch.tensor([[6, 7], [8, 9]]), torch.tensor([2, 2])).logits)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5 * float(logits[0].std()))


@pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gpt2"])
def test_the_nodes_of_a_tree_see_their_ancestors_alone(name):
    """Each path of a tree has the logits of that path as a chain, for requests of different lengths."""
    parents, prompts = [-1, 0, 0, 2, 1], [[1, 2, 3, 4, 5, 6, 7], [8, 9]]
    paths = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4]]
    fed = torch.tensor([[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]])
    running = CachedModel(made(name), VOCABULARY, name)
    running.start(prompts, 20)
    ancestors = torch.zeros((2, 5, 5), dtype=torch.bool)
    for node, path in enumerate(paths):
        ancestors[:, node, path] = True
        assert parents[node] == (path[-2] if len(path) > 1 else -1)
    logits = running.extend(fed, torch.tensor([5, 5]), ancestors).logits
    for b, prompt in enumerate(prompts):
        for node, path in enumerate(paths):
            whole = running.score([*prompt[:-1], *fed[b, path].tolist()])[-1]
            assert (logits[b, node] - whole).abs().max() < TOLERANCE * whole.std()


def test_a_model_that_pytorch_has_no_attention_for_is_made_with_ours():
    """Softcapping: transformers refuses to make it with PyTorch's."""
    config = CONFIGS["gemma2"]()
    t.AutoModelForCausalLM.from_config(config, attn_implementation=attention.implementation(config))


def test_trees_that_cannot_be_attended_to():
    lengths, positions = torch.zeros(1, dtype=torch.int64), torch.arange(65)[None]
    with pytest.raises(ArgumentError, match="ancestors: a tree of 65 tokens; at most 64"):
        places(lengths, positions, torch.ones((1, 65, 65), dtype=torch.bool).tril())
    tree = places(lengths, positions[:, :7], torch.ones((1, 7, 7), dtype=torch.bool).tril())
    with pytest.raises(ArgumentError, match="window=6: .* a tree of 7 tokens, .* Lower drafter.branches or gamma"):
        seen(tree, 7, 6)
    assert seen(tree, 7, 7)[0].sum(dim=1).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_tree_that_is_fed_in_levels_is_held_to_the_window_as_a_whole():
    """Each level is shorter than the window, beyond which a level's tokens would have seen their first ancestors."""
    running = CachedModel(made("mistral, window"), VOCABULARY, "model")
    running.start([[1, 2, 3]], 20)
    fed = torch.tensor([range(WINDOW + 1)])
    chain = torch.ones((1, WINDOW + 1, WINDOW + 1), dtype=torch.bool).tril()
    running.extend(fed[:, :WINDOW], torch.tensor([WINDOW]), chain[:, :WINDOW, :WINDOW])
    with pytest.raises(ArgumentError, match=f"window={WINDOW}: .* a tree of {WINDOW + 1} tokens"):
        running.extend(fed[:, WINDOW:], torch.tensor([1]), chain[:, WINDOW:])


def test_training_and_generation_are_as_without_the_engine():
    """The attention that an engine installs hands on whatever is not its own."""
    for name in ("llama", "gemma2"):
        plain, ours = made(name), made(name)
        plain.set_attn_implementation("eager")
        CachedModel(ours, VOCABULARY, name)
        ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
        padding = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8])
        with torch.no_grad():
            one, two = (model(input_ids=ids, attention_mask=padding).logits[padding.bool()] for model in (plain, ours))
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5 * float(one.std()))
        for mask in (padding, torch.ones_like(padding)):  # without padding layers are given no mask at all
            texts = [
                model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=-1)
                for model in (plain, ours)
            ]
            assert torch.equal(*texts)
        ours.train()(input_ids=ids, labels=ids).loss.backward()
        assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.parametrize(
    ("name", "context"),
    [("mistral, window", CONTEXT), ("gemma3", CONTEXT), ("dynamic positions", CONTEXT), ("phi3, longrope", 48)],
)
def test_what_bounds_a_context(name, context):
    """Not a window; but positions that change with the length, up to which they do not."""
    assert CachedModel(made(name), VOCABULARY, name).context == context


REFUSED = {
    "chunked attention": (t.Llama4TextConfig, {}, r"layers of kind \['chunked_attention'\]"),
    "recurrent": (t.MambaConfig, {}, r"'mamba' computes attention in a way of its own"),
    "biases for positions": (t.BloomConfig, {}, r"'bloom' computes attention in a way of its own"),
    "window kept to itself": (
        t.Qwen2MoeConfig,
        {"use_sliding_window": True, "sliding_window": WINDOW},
        r"a sliding window of 6 tokens, and Qwen2MoeForCausalLM does not pass it",
    ),
    "positions that begin elsewhere": (
        t.RobertaConfig,
        {"is_decoder": True},
        "RobertaForCausalLM gives other logits token by token",
    ),
    "both sides": (
        t.Gemma3TextConfig,
        {"use_bidirectional_attention": True},
        "Gemma3ForCausalLM does not run .*is_causal=False: Gemma3Attention attends to both sides",
    ),
    "an encoder": (t.BertConfig, {}, "BertLMHeadModel does not run .*: BertSelfAttention attends to both sides"),
    "biases if a key says so": (t.FalconConfig, {"alibi": True}, "alibi is True in config.json, biases in place of"),
}


@pytest.mark.parametrize(("kind", "changes", "says"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_cannot_be_run_is_refused_by_name(kind, changes, says, dtype, tmp_path):
    torch.manual_seed(0)
    kind(**SIZES, **changes).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"pair.target=x: .*{says}.*Choose a decoder"):
        check_runs(
            AutoModelForCausalLM.from_config(load_config(tmp_path, SOURCE), dtype=dtype).eval(), VOCABULARY, SOURCE
        )


def test_a_window_that_no_text_reaches_need_not_be_passed():
    """Phi-3.5-MoE's is as long as its context."""
    torch.manual_seed(0)
    config = t.PhimoeConfig(**SIZES, sliding_window=CONTEXT)
    check_runs(AutoModelForCausalLM.from_config(config).eval(), VOCABULARY, SOURCE)
    config.sliding_window = CONTEXT - 1
    with pytest.raises(ModelError, match="a sliding window of 63 tokens"):
        check_runs(AutoModelForCausalLM.from_config(config).eval(), VOCABULARY, SOURCE)
