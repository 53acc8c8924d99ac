"""Turns behind the target's replies, chat templates, and requests that differ in their parameters."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer

from specbench.core.errors import ConfigError
from specbench.decoding import Decoder, Request
from specbench.models import Pair, load_pair
from specbench.models.tokenizer import Chat, chat_of, joined, token_ids
from specbench.protocols.decode import DecodeProtocol
from specbench.protocols.scoring import score_texts
from specbench.runs.building import make_requests
from specbench.runs.config import Config, WorkloadConfig
from specbench.runs.conversations import all_turns
from specbench.runs.samplings import all_samplings
from specbench.runs.workloads import Prompt, load_prompts
from specbench.sampling import SamplingParams
from tests.helpers.cases import decoder, in_float64
from tests.helpers.checkpoints import EMBEDDED, tiny
from tests.helpers.contexts import model_context

GREEDY = SamplingParams(temperature=0.0)
CHECK = {"prefixes": 1, "draws": 0, "batch_size": 1}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two random models of one layer, in float64, so that no batch moves a token."""
    target, draft = (tiny(tmp_path_factory.mktemp("pair") / str(seed), seed=seed) for seed in (1, 2))
    return in_float64(load_pair(str(target), str(draft), device="cpu"))


def plain_decoder(pair: Pair) -> Decoder:
    return decoder(pair, gamma=0)


def turns_of(pair: Pair, prompts: list[Prompt], sampling: SamplingParams = GREEDY, **settings: Any) -> list[Request]:
    config = Config(workload=WorkloadConfig(path="p.jsonl"), max_new_tokens=6, **settings)
    return all_turns(prompts, lambda some: make_requests(some, pair, sampling, config), lambda: plain_decoder(pair), 2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams()], ids=["greedy", "hot"])
def test_each_turn_holds_the_very_replies_to_those_before_it(sampling, small):
    """Catches a reply that is another request's, cut, decoded by another seed, or told before its turn is due."""
    prompts = [
        Prompt("a", "def f(x):\n", "line 1", further=("def g(x):\n", "def h(x):\n"), category="c"),
        Prompt("b", "import os\n", "line 2"),
        Prompt("c", "class A:\n", "line 3", further=("class B:\n",)),
    ]
    requests = turns_of(small, prompts, sampling)
    assert [(request.name, request.turn, request.conversation, request.category) for request in requests] == [
        ("a", 1, "a", "c"), ("a#turn-2", 2, "a", "c"), ("a#turn-3", 3, "a", "c"),
        ("b", 1, "b", ""), ("c", 1, "c", ""), ("c#turn-2", 2, "c", ""),
    ]  # fmt: skip
    alone = {request.name: plain_decoder(small).run([request])[0].token_ids for request in requests}
    replies = {name: small.tokenizer.decode(ids, skip_special_tokens=True) for name, ids in alone.items()}
    expected = {
        "a#turn-2": f"def f(x):\n{replies['a']}\n\ndef g(x):\n",
        "a#turn-3": f"def f(x):\n{replies['a']}\n\ndef g(x):\n{replies['a#turn-2']}\n\ndef h(x):\n",
        "c#turn-2": f"class A:\n{replies['c']}\n\nclass B:\n",
    }
    for request in requests:
        if request.turn > 1:
            assert request.prompt == tuple(small.encode(expected[request.name])), request.name
    assert len({request.seed for request in requests}) == len(requests)


@pytest.mark.usefixtures("unchecked")
def test_replies_that_are_cut_before_a_later_turn_are_said(small, capfd):
    prompts = [
        Prompt("a", "def f(x):\n", "line 1", further=("x",)),
        Prompt("b", "import os\n", "line 2", further=("y", "z")),
    ]
    (first, *_) = turns_of(small, [Prompt("a", "def f(x):\n", "line 1")])
    turns_of(small, prompts)
    output = capfd.readouterr().err
    assert "3 of 3 replies that stand before a later turn were cut at their max_new_tokens" in output
    stop = plain_decoder(small).run([first])[0].token_ids[2]
    turns_of(dataclasses.replace(small, stop_ids=frozenset({stop})), [prompts[0]])
    assert "were cut" not in capfd.readouterr().err


@pytest.mark.usefixtures("unchecked")
def test_what_stopped_a_reply_is_not_told(small):
    (first,) = turns_of(small, [Prompt("a", "def f(x):\n", "line 1")])
    stop = plain_decoder(small).run([first])[0].token_ids[2]
    stopping = dataclasses.replace(small, stop_ids=frozenset({stop}))
    reply = plain_decoder(stopping).run([first])[0].token_ids
    assert reply[-1] == stop
    assert len(reply) <= 3
    sampling = dataclasses.replace(GREEDY, include_stop_str_in_output=True)  # of what is shown, not of what is fed
    turns = turns_of(stopping, [Prompt("a", "def f(x):\n", "line 1", further=("x",))], sampling)
    assert turns[1].prompt == tuple(small.encode(f"def f(x):\n{small.tokenizer.decode(reply[:-1])}\n\nx"))


