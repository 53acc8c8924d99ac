"""The Python API: texts of a pair that are decoded, recorded and replayed."""

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import specbench
from specbench.api import texts as api_texts
from specbench.api.decoded import DecodedBatch
from specbench.api.verifiers import FunctionVerifier
from specbench.core.conf import CONF
from specbench.core.errors import ArgumentError, ConfigError, ModelError
from specbench.core.machine.provenance import request_seed
from specbench.core.sampling_params import SamplingParams
from specbench.core.types import Draft
from specbench.decoding import Decoder, Request
from specbench.drafters import Drafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.metrics.results import RunRow, write_rows
from specbench.models import CachedModel, Pair
from specbench.protocols.record import record as record_requests
from specbench.protocols.rounds import timed_rounds
from specbench.protocols.settings import RoundSettings
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.runs.samplings import processors_text

PROMPTS = ["def add(a, b):\n", "import os\nimport ", "class A"]


def test_decode_is_the_loop_with_seeds_of_its_own(exact: Pair):
    sampling = specbench.SamplingParams(temperature=0.8)
    texts = specbench.decode(exact, PROMPTS, gamma=3, verifier="block", sampling=sampling, max_new_tokens=12, seed=5)
    requests = [
        Request(str(i), tuple(exact.encode(prompt)), request_seed(5, str(i)), sampling, 12)
        for i, prompt in enumerate(PROMPTS)
    ]
    target = CachedModel(exact.target, exact.vocab_size, "target")
    decoder = Decoder(target, ModelDrafter().bind(exact, target), BlockVerifier(), 3, exact.stop_ids)
    for text, expected in zip(texts, decoder.run(requests), strict=True):
        assert text.token_ids == expected.token_ids
        assert text.prompt == expected.request.prompt
        assert [dataclasses.astuple(step) for step in text.steps] == [dataclasses.astuple(s) for s in expected.steps]
        assert text.text == exact.tokenizer.decode(expected.token_ids, skip_special_tokens=True)
        accepted = sum(step.num_accepted for step in text.steps)
        assert text.acceptance_length == 1 + accepted / len(text.steps)
    steps = sum(len(text.steps) for text in texts)
    accepted = sum(step.num_accepted for text in texts for step in text.steps)
    assert texts.acceptance_length == pytest.approx((accepted + steps) / steps)


def test_a_drafter_is_given_by_name_or_as_an_object(exact: Pair):
    arguments = {"prompts": ["a b c a b c a b", "x = 1\nx = 1\nx ="], "max_new_tokens": 8, "gamma": 3}
    texts = specbench.decode(exact, drafter="prompt_lookup", **arguments)
    assert texts == specbench.decode(exact, drafter=PromptLookupDrafter(3, 1), **arguments)
    drafted = [step.num_draft_tokens for text in texts for step in text.steps]
    assert drafted != [step.num_draft_tokens for text in specbench.decode(exact, **arguments) for step in text.steps]


def test_each_prompt_may_have_a_gamma_of_its_own(exact: Pair):
    """All continuations of a prompt share its gamma, and each text is the same as with that gamma alone."""
    arguments = {"sampling": specbench.SamplingParams(n=2), "max_new_tokens": 8}
    texts = specbench.decode(exact, PROMPTS, gamma=[2, 0, 4], **arguments)
    for place, gamma in enumerate((2, 0, 4)):
        alone = specbench.decode(exact, PROMPTS, gamma=gamma, **arguments)
        for index in range(2 * place, 2 * place + 2):
            assert (texts[index].token_ids, texts[index].steps) == (alone[index].token_ids, alone[index].steps)


def test_each_prompt_may_have_a_seed_and_sampling_parameters_of_its_own(exact: Pair):
    """Each text is the same as that of its prompt alone, with this seed and these parameters."""
    samplings = [SamplingParams(temperature=0.7), SamplingParams(top_k=5, n=2), SamplingParams(temperature=0.0)]
    texts = specbench.decode(exact, PROMPTS, seed=[7, 7, 2**40], sampling=samplings, max_new_tokens=8)
    alone = [
        specbench.decode(exact, prompt, seed=[seed], sampling=sampling, max_new_tokens=8)
        for prompt, seed, sampling in zip(PROMPTS, (7, 7, 2**40), samplings, strict=True)
    ]
    assert [text.token_ids for text in texts] == [text.token_ids for batch in alone for text in batch]
    other = specbench.decode(exact, PROMPTS[0], seed=[8], sampling=samplings[0], max_new_tokens=8)
    assert texts[0].token_ids != other[0].token_ids


