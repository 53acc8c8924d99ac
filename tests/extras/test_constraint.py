"""Constrained decoding: texts keep to their grammar along any draft, and drafting changes none of them."""

import dataclasses
import json
import math
import re
from typing import Any

import pytest
import torch

import specbench
from specbench.core.errors import ArgumentError, ConfigError, ModelError, NotInstalledError
from specbench.decoding import Completion
from specbench.decoding.engines import Requirements
from specbench.decoding.engines.auto import AutoEngine
from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.extras.structured import Constraint
from specbench.extras.structured.grammars import grammar_of
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.runs.samplings import processors_text, sampling_params
from specbench.sampling import History, RowParams, SamplingParams, on_host
from tests.decoding.test_decoding import make_requests, texts
from tests.helpers.cases import decoder

xgrammar = pytest.importorskip("xgrammar")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        set(person) == {"name", "age"}
        and isinstance(person["name"], str)
        and len(person["name"]) <= 6
        and type(person["age"]) is int
        and 0 <= person["age"] <= 99
    )


REGEX = "[a-z]{1,8}_[0-9]{2}"
CALLS = 'root ::= "f(" arg ")"\narg ::= [a-z] | root'
FORMS = {  # each with what its texts have to be
    "json": (PERSON, is_person),
    "regex": (REGEX, lambda text: re.fullmatch(REGEX, text)),
    "grammar": (CALLS, lambda text: re.fullmatch(r"(f\()+[a-z]\)+", text) and text.count("(") == text.count(")")),
    "choice": (["yes", "no", 'say "é"\n'], lambda text: text in ("yes", "no", 'say "é"\n')),
}


def requests_of(pair, kind: str, temperature: float, count: int = 2, longest: int = 40):
    sampling = pair.resolved(SamplingParams(temperature=temperature, structured_outputs={kind: FORMS[kind][0]}))
    return make_requests(pair, count, sampling, max_new_tokens=longest)


