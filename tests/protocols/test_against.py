"""transformers' generate beside our decoding: the same greedy texts, and a difference is noticed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import specbench
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import console
from specbench.decoding import Decoder, Request
from specbench.drafters.model import ModelDrafter
from specbench.metrics.results import write_rows
from specbench.models import Pair
from specbench.models import generate as module
from specbench.models.generate import ASSISTED, PLAIN, STATIC, WAYS, generate
from specbench.protocols import ModelContext
from specbench.protocols import against as module_against
from specbench.protocols.against import against, check_ways, wrong_texts
from specbench.protocols.cost import CostProtocol
from specbench.protocols.decode import DecodeProtocol
from specbench.protocols.predict import PredictProtocol
from specbench.protocols.rounds import Timed
from specbench.sampling import SamplingParams
from tests.helpers.contexts import model_context

GREEDY = SamplingParams(temperature=0.0)
TEXTS = ("def add(a, b):\n    return", "import os\nimport", "class Point:\n    def __init__(self, x, y):\n", "x =")
LENGTH = 12
CHECK = {"prefixes": 1, "draws": 0, "batch_size": 4}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def context(exact: Pair) -> ModelContext:
    prompts = [tuple(exact.encode(text)) for text in TEXTS]
    requests = [Request(str(i), prompt, i, GREEDY, LENGTH) for i, prompt in enumerate(prompts)]
    return model_context(exact, sampling=GREEDY, requests=requests)


@pytest.fixture(scope="module")
def plain(context: ModelContext) -> list[list[int]]:
    return [completion.token_ids for completion in context.decoder(0).run(context.requests)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("way", WAYS)
def test_greedy_texts_are_those_of_plain_decoding(way, context: ModelContext, plain: list[list[int]]):
    """Prompts of different lengths, side by side where that is possible."""
    prompts = [request.prompt for request in context.requests]
    groups = [[prompt] for prompt in prompts] if way == ASSISTED else [prompts]
    made = [text for group in groups for text in generate(context.pair, way, group, GREEDY, LENGTH, gamma=3)]
    assert made == plain


def test_a_text_ends_with_its_first_stop_token(context: ModelContext, plain: list[list[int]]):
    ends = frozenset({plain[0][4]})
    pair = dataclasses.replace(context.pair, stop_ids=ends)
    expected = Decoder(context.target, None, None, 0, ends).run(context.requests)
    assert {completion.finished for completion in expected} == {"stop", "length"}
    prompts = [request.prompt for request in context.requests]
    assert generate(pair, PLAIN, prompts, GREEDY, LENGTH) == [completion.token_ids for completion in expected]


@pytest.mark.parametrize("sharp", [{"temperature": 0.001}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999}], ids=str)
def test_each_sampling_parameter_reaches_generate(sharp, context: ModelContext, plain: list[list[int]]):
    """Each of these leaves the most likely token alone; lost, it would leave the whole distribution."""
    made = generate(context.pair, PLAIN, [context.requests[2].prompt], SamplingParams(**sharp), LENGTH)
    assert made == [plain[2]]
    assert generate(context.pair, PLAIN, [context.requests[2].prompt], SamplingParams(), LENGTH) != made


def test_assisted_generation_drafts_gamma_tokens_a_step(context: ModelContext):
    calls = {"target": 0, "draft": 0}
    models = {"target": context.pair.target, "draft": context.pair.draft}

    def counting(name: str) -> None:
        calls[name] += 1

    hooks = [m.register_forward_pre_hook(lambda *_, name=name: counting(name)) for name, m in models.items()]
    generate(context.pair, ASSISTED, [context.requests[2].prompt], GREEDY, 40, gamma=3)
    for hook in hooks:
        hook.remove()
    whole = 3 * calls["target"]
    assert whole - 3 <= calls["draft"] <= whole  # the last drafts may be shorter


def test_models_are_left_as_they_were(context: ModelContext, monkeypatch: pytest.MonkeyPatch):
    models = (context.pair.target, context.pair.draft)
    before = [(model.config._attn_implementation, model.generation_config) for model in models]
    generate(context.pair, ASSISTED, [context.requests[0].prompt], GREEDY, 4, gamma=2)
    assert [(model.config._attn_implementation, model.generation_config) for model in models] == before
    monkeypatch.setattr(type(context.pair.target), "generate", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(context.pair, PLAIN, [context.requests[0].prompt], GREEDY, 4)
    assert [(model.config._attn_implementation, model.generation_config) for model in models] == before


def test_other_texts_are_noticed_and_excused_by_rounding_alone(context: ModelContext, plain: list[list[int]]):
    batches = [context.requests[:2], context.requests[2:]]
    wrong = [*plain[:3], [*plain[3][:-1], plain[3][-1] + 1]]
    (row,) = against(context, [PLAIN], batches, wrong, rounds=2, decoder=context.decoder(0))
    assert (row.texts, row.equal_texts, row.rounds, row.batch, row.tokens) == (4, 3, 2, 2, sum(map(len, plain)))
    assert row.tokens_per_second == row.tokens / row.seconds
    assert row.note == "1 texts are not those of plain decoding"  # float32 on a CPU: no rounding that excuses it
    assert "transformers: 1 of 4 texts" in wrong_texts([row], CPU, torch.float32)
    assert wrong_texts([row], CPU, torch.bfloat16) is None
    assert wrong_texts([row], torch.device("cuda"), torch.float32) is None
    (row,) = against(context, [PLAIN], batches, plain, rounds=1, decoder=context.decoder(0))
    assert (row.equal_texts, row.note, wrong_texts([row], CPU, torch.float32)) == (4, "", None)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0.5, "2.00 [2.00, 2.00] times plain decoding: it is faster"), (2.0, "plain decoding is faster")],
)
def test_the_faster_of_the_two_is_named(
    seconds, says, context: ModelContext, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    """Two batches of equal length, two rounds: a second each for plain decoding."""
    order, requests = [], context.requests
    timed = [Timed(context.decoder(0).run(requests[i : i + 2]), 1.0, 1) for i in (0, 2)]

    def other(context: ModelContext, way: str, batch: list[Request]) -> Timed:
        order.append(way)
        return dataclasses.replace(timed[requests.index(batch[0]) // 2], seconds=seconds)

    def ours(decoder: Decoder, batch: list[Request]) -> Timed:
        order.append("ours")
        return timed[requests.index(batch[0]) // 2]

    monkeypatch.setattr(module_against, "_decoded", other)
    monkeypatch.setattr(module_against, "decode_timed", ours)
    with console.capture() as shown:
        (row,) = against(context, [PLAIN], [requests[:2], requests[2:]], plain, rounds=2, decoder=context.decoder(0))
    assert row.times_plain == pytest.approx(1 / seconds)
    assert says in " ".join(shown.get().split())
    assert order[1:] == ["ours", PLAIN, PLAIN, "ours", PLAIN, "ours", "ours", PLAIN]  # after the warm-up, in turn


def test_prompts_may_have_lengths_and_gammas_of_their_own(context: ModelContext):
    """generate has one length for all, so longer texts are cut; it drafts as much for every prompt."""
    lengths = (LENGTH, 3, 5, 1)
    requests = [
        dataclasses.replace(r, max_new_tokens=n, gamma=1) for r, n in zip(context.requests, lengths, strict=True)
    ]
    plain = [completion.token_ids for completion in context.decoder(0).run(requests)]
    row, refused = against(
        context, [PLAIN, ASSISTED], [requests[:2], requests[2:]], plain, rounds=1, decoder=context.decoder(0)
    )
    assert (row.tokens, row.equal_texts) == (sum(map(len, plain)), 4)
    assert refused.note == "not possible: prompts have gammas of their own"


def changed(context: ModelContext, **changes: Any) -> ModelContext:
    """The requests sample as the run does."""
    made = dataclasses.replace(context, **changes)
    return dataclasses.replace(
        made, requests=[dataclasses.replace(request, sampling=made.sampling) for request in made.requests]
    )


def test_nobody_knows_which_texts_sampling_should_give(context: ModelContext, plain: list[list[int]]):
    sampled = changed(context, sampling=SamplingParams())
    (row,) = against(sampled, [PLAIN], [sampled.requests[:1]], plain[:1], rounds=1, decoder=context.decoder(0))
    assert row.equal_texts is None
    assert row.tokens > 0
    assert row.times_plain > 0
    assert row.times_plain_low is None  # one batch


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, "takes one request, and the batch has 2"),
        ({"batch_size": 1, "gamma": 0}, "gamma is 0"),
        ({"sampling": SamplingParams(processors=(print,))}, "sampler.processors"),
    ],
)
def test_what_is_not_possible_is_a_row_that_says_so(changes, note, context: ModelContext):
    changed_context = changed(context, **changes)
    size = changed_context.batch_size
    batch = changed_context.requests[:size]
    with console.capture() as shown:
        (row,) = against(changed_context, [ASSISTED], [batch], [[0]] * size, rounds=1, decoder=context.decoder(0))
    assert f"{ASSISTED}: {row.note}" in " ".join(shown.get().split())  # the console says why
    assert (row.tokens, row.tokens_per_second) == (None, None)
    assert note in row.note
    assert row.note.startswith("not possible: ")
    assert wrong_texts([row], CPU, torch.float32) is None


def test_a_way_that_fails_costs_nothing_but_itself(context: ModelContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.GenerationConfig, "__init__", lambda *_, **__: 1 / 0)
    (row,) = against(context, [STATIC], [context.requests[:1]], [[0]], rounds=1, decoder=context.decoder(0))
    assert (row.tokens, row.note) == (None, "failed: ZeroDivisionError: division by zero")
    assert wrong_texts([row], torch.device("cuda"), torch.bfloat16) == f"transformers_static: {row.note}"


@pytest.mark.parametrize("ways", ["transformers", ["vllm"], [PLAIN, PLAIN], 3])
def test_unknown_ways_are_refused(ways):
    with pytest.raises(ConfigError, match=r"protocol.against=.*transformers_static"):
        check_ways(ways)


@pytest.mark.usefixtures("unchecked")
def test_the_protocol_decode_leaves_a_table_and_what_a_step_s_time_is_made_of(context: ModelContext, tmp_path):
    outcome = DecodeProtocol(1, 1, 0, 1, CHECK, against=[PLAIN, ASSISTED]).run(context)
    table = outcome.tables["baselines.parquet"]
    write_rows(tmp_path / "baselines.parquet", table.rows, table.schema)
    assert [(row.name, row.equal_texts) for row in table.rows] == [(PLAIN, 4), (ASSISTED, None)]
    steps = [step["prompt"] for step in outcome.tables["steps.parquet"].rows]
    longest = [max(steps.count(name) for name in names) for names in (("0", "1"), ("2", "3"))]
    measured = outcome.measured
    assert (measured["batch_steps"], outcome.failure) == (longest, None)
    assert measured["batch_plain_steps"] == [LENGTH, LENGTH]
    assert 0 < measured["seconds_prompts"] < measured["seconds"]
    assert 0 < measured["plain_seconds_prompts"] < measured["plain_seconds"]
    parts = sum(measured[f"seconds_{phase}"] for phase in ("draft", "target", "verify", "commit", "rest"))
    assert parts == pytest.approx(measured["seconds"])
    assert measured["seconds_rest"] > 0  # neither the warm-up nor an earlier batch is among the times
    models = (context.pair.target, context.pair.draft)
    sizes = [sum(weight.numel() * weight.element_size() for weight in model.parameters()) for model in models]
    assert [measured["weight_bytes_target"], measured["weight_bytes_draft"]] == sizes
    assert measured["copy_bandwidth"] is None


class Head(ModelDrafter):
    """Has probabilities, and no model that would rate texts which it did not draft."""

    def _attach(self, pair, target):
        super()._attach(pair, target)
        self._inner, self.model = self.model, None

    @property
    def _bound_model(self):
        return self._inner


@pytest.mark.usefixtures("unchecked")
def test_a_drafter_with_probabilities_and_no_model_leaves_all_but_the_overlap(context: ModelContext):
    head = dataclasses.replace(context, drafter=Head().bind(context.pair, context.target))
    measured = DecodeProtocol(1, 1, 0, 0, CHECK).run(head).measured
    assert (measured["overlap"], measured["weight_bytes_draft"]) == (None, None)
    plain = DecodeProtocol(1, 1, 0, 0, CHECK).run(context)
    assert measured["acceptance_rate"] == plain.measured["acceptance_rate"]
    assert "baselines.parquet" not in plain.tables  # nothing was asked for beside
    assert specbench.decode(context.pair, "def f(", drafter=Head(), max_new_tokens=4, overlap=True).overlap is None


@pytest.mark.usefixtures("unchecked")
def test_a_prediction_with_such_a_drafter_is_refused_before_anything_is_timed(context: ModelContext, monkeypatch):
    monkeypatch.setattr(CostProtocol, "measure", lambda *_: pytest.fail("timed"))
    head = dataclasses.replace(context, drafter=Head().bind(context.pair, context.target))
    cost = {"batches": [1, 2], "gammas": [0, 1, 2], "contexts": [48], "steps": 3, "rounds": 1}
    with pytest.raises(ConfigError, match="has no probabilities that could be recorded"):
        PredictProtocol([1, 2], [1], 1, 0, cost).run(head)


def test_a_prediction_needs_costs_around_its_batch_size(context: ModelContext):
    cost = {"batches": [2, 4], "gammas": [0, 1], "contexts": [48], "steps": 3, "rounds": 1}
    protocol = PredictProtocol([1], [1], 1, 0, cost)
    protocol.precheck(dataclasses.replace(context, batch_size=3))
    for size in (1, 5):
        with pytest.raises(ConfigError, match="costs are measured from 2 to 4"):
            protocol.precheck(dataclasses.replace(context, batch_size=size))