def test_prompts_may_be_conversations(exact: Pair):
    one = [{"role": "user", "content": PROMPTS[0]}]
    more = [*one, {"role": "assistant", "content": "    return a"}, {"role": "user", "content": "import os"}]
    texts = specbench.decode(exact, [one, PROMPTS[1], more, [5, 6]], max_new_tokens=4)
    assert [text.prompt for text in texts] == [
        tuple(exact.encode(one)), tuple(exact.encode(PROMPTS[1])), tuple(exact.encode(more)), (5, 6)
    ]  # fmt: skip
    (alone,) = specbench.decode(exact, more, max_new_tokens=4)  # a conversation by itself is one prompt
    assert alone.prompt == texts[2].prompt
    trace = specbench.record(exact, more, max_new_tokens=4)
    assert len(trace) == len(specbench.decode(exact, more, gamma=0, max_new_tokens=4)[0].token_ids)


def test_texts_have_the_measurements_of_a_run(exact: Pair, monkeypatch):
    """Rates, overlap and speeds by the names of results.parquet, from the step log, the models and the clock."""

    def rounds(plain: Decoder, speculative: Decoder, *rest: Any) -> Any:
        assert (plain.components.gamma, speculative.components.gamma) == (0, 3)
        return timed_rounds(plain, speculative, *rest)

    monkeypatch.setattr(api_texts, "_ROUNDS", RoundSettings(1, 1, 0))
    monkeypatch.setattr(api_texts, "timed_rounds", rounds)
    arguments: dict[str, Any] = {"gamma": 3, "max_new_tokens": 12, "seed": 5, "batch_size": 2}
    texts = specbench.decode(exact, PROMPTS, compare_plain=True, overlap=True, **arguments)
    assert texts == specbench.decode(exact, PROMPTS, **arguments)
    steps = [step for text in texts for step in text.steps]
    drafted, accepted = (sum(getattr(step, name) for step in steps) for name in ("num_draft_tokens", "num_accepted"))
    assert texts.acceptance_rate == texts.results["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert texts.acceptance_length == pytest.approx(texts.results["acceptance_length"])
    first = [step.num_accepted >= 1 for step in steps if step.num_draft_tokens >= 1]
    assert texts.joint_rates[0] == pytest.approx(sum(first) / len(first))
    assert [len(texts.joint_rates), len(texts.results["acceptance_histogram"])] == [3, 4]
    columns = {field.name for field in dataclasses.fields(RunRow)}
    assert set(texts.results) <= columns
    assert texts.results["speedup_low"] < texts.speedup < texts.results["speedup_high"]  # of two batches
    assert texts.tokens_per_second == pytest.approx(texts.results["tokens"] / texts.seconds)
    speeds = texts.tokens_per_second / texts.results["plain_tokens_per_second"]
    assert texts.speedup == pytest.approx(speeds)
    recorded = specbench.record(exact, PROMPTS, max_new_tokens=12, seed=5)
    again = specbench.decode(exact, PROMPTS, **arguments | {"gamma": 0}, overlap=True)
    assert again.overlap == pytest.approx(recorded.columns["overlap"].mean(), abs=1e-6)
    assert 0 < texts.overlap < 1


def test_what_was_not_measured_is_none(exact: Pair):
    texts = specbench.decode(exact, PROMPTS[:1], max_new_tokens=4, gamma=0)
    assert (texts.speedup, texts.overlap, texts.acceptance_rate) == (None, None, None)
    assert texts.seconds > 0
    without = specbench.decode(exact, PROMPTS[:1], max_new_tokens=4, drafter="prompt_lookup", overlap=True)
    assert without.overlap is None


def test_no_texts_have_no_measurements():
    texts = DecodedBatch(gamma=2)
    assert math.isnan(texts.acceptance_length)
    assert texts.acceptance_rate is None
    assert texts.joint_rates == [None, None]
    assert len(texts.to_pandas()) == len(texts.step_log()) == 0


def test_texts_as_a_table(exact: Pair):
    texts = specbench.decode(exact, PROMPTS, sampling=SamplingParams(n=2), max_new_tokens=6)
    table = texts.to_pandas()
    assert list(DecodedBatch().to_pandas()) == list(table)  # no texts have the same columns
    assert table["text"].tolist() == [text.text for text in texts]
    assert table["prompt"].tolist() == [0, 0, 1, 1, 2, 2]
    assert table["sample"].tolist() == [0, 1] * 3
    assert table["accepted"].sum() / table["drafted"].sum() == pytest.approx(texts.acceptance_rate)
    log = texts.step_log()
    assert log[["prompt", "sample"]].value_counts(sort=False).tolist() == table["steps"].tolist()
    assert log["num_emitted"].sum() == table["tokens"].sum()
    kept = copy.deepcopy(texts)  # as pickle does
    assert kept == texts
    assert kept.results == texts.results


@pytest.mark.usefixtures("unchecked")
def test_prompts_may_be_one_text_or_token_ids_in_batches_of_any_size(exact: Pair):
    texts = specbench.decode(exact, PROMPTS, max_new_tokens=6)
    ids = [exact.encode(text) for text in PROMPTS]
    assert specbench.decode(exact, ids, max_new_tokens=6, batch_size=2) == texts
    assert specbench.decode(exact, map(iter, ids), max_new_tokens=6) == texts
    assert specbench.decode(exact, PROMPTS[0], max_new_tokens=6) == texts[:1]


@pytest.mark.usefixtures("unchecked")
def test_numbers_may_be_those_of_numpy_and_what_is_a_list_any_iterable(exact: Pair):
    """Notebooks have their gammas from arange and their temperatures from linspace."""
    plain = {"gamma": [2, 1, 3], "max_new_tokens": 6, "seed": 7, "batch_size": 2}
    parameters = {"temperature": 0.5, "top_k": 9, "frequency_penalty": 0.5, "n": 2, "stop_token_ids": [3, 5]}
    more = {"allowed_token_ids": list(range(3000)), "logit_bias": {5: 1.5}}
    expected = specbench.decode(exact, PROMPTS, sampling=SamplingParams(**parameters, **more), **plain)
    theirs = SamplingParams(
        **{
            name: np.float32(value) if isinstance(value, float) else np.array(value)[()]
            for name, value in parameters.items()
        },
        allowed_token_ids=np.arange(3000),
        logit_bias={np.int64(5): np.float32(1.5)},
    )
    scalars = {name: np.int32(value) for name, value in plain.items() if name != "gamma"}
    for gammas in (np.array([2, 1, 3]), torch.tensor([2, 1, 3]), [np.int64(2), 1, 3], iter([2, 1, 3])):
        prompts = (text for text in PROMPTS)
        assert specbench.decode(exact, prompts, sampling=theirs, gamma=gammas, **scalars) == expected
    short: dict[str, Any] = {"sampling": iter([SamplingParams(top_k=9)] * 3), "max_new_tokens": 2}
    seeds = [request_seed(7, str(i)) for i in range(3)]
    texts = specbench.decode(exact, PROMPTS, seed=torch.tensor(seeds), **short)
    short["sampling"] = SamplingParams(top_k=9)
    assert texts == specbench.decode(exact, PROMPTS, seed=np.array(seeds), **short)
    assert theirs == SamplingParams(**parameters, **more)
    json.dumps(theirs.numbers | theirs.shaping)
    trace = specbench.record(exact, PROMPTS[:1], samples=np.int64(2), max_new_tokens=np.int64(4), seed=np.uint8(1))
    assert repr(trace).startswith("Trace(8 tokens of 2 texts, Identity(")  # and no arrays
    assert (trace.tokens == specbench.record(exact, PROMPTS[:1], samples=2, max_new_tokens=4, seed=1).tokens).all()
    predictions = specbench.replay(trace, "token", np.arange(1, 3))
    assert json.dumps([prediction.gamma for prediction in predictions]) == "[1, 2]"


def test_a_recording_is_of_the_texts_that_plain_decoding_gives(exact: Pair, tmp_path: Path):
    """The same seeds; so a trace and a decoded text may be laid side by side."""
    sampling = specbench.SamplingParams(temperature=0.9, top_k=40)
    arguments = {"sampling": sampling, "max_new_tokens": 8, "seed": 3}
    trace = specbench.record(exact, PROMPTS, samples=2, **arguments)
    plain = specbench.decode(exact, PROMPTS, gamma=0, **arguments)
    texts = [trace.tokens[start:end].tolist() for start, end in zip(trace.starts, trace.starts[1:], strict=False)]
    assert texts[::2] == [text.token_ids for text in plain]
    assert len(texts) == 6
    assert {len(text.steps) for text in plain} == {len(text.token_ids) for text in plain}
    assert trace.identity.sampler == {"temperature": 0.9, "top_k": 40, "top_p": 1, "min_p": 0}

    requests = api_texts._requests(exact, PROMPTS, sampling, 8, 3)
    kept = record_requests(api_texts._context(exact, requests, ModelDrafter(), 8, seed=3), requests).table
    write_rows(tmp_path / "trace.parquet", kept.rows, kept.schema)
    one, two = (
        specbench.replay(source, "token", gammas=[0, 3])
        for source in (specbench.record(exact, PROMPTS, **arguments), tmp_path / "trace.parquet")
    )
    assert [prediction.acceptance_length for prediction in one] == [
        prediction.acceptance_length for prediction in specbench.replay(tmp_path / "trace.parquet", TOKEN, [0, 3])
    ]
    assert [prediction.gamma for prediction in one] == [0, 3]
    assert [prediction.acceptance_length for prediction in one] == [prediction.acceptance_length for prediction in two]


class Penalty:
    """Takes a number from the logits of tokens that came before."""

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, logits: torch.Tensor, history: Any) -> torch.Tensor:
        return logits - self.penalty * history.counts(logits.shape[1]).to(logits.dtype)


