"""Pairs of different vocabularies: drafts from what they share, drafts as text; lossless by count and enumeration.

The statistical tests have fixed seeds and a false alarm of 1e-8 each, on 6,000 texts with cells pooled to 5 expected.
"""

import dataclasses
import itertools
import random

import pytest
import torch

import specbench
from experiments.embedded_pair.other_vocabulary import in_bytes
from specbench.core.errors import ConfigError, ModelError
from specbench.decoding import Request
from specbench.decoding.engines import Requirements
from specbench.decoding.engines.auto import AutoEngine
from specbench.decoding.engines.compiled_cpu import CompiledCpuEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.exactness.enumeration.laws import all_drafts, completed, law_ends, law_of, target_joint
from specbench.exactness.statistics.g_tests import node_g_test
from specbench.extras.compiled.engine import CompiledEngine
from specbench.extras.vocabularies.strings import StringsDrafter
from specbench.models import CachedModel, cached_draft, load_pair
from specbench.rules.block.formulas import RULE as BLOCK
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.matching import MatchingVerifier
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams
from tests.decoding.test_decoding import texts
from tests.decoding.test_engines import logs
from tests.helpers.cases import CPU, FIXTURES, MIXED, decoder
from tests.helpers.checkpoints import tiny
from tests.helpers.vocabularies import TEXTS, letter_pair, relabelled

TARGET, DRAFT = ["a", "b", "c", "ab", "bc", "abc", "ca"], ["c", "b", "a", "ca", "bb", "ab", "aba"]
LETTERS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def same(exact):
    """The embedded pair, whose draft has its tokens numbered in another order."""
    return relabelled(exact, exact.vocab_size)


@pytest.fixture(scope="module")
def fewer(exact):
    """Likewise, without the last 596 tokens."""
    return relabelled(exact, 3500)


@pytest.fixture(scope="module")
def requests(exact):
    prompts = [(prompt.name, tuple(exact.encode(prompt.text))) for prompt in load_prompts("embedded:embedded.jsonl", 2)]
    return [Request(*prompt, 7 + i, MIXED[2 * i], 14 + 3 * i) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def letter_requests():
    """Of tokens that the draft has, and of others; for the pair of letter_models."""
    rng = random.Random(3)
    prompts = [tuple(rng.randrange(7) for _ in range(1 + 2 * i)) for i in range(7)]
    return [Request(str(i), prompt, 50 + i, MIXED[i % 5], 3 + 2 * i) for i, prompt in enumerate(prompts)]


# Token-level intersection


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [(ModelDrafter, BlockVerifier), (lambda: TreeDrafter([2, 2]), TreeVerifier)],
)
@pytest.mark.usefixtures("unchecked")
def test_a_draft_with_its_tokens_in_another_order_drafts_the_same(exact, same, requests, drafter, verifier):
    expected = decoder(exact, 3, drafter=drafter(), verifier=verifier()).run(requests)
    completions = decoder(same, 3, drafter=drafter(), verifier=verifier()).run(requests, at_once=3)
    assert logs(completions) == logs(expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("unchecked")
def test_compiled_steps_on_a_cpu_write_the_same(letter_models, letter_requests):
    """Such a draft had no dtype of its own, which nothing but these steps asked for."""
    pair, *_ = letter_models
    made = decoder(pair, drafter=ModelDrafter(), verifier=TreeVerifier(), engine=CompiledEngine())
    expected = decoder(pair, drafter=ModelDrafter(), verifier=TreeVerifier())
    assert logs(made.run(letter_requests)) == logs(expected.run(letter_requests))
    assert made.engine.name == "compiled"


def test_cached_logits_are_those_of_a_whole_pass(letter_models):
    """Texts whose tokens the draft often lacks, extended and taken back by different amounts."""
    engine, rng = cached_draft(letter_models[0]), random.Random(2)
    texts = [[rng.randrange(7) for _ in range(30)] for _ in range(3)]
    engine.start([text[:5] for text in texts], 40)
    assert engine.capacity == 40
    for _ in range(12):
        before = engine.lengths.tolist()
        counts = [min(rng.randrange(6), 30 - length) for length in before]
        fed = [(text[length : length + 6] + [0] * 6)[:6] for text, length in zip(texts, before, strict=True)]
        logits = engine.extend(torch.tensor(fed), torch.tensor(counts)).logits
        for b, (text, length, count) in enumerate(zip(texts, before, counts, strict=True)):
            torch.testing.assert_close(logits[b, :count], engine.score(text[: length + count])[length:])
        engine.truncate(torch.tensor([rng.randrange(4, 25) for _ in texts]))


def test_a_text_that_no_memory_is_left_for_is_read_in_fewer_tokens():
    """Tokens of five pieces, one after the other: the draft knows less of the text, and all of it finds its place."""
    pair = letter_pair(["a", "b", "ab", "aba", "abaa", "abaab"], ["a", "b"])
    engine, longest = cached_draft(pair), 5
    engine.start([[longest] * 10], 40)
    engine.show(1)
    for _ in range(14):
        logits = engine.extend(torch.tensor([[longest, longest]]), torch.tensor([2])).logits
    assert engine.lengths.tolist() == [37]
    assert logits[..., :2].isfinite().all()
    assert logits[..., 2:6].isneginf().all()


@pytest.mark.usefixtures("unchecked")
def test_fewer_tokens_shared_accept_nearly_as_many(exact, fewer, requests):
    def length(pair, drafter):
        steps = [s for completion in decoder(pair, 3, drafter=drafter).run(requests) for s in completion.steps]
        return 1 + sum(step.num_accepted for step in steps) / len(steps)

    usual = length(exact, ModelDrafter())
    assert length(fewer, ModelDrafter()) > 0.85 * usual
    assert length(fewer, StringsDrafter()) > 0.6 * usual


# Both


def test_what_others_of_a_batch_draft_does_not_change_how_a_text_is_read():
    """The draft writes as many letters for each text as the longest draft has. A text counts those of its own."""
    pair = letter_pair(LETTERS, ["a", "b", "c", "ab", "bc", "ca"])
    rng = random.Random(1)
    requests = [
        Request(str(i), tuple(rng.randrange(3) for _ in range(4)), i, SamplingParams(), 30, 1 + 2 * (i % 2))
        for i in range(12)
    ]
    made = decoder(pair, 3, drafter=StringsDrafter(sampled=True))
    alone = [made.run([request])[0] for request in requests]
    assert texts(made.run(requests, at_once=4)) == texts(alone)
    assert logs(made.run(requests)) == logs(alone)


@pytest.mark.parametrize("drafter", [ModelDrafter(), TreeDrafter([2, 1, 1])], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine()], ids=["eager", "static"])
def test_a_draft_ends_where_the_sampler_bans_all_of_its_tokens(letter_models, drafter, temperature, engine):
    """Token 1, "b", is shared; "bc" and "abc" are not. Then nothing is drafted, and plain decoding goes on."""
    pair, *_ = letter_models
    shared = pair.translation.shared.tolist()
    assert [shared[token] for token in (1, 4, 5)] == [True, False, False]
    of_all = [SamplingParams(temperature=temperature, allowed_token_ids=ids) for ids in ([4, 5], [1, 4, 5], None)]
    requests = [Request(str(i), (0, 2), 5 + i, sampling, 9) for i, sampling in enumerate(of_all)]
    completions = decoder(pair, 3, drafter=drafter, verifier=TreeVerifier(), engine=engine).run(requests)
    drafted = [sum(step.num_draft_tokens for step in completion.steps) for completion in completions]
    assert drafted[0] == 0 < min(drafted[1:])
    assert set(completions[0].token_ids) <= {4, 5}
    plain = decoder(pair, 0).run(requests)
    assert texts(completions)[0] == texts(plain)[0]  # each token is drawn by the same numbers
    if temperature == 0:
        assert texts(completions) == texts(plain)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.usefixtures("unchecked")