def test_a_turn_that_does_not_fit_is_named(small):
    prompt = Prompt("a", "def f(x):\n", "line 4", further=("x " * small.context,))
    with pytest.raises(
        ConfigError, match=r"max_new_tokens=6: line 4: prompt 'a#turn-2' has \d+ tokens, and the pair's"
    ):
        turns_of(small, [prompt])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True)


SAY = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
CONVERSATION = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


def written(tokenizer: Any, template: str | None, prompt: Any, **options: Any) -> str:
    tokenizer.chat_template = template
    ids = token_ids(tokenizer, prompt, chat_of(tokenizer, None, **options), len(tokenizer))
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
def test_templates_are_told_of_thinking_by_the_name_that_they_know(switch, tokenizer):
    template = SAY + "{% if " + switch + " is defined and not " + switch + " %}no thoughts{% endif %}"
    assert written(tokenizer, template, "a") == "<user>a<assistant>"
    assert written(tokenizer, template, "a", thinking=True) == "<user>a<assistant>"
    assert written(tokenizer, template, "a", thinking=False) == "<user>a<assistant>no thoughts"


def test_templates_that_know_no_thinking_or_no_system_prompt_are_named(tokenizer):
    with pytest.raises(ConfigError, match=r"pair\.thinking=False: .*knows no switch for it \(enable_thinking or"):
        written(tokenizer, SAY, "a", thinking=False)
    with pytest.raises(ConfigError, match=r"pair\.thinking=True: there is no chat template"):
        written(tokenizer, None, "a", thinking=True)
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + SAY
    assert written(tokenizer, refusing, "a") == "<user>a<assistant>"
    with pytest.raises(ConfigError, match=r"pair\.system='S': .*takes no system prompt \(TemplateError: no\)"):
        written(tokenizer, refusing, "a", system="S")


def test_conversations_go_through_the_template_with_one_system_prompt(tokenizer):
    assert written(tokenizer, SAY, CONVERSATION, system="S") == "<system>S<user>a<assistant>b<user>c<assistant>"
    conversation = [{"role": "system", "content": "own"}, *CONVERSATION]
    assert written(tokenizer, SAY, conversation, system="S") == "<system>own<user>a<assistant>b<user>c<assistant>"
    assert joined(conversation) == "own\n\nab\n\nc"
    plain = token_ids(tokenizer, CONVERSATION, Chat(False, "S"), len(tokenizer))
    assert plain == tokenizer("S\n\nab\n\nc").input_ids


# Requests of a log


LOG = [
    {"prompt": "def f(x):\n", "temperature": 0, "max_tokens": 9, "category": "cold"},
    {"prompt": "import os\n", "top_p": 0.5, "category": "hot"},
    {"prompt": "class A:\n", "gamma": 1, "category": "hot"},
    {"prompt": "def g(x):\n", "seed": 11, "max_tokens": 5, "category": "cold"},
]


def logged(folder: Path, *lines: dict[str, Any]) -> tuple[Config, list[Prompt]]:
    """A run on a log of these lines, and its prompts."""
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return Config(workload=WorkloadConfig(path=str(path)), gamma=3, max_new_tokens=7), load_prompts(str(path))


@pytest.mark.usefixtures("unchecked")  # JSON's 0 is no float
def test_a_line_s_parameters_stand_in_the_places_of_the_run_s(small, tmp_path):
    run = SamplingParams(temperature=0.8, top_k=20)
    config, prompts = logged(tmp_path, *LOG)
    made = make_requests(prompts, small, run, config)
    assert [request.sampling for request in made] == [
        SamplingParams(temperature=0.0, top_k=20),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.5),
        run,
        run,
    ]
    assert [request.max_new_tokens for request in made] == [9, 7, 7, 5]
    assert [request.gamma for request in made] == [None, None, 1, None]
    assert made[3].seed == 11


@pytest.mark.usefixtures("unchecked")
def test_a_line_s_length_stands_in_the_place_of_the_samplers(small, tmp_path):
    """Also where the line asks for more tokens at least than the sampler allows, or than max_new_tokens does."""
    run = SamplingParams(max_tokens=5)
    config, prompts = logged(tmp_path, {"prompt": "a", "min_tokens": 7, "max_tokens": 9})
    all_samplings(prompts, config, run, mixed=True)
    (request,) = make_requests(prompts, small, run, config)
    assert (request.max_new_tokens, request.sampling.min_tokens) == (9, 7)
    config, prompts = logged(tmp_path, {"prompt": "a", "min_tokens": 9})  # above max_new_tokens=7
    all_samplings(prompts, config, SamplingParams(max_tokens=12), mixed=True)
    config, prompts = logged(tmp_path, {"prompt": "a", "max_tokens": 9})
    all_samplings(prompts, config, run, mixed=False)  # sampled as the run's texts are


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"temperature": -1}, "temperature=-1: below 0"),
        ({"temperature": math.nan}, "temperature=nan: not a finite number"),
        ({"top_p": "much"}, "top_p=much: not a finite number"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens=4: above max_tokens=3"),
        ({"min_tokens": 8}, "min_tokens=8: above max_tokens=7"),
        ({"allowed_token_ids": []}, "allowed_token_ids=[]"),
        ({"stop": [""]}, "stop="),
        ({"structured_outputs": {"regex": "[0-9"}}, "structured_outputs={regex: [0-9}"),
    ],
)
def test_wrong_parameters_name_file_line_request_and_parameter(line, words, tmp_path):
    config, prompts = logged(tmp_path, {"prompt": "a"}, {"prompt": "b", "prompt_id": "mine", **line})
    with pytest.raises(ConfigError) as caught:
        all_samplings(prompts, config, SamplingParams(), mixed=True)
    assert str(caught.value).startswith(f"workload.path={config.workload.path}: line 2: prompt 'mine': {words}")