def written(pair, completion: Completion) -> str:
    return pair.tokenizer.decode(completion.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.cases(2)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", FORMS)
def test_drafting_changes_no_greedy_text_and_all_keep_to_the_grammar(exact, kind):
    """Masks of another position, or matchers that rejected drafts have left elsewhere, give other texts."""
    requests = requests_of(exact, kind, 0.0)
    plain = decoder(exact, 0).run(requests)
    for drafter, verifier in (
        (None, BlockVerifier()),
        (PromptLookupDrafter(), MaskedVerifier()),
        (TreeDrafter([2, 2, 1]), TreeVerifier()),
    ):
        assert texts(decoder(exact, 3, drafter=drafter, verifier=verifier).run(requests)) == texts(plain)
    check(exact, kind, plain)


def check(pair, kind: str, completions: list[Completion]) -> None:
    """Of those that have come to their end, as half of them have to: a text without an end is no fault."""
    ended = [written(pair, completion) for completion in completions if completion.finished == "stop"]
    assert 2 * len(ended) >= len(completions)
    assert all(FORMS[kind][1](text) for text in ended), ended


@pytest.mark.cases(2)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", FORMS)
def test_sampled_texts_keep_to_the_grammar(pair, kind):
    """Beside a request without any: each has its own mask, whichever row it stands in."""
    requests = requests_of(pair, kind, 1.0, count=4)
    requests[2] = dataclasses.replace(requests[2], sampling=SamplingParams())
    completions = decoder(pair, 3, verifier=BlockVerifier()).run(requests, at_once=3)
    alone = decoder(pair, 3, verifier=BlockVerifier()).run(requests[2:3])
    assert texts(completions[2:3]) == texts(alone)
    check(pair, kind, completions[:2] + completions[3:])


def fresh(constraint: Constraint, text: list[int], vocabulary: int) -> set[int]:
    """The tokens that a new matcher, fed token by token, allows after a text."""
    matcher = xgrammar.GrammarMatcher(constraint._compiled)
    for token in text:
        if matcher.is_terminated():
            return {0}
        if not matcher.accept_token(token):
            return set(range(vocabulary))
    if matcher.is_terminated():
        return {0}
    bitmask = xgrammar.allocate_token_bitmask(1, vocabulary)
    matcher.fill_next_token_bitmask(bitmask)
    words = bitmask[0].tolist()
    return {i for i in range(vocabulary) if words[i // 32] >> (i % 32) & 1}


def test_an_interrupt_within_a_matcher_changes_no_later_mask(pair, monkeypatch):
    """Ctrl-C behind an accepted token: the matcher was ahead of the tokens that it had noted."""
    sampling = pair.resolved(SamplingParams(structured_outputs={"regex": REGEX}))
    (constraint,) = sampling.processors
    prompt, text = (pair.tokenizer.encode(part, add_special_tokens=False) for part in ("x_12 = ", "ab_12"))
    none, first = torch.zeros((1, 0), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)

    def allowed(length: int) -> set[int]:
        lengths = torch.tensor([len(prompt)]), torch.tensor([len(prompt) + length])
        history = History(torch.tensor([[*prompt, *text]]), *lengths, none, first, first)
        return set(constraint.allowed(history)[0].nonzero()[:, 0].tolist())

    def interrupted(matcher: Any, token: int) -> None:
        accept(matcher, token)
        raise KeyboardInterrupt

    allowed(1)
    accept = xgrammar.GrammarMatcher.accept_token
    with monkeypatch.context() as patched:
        patched.setattr(xgrammar.GrammarMatcher, "accept_token", interrupted)
        with pytest.raises(KeyboardInterrupt):
            allowed(len(text))
    assert allowed(len(text)) == fresh(constraint, text, pair.vocab_size)


def test_the_mask_of_each_position_is_that_of_a_fresh_matcher(pair):
    """Of drafts that are taken back, forbidden or behind the end, of requests that change rows, of trees' nodes."""
    sampling = pair.resolved(SamplingParams(structured_outputs={"regex": REGEX}))
    (constraint,) = sampling.processors
    assert pair.stop_ids == {0}

    def ids(text: str) -> list[int]:
        return pair.tokenizer.encode(text, add_special_tokens=False)

    prompt, right = ids("x_12 = "), [*ids("ab_12"), 0, 0]
    wrong, stray = [*ids("ab"), *ids("ZZ"), *ids("_1")], [0, *ids("ab")]
    for texts_of, drafts in (
        ([[], right[:1]], [right, right[1:]]),
        ([[], right[:1]], [wrong, right[1:]]),
        ([right[:2], []], [right[2:], stray]),
        ([right[:1], right, wrong], [wrong[1:], right, right]),
    ):
        width = min(len(draft) for draft in drafts)
        whole = torch.tensor([[*prompt, *text, *[7] * 20][:24] for text in texts_of])
        count = len(texts_of)
        history = History(
            whole, torch.full((count,), len(prompt)), torch.tensor([len(prompt) + len(text) for text in texts_of]),
            torch.tensor([draft[:width] for draft in drafts]), torch.arange(count).repeat_interleave(width + 1),
            torch.arange(width + 1).repeat(count),
        )  # fmt: skip
        made = constraint(torch.zeros(len(history.request), pair.vocab_size), history)
        for row, (request, offset) in enumerate(zip(history.request.tolist(), history.offset.tolist(), strict=True)):
            allowed = fresh(constraint, [*texts_of[request], *drafts[request][:offset]], pair.vocab_size)
            assert set((made[row] == 0).nonzero()[:, 0].tolist()) == allowed, (request, offset)
    with pytest.raises(ArgumentError, match=r"logits: 7 tokens; Constraint\(regex: .* was compiled for 4096"):
        constraint(torch.zeros(1, 7), history)


def test_equal_structures_are_one_processor_and_masks_come_last(pair):
    params = SamplingParams(structured_outputs={"regex": REGEX}, processors=(print,))
    one, two = pair.resolved(params), pair.resolved(params)
    assert one.processors[0] is print
    assert one.processors[1] is two.processors[1]
    assert pair.resolved(one) is one
    assert len(RowParams.of([one, two]).chains) == 1


@pytest.mark.parametrize(
    ("structure", "says"),
    [
        ({"json": {"type": "objekt"}}, "cannot be compiled"),
        ({"json": '{"type"'}, "cannot be compiled"),
        ({"regex": "[0-9"}, "Unclosed"),
        ({"regex": "("}, r"is not closed\. Give a regular expression"),
        ({"grammar": 'start ::= "a"'}, r"root .*\. Give EBNF whose first rule is called root"),
        ({"choice": "yes"}, "cannot be compiled"),
        ({"choice": ["yes", ""]}, "no list of texts, or one of them is empty"),
        ({"json": {"properties": {"not": {"uniqueItems": True}}}}, "'uniqueItems'"),
        ({"json": {"$defs": {"a": {"not": {"type": "string"}}}}}, "'not'"),
        ({"json": {"$ref": "other.json"}}, "does not follow the reference 'other.json'"),
        ({"json": {"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}}, "does not follow the reference '#name'"),
        ({"json": {"$dynamicRef": "#x"}}, "'\\$dynamicRef'"),
        ({"json": {"dependencies": {"a": ["b"]}}}, "'dependencies'"),
        ({"json": {"items": [{"allOf": [{"type": "integer"}, {"minimum": 5}]}]}}, "'allOf'"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_any_model(structure, says):
    with pytest.raises(ConfigError, match=rf"(?s)sampler\.structured_outputs=.*{says}"):
        sampling_params({"processors": [], "structured_outputs": structure})


def test_references_inside_a_schema_are_followed():
    grammar_of("json", json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}))
    grammar_of("json", json.dumps({"type": "object", "properties": {"next": {"$ref": "#"}}}))


def test_names_and_data_in_a_schema_are_no_keywords():
    grammar_of("json", json.dumps({"properties": {"not": {"enum": [{"if": 1}]}}, "uniqueItems": False, "allOf": [{}]}))


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    def without(name, *args, **kwargs):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(NotInstalledError, match=r"xgrammar.*pip install 'specbench\[grammar\]'"):
        grammar_of("regex", "a")


def test_a_cuda_graph_cannot_hold_it(pair):
    sampling = SamplingParams(structured_outputs={"regex": REGEX})
    assert on_host(sampling) == "sampler.structured_outputs"
    resolved = pair.resolved(sampling)
    assert RowParams.of([SamplingParams(), resolved]).on_host == "Constraint"
    assert on_host(SamplingParams(processors=(print,))) == ""
    gpu = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"engine=graph: sampler\.structured_outputs works on the host"):
        GraphEngine().resolve(Requirements(gpu, None, None, on_host=on_host(sampling)))
    assert AutoEngine().resolve(Requirements(gpu, None, None, on_host=on_host(sampling))).name == "eager"
    requests = make_requests(pair, 2, resolved, max_new_tokens=8)
    assert texts(decoder(pair, engine=StaticEngine()).run(requests)) == texts(decoder(pair).run(requests))


def test_an_end_that_min_tokens_forbids_is_named_as_the_user_does(pair):
    """The mask is a processor, which the user did not name."""
    sampling = SamplingParams(structured_outputs={"choice": ["a"]}, min_tokens=3)
    with pytest.raises(ModelError, match=r"Check whether sampling\.min_tokens and sampling\.structured_outputs leave"):
        specbench.decode(pair, ["x = "], sampling=sampling, max_new_tokens=4)


@pytest.mark.parametrize(
    ("ignore_eos", "remedy"), [(True, "Leave ignore_eos out, or name an id in stop_token_ids"), (False, "eos_token_id")]
)
def test_a_structure_whose_end_no_token_may_follow_is_refused_with_what_to_change(pair, ignore_eos, remedy):
    """A pair with a stop token was said to have none where the request ignores it."""
    sampling = SamplingParams(structured_outputs={"choice": ["a"]}, ignore_eos=ignore_eos)
    lacking = pair if ignore_eos else dataclasses.replace(pair, stop_ids=frozenset())
    with pytest.raises(ConfigError, match=f"no token ends a text, .* {remedy}"):
        lacking.resolved(sampling)
    named = dataclasses.replace(sampling, stop_token_ids=(5,))
    assert lacking.resolved(named).processors


def test_a_prompt_that_is_fed_in_pieces_has_no_continuation(pair, capfd):
    """Its row has fewer tokens than its prompt. A place before its end would count from the end of the row, where
    padding is, of which xgrammar warns on stderr."""
    (constraint,) = pair.resolved(SamplingParams(structured_outputs={"regex": REGEX})).processors
    texts_of, prompts, lengths = torch.full((1, 12), 7), torch.tensor([5]), torch.tensor([1])
    none, place = torch.zeros((1, 0), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    allowed = constraint.allowed(History(texts_of, prompts, lengths, none, place, place))
    assert set(allowed[0].nonzero()[:, 0].tolist()) == fresh(constraint, [], pair.vocab_size)
    assert capfd.readouterr().err == ""


def test_traces_and_rows_name_it(pair):
    sampling = SamplingParams(structured_outputs={"regex": REGEX})
    trace = specbench.record(pair, ["x = "], sampling=sampling, max_new_tokens=8)
    settings = {"processors": [], "structured_outputs": {"regex": REGEX}}
    expected = json.dumps([{"structured_outputs": {"regex": REGEX}}])
    assert trace.identity.processors == processors_text(settings) == expected
    assert math.isfinite(trace.columns["log_p"].sum())
    nothing = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"sampling\.structured_outputs: needs the text before each position"):
        specbench.verify(torch.zeros(1, 9), nothing, seeds=1, positions=1, num_draft_tokens=[0], sampling=sampling)


def test_a_schema_keeps_the_order_of_its_properties():
    """Texts have their properties in the same order."""
    schema = {"properties": {"b": {}, "a": {}}}
    structure = SamplingParams(structured_outputs={"json": schema}).structure
    assert list(json.loads(structure[1])["properties"]) == ["b", "a"]
