"""The first layers of a target as a draft: the right logits, from the target's own cache, which is left as it was."""

import dataclasses

import pytest
import torch
import transformers as t
from torch import nn

from specbench.core.errors import ConfigError, ModelError
from specbench.core.rng import Streams
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters import draft_name
from specbench.drafters.layer_skip import LayerSkipDrafter
from specbench.models import CachedModel
from specbench.models.early_exit import EarlyExit, first_layers, layers_of
from specbench.sampling import RowParams, SamplingParams, logit_rows
from specbench.sampling.batch import RUNNING, Batch
from tests.helpers.cases import bound
from tests.helpers.families import CONFIGS, SIZES, VOCABULARY, made
from tests.helpers.toy import toy_decoder, toy_pair, toy_requests
from tests.models.test_families import TOLERANCE

PROMPTS = [[5, 9, 2, 11, 7, 3, 8, 21, 4], [6, 1], [12]]


def cut_by_hand(name):
    """A model of the table whose second layer is gone, for whole passes without a cache."""
    model = made(name)
    model.set_attn_implementation("eager")
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    del lists[0][1:]
    return model


def whole(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :, :VOCABULARY]


@pytest.mark.cases(10)
@pytest.mark.parametrize("name", CONFIGS)
def test_an_exit_reads_and_writes_the_target_s_cache(name):
    """Steps in which the draft runs ahead of texts of different lengths, and the target takes some of it back."""
    target = CachedModel(made(name), VOCABULARY, "target")
    leaving, short, plain = EarlyExit(target, 1), cut_by_hand(name), made(name)
    plain.set_attn_implementation("eager")
    target.start(PROMPTS, 32)
    texts = [list(prompt) for prompt in PROMPTS]
    for step, kept in enumerate([(2, 0, 3), (0, 3, 1)]):
        leaving.follow()
        ahead = [list(text) for text in texts]
        for i in range(3):  # it is fed the last token of the text, then what was drafted
            logits = leaving.extend(torch.tensor([[text[-1]] for text in ahead]), torch.ones(3).long()).logits[:, 0]
            for b, text in enumerate(ahead):
                expected = whole(short, text)
                assert (logits[b] - expected[-1]).abs().max() < TOLERANCE * expected.std()
                text.append((7 * step + 3 * i + 5 * b) % VOCABULARY)
        assert target.lengths.tolist() == [len(text) - 1 for text in texts]
        fed = torch.tensor([text[-4:] for text in ahead])
        logits = target.extend(fed, torch.full((3,), 4)).logits
        for b, text in enumerate(ahead):
            expected = whole(plain, text)[-4:]
            assert (logits[b] - expected).abs().max() < TOLERANCE * expected.std()
        texts = [[*ahead[b][: len(text) + kept[b]], 40 + b] for b, text in enumerate(texts)]
        target.truncate(torch.tensor([len(text) - 1 for text in texts]))


def test_an_exit_has_no_weights_and_no_cache_of_its_own(pair):
    running = toy_decoder(toy_pair(pair), "layer_skip")
    running.run(toy_requests((4, 7)))
    target, leaving = running.components.target, running.components.drafter.model
    assert leaving._cache is target._cache
    assert running.components.draft_caches == ()
    theirs = {weight.data_ptr() for weight in target.model.parameters()}
    mine = {weight.data_ptr() for weight in leaving.model.parameters()}
    assert mine < theirs
    assert len(target.model.model.layers) == 2
    assert len(leaving.model.model.layers) == 1


def test_no_token_is_drafted_from_twice(pair, monkeypatch):
    """A draft of n tokens feeds n: the last token of the text, and all it drafted but the last."""
    running, fed = toy_decoder(dataclasses.replace(toy_pair(pair), stop_ids=frozenset()), "layer_skip"), []
    extend = running.components.drafter.model.extend
    noting = lambda ids, counts: (fed.append(int(counts[0])), extend(ids, counts))[1]  # noqa: E731
    monkeypatch.setattr(running.components.drafter.model, "extend", noting)
    (request,) = toy_requests((9,))
    steps = running.run([dataclasses.replace(request, max_new_tokens=50)])[0].steps
    assert {step.num_accepted for step in steps} >= {0, 3}
    assert sum(fed) == sum(step.num_draft_tokens for step in steps)


def test_no_token_is_fed_for_which_no_place_is_needed(pair, monkeypatch):
    """Steps of one shape have the width of the most that can be pending, of which an exit's texts have one token."""
    running, widths = toy_decoder(toy_pair(pair), "layer_skip", StaticEngine()), set()
    extend = running.components.drafter.model.extend
    noting = lambda ids, counts: (widths.add(ids.shape[1]), extend(ids, counts))[1]  # noqa: E731
    monkeypatch.setattr(running.components.drafter.model, "extend", noting)
    running.run(toy_requests((9, 4)))
    assert widths == {1}