def test_a_prompt_with_the_name_of_another_s_continuation_is_refused(tmp_path):
    """Logs of texts and steps would hold two requests under one name."""
    config, prompts = logged(tmp_path, {"prompt": "a", "prompt_id": "x", "n": 3}, {"prompt": "b", "prompt_id": "x#2"})
    with pytest.raises(ConfigError, match=r"line 2: 'x#2' is what continuation 2 of prompt 'x' is called \(.*n=3\)"):
        all_samplings(prompts, config, SamplingParams(), mixed=True)
    all_samplings(prompts[1:], config, SamplingParams(n=3), mixed=True)
    with pytest.raises(ConfigError, match=r"line 2: 'x#2'"):
        all_samplings(
            [dataclasses.replace(prompt, sampling={}) for prompt in prompts], config, SamplingParams(n=3), mixed=True
        )


def test_a_prompt_with_the_name_of_another_s_later_turn_is_refused(tmp_path):
    """Traces tell conversations by these names, and would take two prompts for one."""
    config, prompts = logged(tmp_path, {"prompt": "a", "prompt_id": "x#turn-2"}, {"prompt": "b", "prompt_id": "x"})
    with pytest.raises(ConfigError, match=r"line 1: 'x#turn-2' is what a later turn of prompt 'x' is called\. Rename"):
        all_samplings(prompts, config, SamplingParams(), mixed=True)
    all_samplings(prompts[:1], config, SamplingParams(), mixed=True)


def test_a_protocol_of_one_sampler_refuses_lines_with_another(tmp_path):
    config, prompts = logged(tmp_path, {"prompt": "a", "temperature": 1.0}, {"prompt": "b", "temperature": 0.5})
    all_samplings(prompts[:1], config, SamplingParams(), mixed=False)  # what it says is the run's
    with pytest.raises(ConfigError, match=r"line 2: prompt 'line-2' has sampling parameters of its own"):
        all_samplings(prompts, config, SamplingParams(), mixed=False)


@pytest.mark.usefixtures("unchecked")
def test_a_log_of_mixed_requests_is_decoded_in_one_batch(small, tmp_path):
    """Each text equals its request's text alone; categories add up; overlap uses each request's own parameters."""
    config, prompts = logged(tmp_path, *LOG)
    requests = make_requests(prompts, small, SamplingParams(), config)
    context = model_context(small, dtype=torch.float64, requests=requests)
    outcome = DecodeProtocol(1, 1, 0, 0, CHECK, group=0).run(context)
    assert "trace.parquet" not in outcome.tables  # a trace is of one sampler
    texts = pd.DataFrame(outcome.tables["texts.parquet"].rows)
    alone = [context.decoder().run([request])[0] for request in requests]
    decode = small.tokenizer.decode
    assert texts["completion"].tolist() == [
        decode(completion.token_ids, skip_special_tokens=True) for completion in alone
    ]
    steps = pd.DataFrame(outcome.tables["steps.parquet"].rows)
    hot = {row.category: row for row in outcome.tables["categories.parquet"].rows}["hot"]
    hot_steps = steps[steps["prompt"].isin(["line-2", "line-3"])]
    assert (hot.prompts, hot.steps, hot.accepted) == (2, len(hot_steps), hot_steps["num_accepted"].sum())
    assert hot.acceptance_length == pytest.approx(1 + hot_steps["num_accepted"].mean())
    assert hot.speedup is None  # one batch held all
    scored = score_texts(context, alone)
    overlap = torch.cat([scores["overlap"] for scores in scored]).double().mean()
    assert outcome.measured["overlap"] == pytest.approx(float(overlap))
    assert set(scored[0]["overlap"].tolist()) <= {0.0, 1.0}  # of a greedy request
    apart = DecodeProtocol(1, 1, 0, 0, CHECK, group="category").run(context)
    assert [row.speedup is None for row in apart.tables["categories.parquet"].rows] == [False, False]
    assert apart.measured["group"] == 2
    assert apart.measured["overlap"] == pytest.approx(float(overlap))  # texts and requests in one order