def doubled(logits: torch.Tensor, history: Any) -> torch.Tensor:
    return 2 * logits


def test_a_recording_names_its_processors_as_the_command_line_would(exact: Pair):
    """So that it is not taken for a recording without them; the replay of the command line compares the two texts."""
    sampling = specbench.SamplingParams(processors=[Penalty(0.5), doubled])
    trace = specbench.record(exact, PROMPTS[:1], sampling=sampling, max_new_tokens=3)
    nodes = [{"_target_": f"{__name__}.Penalty", "penalty": 0.5}, {"_target_": f"{__name__}.doubled"}]
    assert trace.identity.processors == processors_text({"processors": nodes})
    plain = specbench.record(exact, PROMPTS[:1], max_new_tokens=3)
    assert plain.identity.processors == processors_text({"processors": []}) == ""


@pytest.mark.usefixtures("unchecked")
def test_decode_says_what_a_pair_is():
    with pytest.raises(ArgumentError, match=r"pair: a str; give what specbench\.load_pair returns"):
        specbench.decode("embedded", PROMPTS[:1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("gamma", "checked"), [(0, "token that may come."), (2, "come, and verifier=masked.")])
@pytest.mark.usefixtures("unchecked")
def test_parameters_that_ban_every_token_are_named(exact: Pair, gamma, checked, temperature):
    """At temperature 0 too, where token 0 was emitted."""
    sampling = SamplingParams(temperature=temperature, allowed_token_ids=sorted(exact.stop_ids), min_tokens=2)
    with pytest.raises(ModelError) as raised:
        specbench.decode(exact, PROMPTS[:1], gamma=gamma, sampling=sampling, max_new_tokens=4)
    assert "Check whether sampling.allowed_token_ids and sampling.min_tokens leave a token" in str(raised.value)
    assert checked in str(raised.value)


class Proposing(Drafter):
    """Returns what a function makes of the number of requests and the most tokens of any."""

    def __init__(self, propose):
        self.made = propose

    def propose(self, batch, limits, streams):
        return self.made(len(batch), streams.width - 1)


def chain(requests: int, width: int, dtype: torch.dtype = torch.int64, token: int = 5, device: str = "cpu") -> Draft:
    tokens, counts = torch.full((requests * width,), token, dtype=dtype, device=device), torch.full((requests,), width)
    return Draft(tokens, None, counts, width, padded=True)


@pytest.mark.parametrize(
    ("propose", "says"),
    [
        (
            lambda requests, width: None,
            "=Proposing: propose() returned a NoneType; return a specbench.core.Draft",
        ),
        (lambda requests, width: chain(requests, width, torch.float32), "token_ids of its draft: torch.float32 (2,)"),
        (lambda requests, width: chain(requests + 1, width), "num_draft_tokens of its draft: torch.int64 (2,)"),
        (
            lambda requests, width: chain(requests, width, device="meta"),
            "torch.int64 (2,) on meta; torch.int64",
        ),
        (lambda requests, width: chain(requests, width + 3), "it drafted 5 tokens for prompt '0' at step 0, and"),
    ],
    ids=["nothing", "floats", "requests", "device", "limits"],
)
@pytest.mark.usefixtures("unchecked")
def test_a_draft_of_another_form_is_refused(exact: Pair, propose, says):
    with pytest.raises(ArgumentError) as raised:
        specbench.decode(exact, PROMPTS[:1], drafter=Proposing(propose), gamma=2, max_new_tokens=8)
    assert says in str(raised.value)


@pytest.mark.parametrize("engine", ["eager", "static"])
@pytest.mark.parametrize("token", [-1, 4096, 2**40])
@pytest.mark.usefixtures("unchecked")
def test_draft_tokens_outside_of_the_vocabulary_are_refused(exact: Pair, token, engine):
    """Before the target is fed: PyTorch's embedding raises IndexError, and compiled steps would read other memory."""
    drafter = Proposing(lambda requests, width: chain(requests, width, token=token))
    says = rf"^drafter=Proposing: token_ids\[0\]={token} of its draft: outside the vocabulary of 4096 tokens\. Draft"
    with pytest.raises(ArgumentError, match=says):
        specbench.decode(exact, PROMPTS[:1], drafter=drafter, engine=engine, gamma=2, max_new_tokens=8)


@pytest.mark.parametrize("call", [specbench.decode, specbench.record])
@pytest.mark.usefixtures("unchecked")
def test_texts_that_can_never_be_long_enough_are_refused(exact: Pair, call):
    with pytest.raises(ConfigError, match=r"^sampling\.min_tokens=5: above max_new_tokens=4\. Lower it, or raise"):
        call(exact, PROMPTS[:1], sampling=SamplingParams(min_tokens=5), max_new_tokens=4)
    sampling = SamplingParams(min_tokens=5, max_tokens=6)  # which max_new_tokens says nothing of
    assert call(exact, PROMPTS[:1], sampling=sampling, max_new_tokens=4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("trace", [None, 3, [(1, -0.5)], {"target": 1}])
def test_replay_names_what_is_no_trace(trace):
    """Such as the texts that decode returned, which have no log-probabilities of a draft."""
    with pytest.raises(ArgumentError, match=rf"^trace: a {type(trace).__name__}; give what specbench\.record returns"):
        specbench.replay(trace, "token", [1])


@pytest.mark.parametrize("gammas", [[], [4, -1], [1.5], [65], 4], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_replay_names_wrong_gammas(gammas):
    """A negative one beside others would be replayed as something else: only the largest was looked at."""
    with pytest.raises((ArgumentError, ConfigError), match="gammas"):
        specbench.replay("no file", "token", gammas)


def test_replay_names_its_argument_where_a_file_is_no_trace(tmp_path: Path):
    """As the Python API has it, also in what to do."""
    (tmp_path / "trace.parquet").touch()
    says = rf"^trace={tmp_path}: a folder\. Give trace\.parquet in it: trace="
    with pytest.raises(ConfigError, match=says) as caught:
        specbench.replay(tmp_path, "token", [1])
    assert caught.value.key == "trace"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prompts": []}, "prompts: empty"),
        ({"prompts": [[1], []]}, "prompts[1]: no tokens"),
        ({"prompts": [[1, -1]]}, "prompts[0]: ids outside"),
        ({"prompts": [[1, 10**6]]}, "prompts[0]: ids outside"),
        ({"prompts": [1, 2]}, "prompts[0]: 1 is neither a text nor a list of token ids"),
        ({"prompts": [[1.5, 2]]}, "prompts[0]: [1.5, 2] is neither a text nor a list of token ids"),
        ({"prompts": [b"ab"]}, "prompts[0]: b'ab' is neither"),
        ({"prompts": b"ab"}, "prompts: a bytes; give a text"),
        ({"prompts": {"a": "b"}}, "prompts: a dict; give a text"),
        ({"prompts": [[True, False]]}, "prompts[0]: [True, False] is neither"),
        ({"sampling": {"temperature": 0.0}}, "sampling: a dict; give specbench.SamplingParams"),
        ({"max_new_tokens": 10**6}, "prompts[0]: 9 tokens and max_new_tokens=1000000 are more than the pair's context"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"gamma": 65}, "gamma=65: not a count. Use a whole number from 0 to 64."),
        ({"gamma": -1}, "gamma=-1"),
        ({"gamma": [65]}, "gamma=65: not a count. Use a whole number from 0 to 64."),
        ({"gamma": [4, 4]}, "gamma: 2 for 1 prompts; give one, or one for each"),
        ({"gamma": "4"}, "gamma=4: not a count"),
        ({"gamma": np.bool_(True)}, "gamma=True: not a count"),
        ({"gamma": np.float64(4)}, "gamma=4.0: not a count"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": [1, 2]}, "seed: 2 for 1 prompts; give one, or one for each"),
        ({"seed": [-1]}, "seed=-1"),
        ({"seed": {1}}, "seed: a set; give one number, or one for each"),
        ({"gamma": {4: 1}}, "gamma: a dict; give one number, or one for each"),
        ({"sampling": SamplingParams(bad_words=["\ud800"])}, "sampling.bad_words='\\ud800': the tokenizer fails on it"),
        ({"sampling": [SamplingParams()] * 2}, "sampling: 2 for 1 prompts; give one, or one for each"),
        ({"sampling": [{}]}, "sampling[0]: a dict; give specbench.SamplingParams(...), or None"),
        ({"prompts": [[{"role": "user"}]]}, "prompts[0][0]: {'role': 'user'} is no message; give {"),
        ({"prompts": [[{"role": "user", "content": "a"}, "b"]]}, "prompts[0][1]: 'b' is no message"),
        ({"compare_plain": "no"}, "compare_plain=no: neither true nor false"),
        ({"overlap": 2}, "overlap=2: neither true nor false"),
        ({"gamma": 0, "compare_plain": True}, "compare_plain: gamma is 0, which is plain decoding itself"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, f"seed={2**63}: not a count. Use a whole number from 0 to {2**63 - 1}."),
        ({"verifier": "nonsense"}, "verifier='nonsense'"),
        (
            {"verifier": FunctionVerifier(lambda *_: None, "own", True)},
            "verifier=FunctionVerifier: it returned a NoneType. Return a",
        ),
        ({"drafter": "nonsense"}, "drafter='nonsense': not one of conf/drafter. Use layer_skip, model"),
        ({"drafter": ModelDrafter}, "drafter: a type; a name of conf/drafter or a Drafter needed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("unchecked")
def test_decode_names_a_wrong_argument(exact: Pair, arguments, says):
    with pytest.raises((ArgumentError, ConfigError)) as raised:
        specbench.decode(exact, **{"prompts": PROMPTS[:1], **arguments})
    assert says in str(raised.value)


def test_comparisons_with_plain_decoding_take_the_rounds_of_the_protocol():
    conf = OmegaConf.load(CONF / "protocol/decode.yaml")
    assert vars(api_texts._ROUNDS) == {name: conf[name] for name in ("rounds", "max_rounds", "seconds")}