def test_where_nothing_can_be_drafted_the_draft_shares_nothing(letter_models, temperature):
    pair, *_ = letter_models
    sampling = SamplingParams(temperature=temperature, allowed_token_ids=[4, 5])
    (text,) = decoded = specbench.decode(pair, [[0, 2]], gamma=2, sampling=sampling, max_new_tokens=6, overlap=True)
    trace = specbench.record(pair, [[0, 2]], sampling=sampling, max_new_tokens=6)
    assert (decoded.overlap, decoded.acceptance_rate, len(text.token_ids)) == (0, None, 6)
    for name in ("overlap", "draft_entropy", "draft_confidence", "argmax_agree"):
        assert not trace.columns[name].any(), name
    assert (trace.columns["log_q"] == -torch.inf).all()


@pytest.fixture(scope="module")
def letter_models():
    """A pair of 8 tokens each, 6 of them shared, and the target's joint distribution of three tokens after "ab"."""
    pair = letter_pair(TARGET, DRAFT)
    return pair, *after_ab(pair)


@pytest.fixture(scope="module")
def letter_by_letter():
    """The same target and a draft of letters, three or fewer of which are a token of the target."""
    pair = letter_pair(TARGET, LETTERS)
    return pair, *after_ab(pair)


def after_ab(pair):
    prompt, target = tuple(pair.encode("ab")), CachedModel(pair.target, pair.vocab_size, "target")
    joint = torch.ones(1, dtype=torch.float64)
    for n in range(3):
        rows = [target.score([*prompt, *text])[-1] for text in itertools.product(range(pair.vocab_size), repeat=n)]
        joint = (joint[:, None] * torch.stack(rows).softmax(dim=-1)).flatten()
    return prompt, joint


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("models", "drafter", "verifier"),
    [
        ("letter_models", ModelDrafter, BlockVerifier),
        ("letter_models", lambda: StringsDrafter(sampled=True), MaskedVerifier),
        ("letter_by_letter", lambda: StringsDrafter(sampled=True), lambda: MatchingVerifier(coupled=True)),
    ],
    ids=["intersection", "strings", "coupled"],
)
def test_three_tokens_are_distributed_as_the_targets(models, drafter, verifier, request):
    """A text draft that drew with the random numbers of other drafts would bias "coupled": a token of the target is
    known by what comes after it."""
    pair, prompt, joint = request.getfixturevalue(models)
    requests = [Request(str(i), prompt, i, SamplingParams(), 3) for i in range(2500)]
    made = decoder(pair, 3, drafter=drafter(), verifier=verifier())
    completions = made.run(requests)
    assert sum(step.num_accepted for text in completions for step in text.steps) > len(requests) / 15
    ids = torch.tensor([text.token_ids for text in completions])
    cells = (ids * torch.tensor([pair.vocab_size**2, pair.vocab_size, 1])).sum(dim=1)
    counts = torch.bincount(cells, minlength=len(joint))
    assert node_g_test(counts[None].numpy(), joint[None].numpy()).p_value > 1e-8