def test_texts_scored_by_an_exit_leave_the_target_s_cache(pair):
    target = CachedModel(pair.target, pair.vocab_size, "target")
    leaving = EarlyExit(target, 8)
    target.start([[5, 6, 7]], 8)
    leaving.follow()
    leaving.extend(torch.tensor([[7]]), torch.tensor([1]))
    before = [layer.keys.clone() for layer in target._cache._written()]
    leaving.start([[9, 8, 4]], 8)
    logits = leaving.extend(torch.tensor([[4, 3]]), torch.tensor([2])).logits[0]
    torch.testing.assert_close(logits, leaving.score([9, 8, 4, 3])[2:], rtol=0, atol=1e-4)
    assert all(torch.equal(*keys) for keys in zip(before, [x.keys for x in target._cache._written()], strict=True))


def test_drafts_are_drawn_from_the_exit_s_own_distributions(exact):
    """Each row equals the row of a whole pass over the text and the draft before it, at the drafts' own temperature."""
    target = CachedModel(exact.target, exact.vocab_size, "target")
    drafter = LayerSkipDrafter(1, temperature=0.6).bind(exact, target)
    texts = [[5, 9, 2, 11], [6, 1]]
    target.start(texts, 16)
    tokens = torch.zeros((2, 16), dtype=torch.int64)
    for b, text in enumerate(texts):
        tokens[b, : len(text)] = torch.tensor(text)
    lengths = torch.tensor([4, 2])
    numbers = (torch.full((2,), 12), torch.full((2,), 3), torch.tensor([1, 2]))
    samplings = [SamplingParams(top_p=0.9), SamplingParams(temperature=0.0, top_k=2)]
    params = RowParams.of(samplings)
    no_stops = torch.zeros((2, 0), dtype=torch.int64)
    batch = Batch(tokens, lengths, lengths, *numbers, params, torch.full((2,), RUNNING), no_stops)
    with torch.inference_mode():
        draft = drafter.propose(batch, torch.full((2,), 3), Streams(numbers[2], lengths, 4))
    drafted, probs = draft.token_ids.view(2, 3), draft.rows.probs().view(2, 3, -1)
    for b, text in enumerate(texts):
        logits = drafter.model.score([*text, *drafted[b].tolist()])[len(text) - 1 : -1]
        expected = logit_rows(logits, RowParams.of([drafter.sampled_with(samplings[b])] * 3)).probs()
        torch.testing.assert_close(probs[b], expected, rtol=1e-9, atol=1e-12)
    assert drafter.sampled_with(SamplingParams(temperature=0.0, top_k=2)) == SamplingParams(temperature=0.6)


def test_layers_that_there_are_not(pair):
    """Refused by config.json, and again when the model is bound."""
    count = pair.target.config.num_hidden_layers
    no_share = "neither a count nor a share of layers. Use a whole number from 1, or a share"
    too_many = f"the target has {count} layers.*Use 1 to {count - 1}"
    for layers, says in ((count, too_many), (0, no_share), (1.5, no_share), (-0.5, no_share), ("all", no_share)):
        with pytest.raises(ConfigError, match=f"drafter.layers={layers}: {says}"):
            LayerSkipDrafter(layers).check(target_config=pair.target.config)
        with pytest.raises(ConfigError, match=f"drafter.layers={layers}: {says}"):
            bound(LayerSkipDrafter(layers), pair)


@pytest.mark.parametrize(("share", "layers"), [(0.25, 5), (0.001, 1), (0.999, 19)])
def test_a_share_of_the_layers(share, layers):
    config = t.LlamaConfig(**{**SIZES, "num_hidden_layers": 20})
    assert layers_of(share, config) == layers
    drafter = LayerSkipDrafter(share)
    drafter.check(target_config=config)
    assert draft_name(drafter, "T", "D") == f"{share} of the layers of T"


def test_layers_that_cannot_be_told_are_refused_by_name():
    model = made("llama")
    model.others = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    with pytest.raises(ModelError, match="LlamaForCausalLM has 2 lists of 2 modules.*Use drafter=model"):
        first_layers(model, 1)
    single = t.AutoModelForCausalLM.from_config(t.LlamaConfig(**{**SIZES, "num_hidden_layers": 1}))
    with pytest.raises(ConfigError, match="the target has 1 layers.*Choose another target"):
        first_layers(single, 1)