# An engine that restricts the draft and keeps no probabilities of it (vLLM pull request 38174)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_a_sampled_draft_that_is_verified_without_its_probabilities_is_lossless(rule):
    """Exactly: the law of the rule with q = 1 at each drafted token, in the mean over all drafts of a restricted q."""
    for fixture in (FIXTURES["chain"], FIXTURES["deep"], FIXTURES["zeros"]):
        drafts = all_drafts(fixture, fixture.gamma)
        one_hot = torch.nn.functional.one_hot(drafts.tokens, fixture.vocabulary).double()
        ends = law_ends(fixture, drafts, law_of(rule, dataclasses.replace(drafts, q=one_hot)))
        apart = (completed(fixture, ends) - target_joint(fixture, fixture.gamma + 1)).abs().sum() / 2
        assert apart < 1e-12


def test_a_restricted_draft_that_is_verified_against_the_whole_q_is_not():
    """The enumeration sees what it should: drawn from what is shared, tested against a q that is not renormalised."""
    fixture = FIXTURES["chain"]
    drafts = all_drafts(fixture, fixture.gamma)
    restricted = drafts.q / drafts.q[..., :-1].sum(dim=-1, keepdim=True)
    restricted[..., -1] = 0  # the last token is not shared
    drawn = dataclasses.replace(drafts, q=restricted)
    assert drawn.weight.sum() == pytest.approx(1)
    joint = target_joint(fixture, fixture.gamma + 1)
    apart = {}
    for name, q in (("restricted", restricted), ("whole", drafts.q)):
        law = law_of(TOKEN, dataclasses.replace(drafts, q=q))
        ends = law_ends(fixture, drawn, law)
        apart[name] = float((completed(fixture, ends) - joint).abs().sum() / 2)
    assert apart["restricted"] < 1e-12
    assert apart["whole"] > 0.03


# What is refused


def test_a_pair_that_shares_nothing_is_refused_with_examples():
    pair = letter_pair(["a", "b", "ab"], ["c", "d", "dc"])
    with pytest.raises(ModelError, match=r"share no token.*'ab'.*'dc'.*drafter=strings"):
        cached_draft(pair)


def test_the_default_refusal_names_the_remedy(tmp_path):
    folder = tiny(tmp_path)
    in_bytes(TEXTS, 300).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"different vocabularies.*pair\.vocabularies=different"):
        load_pair("embedded:target", str(folder), device="cpu")


def test_a_pair_is_loaded_and_says_what_it_shares(tmp_path, capsys):
    folder = tiny(tmp_path, outputs=300)
    in_bytes(TEXTS, 300).save_pretrained(folder)
    pair = load_pair("embedded:target", str(folder), device="cpu", vocabularies="different")
    shared = int(pair.translation.shared.sum())
    assert 257 < shared < 300
    assert f"{shared} of the target's 4096 tokens are among the draft's 300" in capsys.readouterr().err


def test_a_pair_that_may_differ_and_does_not_is_as_any():
    assert load_pair("embedded:target", "embedded:draft", device="cpu", vocabularies="different").translation is None


def test_drafts_as_text_are_not_captured():
    for engine in (StaticEngine(), CompiledCpuEngine()):  # the second takes drafters of the host that take free rows
        with pytest.raises(ConfigError, match="drafter=strings decides on the host.*engine=eager"):
            engine.resolve(Requirements(CPU, StringsDrafter(), MaskedVerifier()))
    assert AutoEngine().resolve(Requirements(CPU, StringsDrafter(), MaskedVerifier(), tokens=10**6)).name == "eager"
    with pytest.raises(ConfigError, match="prompt_chunk.*strings"):
        EagerEngine(4).resolve(Requirements(CPU, StringsDrafter(), MaskedVerifier()))


def test_sampled_has_to_be_a_truth_value():
    with pytest.raises(ConfigError, match=r"drafter\.sampled=yes"):
        StringsDrafter("yes")
