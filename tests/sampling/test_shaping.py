"""Penalties, biases and bans: rows against their definition in plain Python, transformers' processors, and kernels."""

import dataclasses
import json
import math

import pytest
import torch
from omegaconf import OmegaConf
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

import specbench
from specbench.analysis import parameters
from specbench.core.errors import ArgumentError, ConfigError
from specbench.decoding import rows_along
from specbench.kernels import launch, launch_shape, launch_tally
from specbench.models.generate import obstacle
from specbench.protocols.replay import check_sampler
from specbench.protocols.settings import check_no_history
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import History, RowParams, SamplingParams, launches, logit_rows, resolve, where
from specbench.sampling.batch import Batch
from specbench.sampling.shaped import shaped
from specbench.sampling.shaping import Shaping
from tests.helpers.by_definition import EACH, MIX, THOUGHTS, params, shaped_logits, spelled
from tests.helpers.kernel_cases import DEVICE
from tests.helpers.made_up_rows import make_row, markdown_report, write_run
from tests.helpers.markov_pair import markov_pair, trace_of_tokens
from tests.protocols.test_agreement import context
from tests.tree.test_conf import composed

VOCABULARY = 40
PROMPT, TEXT = spelled("abba cab"), spelled("babab cabdabi aab ")
EVERY = pytest.mark.parametrize("setting", EACH.values(), ids=EACH)


def some_logits(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    logits = 3 * torch.randn((rows, VOCABULARY), generator=torch.Generator().manual_seed(5))
    logits[:, 17] = -math.inf  # what a constraint has banned stays so
    return logits.to(dtype)


@EVERY
def test_rows_along_a_text_are_those_of_the_definition(setting):
    logits, sampling = some_logits(len(TEXT)), params(**setting)
    rows = rows_along(logits, sampling, PROMPT, TEXT)
    for i, row in enumerate(rows.logits):
        expected = shaped_logits(logits[i].tolist(), sampling, PROMPT, TEXT[:i])
        torch.testing.assert_close(row, torch.tensor(expected), rtol=0, atol=1e-6)
    assert (rows.logits is logits) == (not setting), "logits were copied for nothing, or changed in place"


def test_each_parameter_makes_a_difference():
    """Else the definition could be empty, and agree."""
    logits = some_logits(len(TEXT))
    for name, setting in EACH.items():
        assert torch.equal(rows_along(logits, params(**setting), PROMPT, TEXT).logits, logits) == (name == "nothing")


def test_rows_are_those_of_transformers_processors():
    """Where it has the same: it counts the prompt too for bad words, which none of these begins in."""
    logits, ids = some_logits(1), torch.tensor([[*PROMPT, *TEXT]])
    bad = [spelled(text) for text in ("ab", " ab", "x")]
    theirs = {
        "repetition": (RepetitionPenaltyLogitsProcessor(1.7), {"repetition_penalty": 1.7}),
        "bad words": (NoBadWordsLogitsProcessor(bad), {"bad_words": ["ab", "x"]}),
        "early": (MinNewTokensLengthLogitsProcessor(len(PROMPT), 19, [3, 7]), {"min_tokens": 19}),
        "late": (MinNewTokensLengthLogitsProcessor(len(PROMPT), 18, [3, 7]), {"min_tokens": 18}),
        "bias": (SequenceBiasLogitsProcessor([[[4], 2.0], [[6], -3.0]]), {"logit_bias": {4: 2.0, 6: -3.0}}),
    }
    assert len(TEXT) == 18
    for name, (processor, setting) in theirs.items():
        rows = rows_along(logits, params(**setting), PROMPT, TEXT, first=len(TEXT))
        torch.testing.assert_close(rows.logits, processor(ids, logits.clone()), msg=name)


# --- Kernels ---


def ragged(dtype: torch.dtype, settings: list[dict], by_row: bool = True) -> tuple[torch.Tensor, Shaping, History]:
    """Requests of different texts and drafts, each with the parameters of its own, as a padded batch has them."""
    texts, prompts, width = [PROMPT + TEXT, PROMPT, spelled("b"), spelled("ab") * 9], [8, 8, 1, 3], 3
    count = len(settings)
    capacity = max(map(len, texts)) + width + 2
    tokens = torch.full((count, capacity), 39)  # what lies beyond a text does not count
    for b in range(count):
        tokens[b, : len(texts[b % 4])] = torch.tensor(texts[b % 4])
    drafted = torch.randint(0, 6, (count, width + 3), generator=torch.Generator().manual_seed(1))[:, :width]
    drafted[2:3] = torch.tensor(spelled("cia"))  # thinking begins and ends in a draft
    owner = torch.arange(count).repeat_interleave(width + 1)
    history = History(
        tokens, torch.tensor([prompts[b % 4] for b in range(count)]),
        torch.tensor([len(texts[b % 4]) for b in range(count)]), drafted, owner,
        torch.arange(width + 1).repeat(count),
    )  # fmt: skip
    shaping = Shaping.of([params(**setting) for setting in settings])
    assert shaping is not None
    return some_logits(len(owner), dtype), shaping.select(owner) if by_row else shaping, history


def on_device(value):
    moved = {name: part.to(DEVICE) for name, part in vars(value).items() if isinstance(part, torch.Tensor)}
    return type(value)(**({"kinds": value.kinds} if isinstance(value, Shaping) else {}), **moved)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float32 in the dtype of the logits. Triton's interpreter cuts bfloat16 off where everybody else rounds."""
    if dtype == torch.bfloat16 and launch.INTERPRETED:
        values = (values.view(torch.int32) & -(1 << 16)).view(torch.float32)
    return values.to(dtype)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("dtype", "chunk", "programs"),
    [(torch.float32, 8, 1024), (torch.bfloat16, 1024, 1024), (torch.float16, 1024, 0), (torch.float32, 8, 0)],
    ids=str,
)
def test_kernels_write_what_their_twin_does(dtype, chunk, programs, monkeypatch):
    """All kinds of requests in one launch; then others with the same memory, which the first must not have left dirty.
    In small pieces, tokens that occur twice are counted by different steps of a loop."""
    monkeypatch.setattr(launch_tally, "CHUNK", chunk)
    monkeypatch.setattr(launch_shape, "CHUNK", chunk)
    monkeypatch.setattr(launch_shape, "MAX_PROGRAMS", programs)
    monkeypatch.setattr(launch_shape, "LOGITS_PER_PROGRAM", chunk)
    monkeypatch.setattr(launch_shape, "TOKENS_PER_ROW", chunk)
    counts, kinds = launch_tally.Counts(VOCABULARY), ("all together", "repetition", "bad words", "nothing")
    for settings in (
        [EACH[name] for name in kinds],
        [MIX, EACH["frequency"], {"frequency_penalty": 0.5, "logit_bias": {20: 3.0, 1: -1.0}}],
        [EACH["bad words"], EACH["min_tokens"]],
        [{}, *THOUGHTS.values()],
    ):
        logits, shaping, history = ragged(dtype, settings)
        wide = torch.full((len(logits), VOCABULARY + 3), 7.0, dtype=dtype, device=DEVICE)
        wide[:, :VOCABULARY] = logits.to(DEVICE)
        rows = wide[:, :VOCABULARY]
        on_gpu, seen = on_device(shaping), on_device(history)
        texts = (seen.texts, seen.prompt_lengths, seen.text_lengths)
        tally = launches.count_tokens(*texts, on_gpu, VOCABULARY, counts)
        launches.shape_in_place(rows, on_gpu, dataclasses.replace(seen, tally=tally))
        assert torch.equal(rows.cpu(), rounded(shaped(logits.float(), shaping, history), dtype))
        assert (wide[:, VOCABULARY:] == 7).all(), "wrote beyond a row"
        assert not counts.counts.any(), "counts were left behind"


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "twin"])
def test_parameters_may_be_a_row_a_request(kernels, monkeypatch):
    """As a step has them, which copies none of them for each of its rows."""
    monkeypatch.setattr(where, "by_kernels", lambda _: kernels)
    settings = [EACH["all together"], EACH["bias"], EACH["frequency"]]
    (logits, by_row, history), (_, by_request, _) = (
        ragged(torch.float32, settings, per_row) for per_row in (True, False)
    )
    on_gpu = [on_device(argument) for argument in (by_request, history)]
    rows = RowParams.of([params(**setting) for setting in settings], DEVICE).repeated(on_gpu[1].request)
    assert rows.shaping.layout == on_gpu[0].layout
    made = logit_rows(logits.to(DEVICE), rows, on_gpu[1]).logits
    assert torch.equal(made.cpu(), shaped(logits, by_row, history))


def test_a_step_penalises_the_models_own_rows(monkeypatch):
    """Without a copy of anything of the vocabulary's size."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    row_params = RowParams.of([params(**{**EACH["frequency"], **EACH["bias"], **EACH["bad words"]})] * 2, DEVICE)
    texts = torch.tensor([[1, 2, 1, 0, 0], [3, 0, 0, 0, 0]], device=DEVICE)
    prompts, lengths = torch.tensor([1, 1], device=DEVICE), torch.tensor([3, 1], device=DEVICE)
    numbers = [torch.zeros_like(lengths) for _ in range(4)]
    batch = Batch(texts, prompts, lengths, *numbers[:3], row_params, numbers[3], torch.zeros((2, 0), dtype=torch.int64))
    logits = some_logits(4).to(DEVICE)
    rows = batch.rows(logits, torch.tensor([[1], [3]], device=DEVICE))
    assert rows.logits.data_ptr() == logits.data_ptr()
    assert rows.logits[1, 1] != some_logits(4)[1, 1]


def test_as_many_rows_for_each_request_are_needed():
    logits, shaping, history = ragged(torch.float32, [EACH["presence"], {}])
    with pytest.raises(ArgumentError, match="history: 2 requests have 7 rows of logits; each needs the same number"):
        launches.shape_in_place(logits[:7].to(DEVICE), on_device(shaping), on_device(history))


def test_kernels_leave_what_is_not_asked_for():
    logits, shaping, history = ragged(torch.float32, [EACH["presence"], {}])
    in_place = logits.clone().to(DEVICE)
    launches.shape_in_place(in_place, on_device(shaping), on_device(history))
    made = in_place.cpu()
    assert torch.equal(made[4:], logits[4:])
    text_tokens = {*PROMPT, *TEXT, *history.drafted[0].tolist()}
    others = [token for token in range(VOCABULARY) if token not in text_tokens]
    assert torch.equal(made[:4, others], logits[:4, others])


# --- What is refused ---


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"logit_bias": {40: 1.0}}, r"sampler.logit_bias=40: id 40 is beyond the vocabulary of 40.* 0 to 39"),
        ({"allowed_token_ids": [0, 41]}, r"sampler.allowed_token_ids=41: id 41 is beyond"),
        ({"stop_token_ids": [99]}, r"sampler.stop_token_ids=99: id 99 is beyond"),
    ],
    ids=str,
)
def test_ids_beyond_the_vocabulary_are_refused_by_name(setting, says):
    with pytest.raises(ConfigError, match=says):
        params(**setting)


def test_bad_words_are_banned_by_themselves_and_after_a_space():
    sampling = params(bad_words=["ab", "  c", " "])
    assert sampling.bad_word_ids == ((1, 2), (0, 1, 2), (3,), (0, 3), (0,), (0, 0))
    with pytest.raises(ConfigError, match="sampler.bad_words=ab: has no tokens"):
        resolve(SamplingParams(bad_words=["ab"]), lambda text: [], (), VOCABULARY)


def test_a_budget_of_thinking_needs_tokens_for_it_and_no_structure():
    with pytest.raises(ConfigError, match=r"sampler.thinking_token_budget=3: .*pair.thinking_tokens=\[<think>"):
        resolve(SamplingParams(thinking_token_budget=3), spelled, (), VOCABULARY)
    with pytest.raises(ConfigError, match="^thinking_token_budget=3: structured_outputs hold from the first"):
        SamplingParams(thinking_token_budget=3, structured_outputs={"regex": "a"})


def test_who_has_no_ids_or_no_text_is_told():
    for name, value in (("bad_words", ["a"]), ("min_tokens", 3), ("thinking_token_budget", 0)):
        with pytest.raises(ArgumentError, match=f"{name}: needs the ids of a vocabulary; use Pair.resolved"):
            RowParams.of([SamplingParams(), SamplingParams(**{name: value})])
    rows = RowParams.of([SamplingParams(presence_penalty=1.0)])
    with pytest.raises(ArgumentError, match="history: None; penalties needs to know what precedes"):
        logit_rows(torch.zeros(1, 4), rows)


def test_the_command_line_takes_all_of_them():
    sampler = composed("sampler.logit_bias={263:1.5,199:-1}", "sampler.bad_words=[a]", "sampler.min_tokens=3").sampler
    made = SamplingParams.from_mapping(dict(OmegaConf.to_container(sampler)))
    assert made.shaping == {"logit_bias": ((199, -1.0), (263, 1.5)), "bad_words": ("a",), "min_tokens": 3}
    assert json.loads(made.token_rules) == {"logit_bias": [[199, -1.0], [263, 1.5]], "bad_words": ["a"]}
    assert SamplingParams(temperature=0.3, top_k=4).shaping_text == SamplingParams().token_rules == ""


def test_who_makes_up_steps_or_decodes_elsewhere_refuses_by_name(pair):
    shaped_context = context(MaskedVerifier(), sampling=SamplingParams(min_tokens=2))
    with pytest.raises(ConfigError, match="sampler.min_tokens=2: steps are made up, without texts"):
        check_no_history(shaped_context)
    why = obstacle(pair, "transformers", 1, SamplingParams(bad_words=["a"]), 0)
    assert why == "generate is not asked for sampler.bad_words"
    with pytest.raises(ArgumentError, match=r"sampling\.logit_bias: needs the text before each position"):
        specbench.verify(
            torch.zeros(1, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), num_draft_tokens=[0],
            sampling=SamplingParams(logit_bias={1: 1.0}), seeds=1, positions=[3],
        )  # fmt: skip


def test_a_trace_is_replayed_under_the_parameters_that_it_was_sampled_with():
    sampling = SamplingParams(presence_penalty=0.5)
    p, q = markov_pair()
    made = trace_of_tokens(p, q, [[1, 2, 0]])
    trace = dataclasses.replace(made, identity=dataclasses.replace(made.identity, shaping=sampling.shaping_text))
    check_sampler(trace, sampling.numbers, "x", shaping=sampling.shaping_text)
    for other in (SamplingParams(), SamplingParams(presence_penalty=1.0)):
        with pytest.raises(ConfigError, match=r"sampler.presence_penalty=.*x was sampled with presence_penalty 0.5"):
            check_sampler(trace, other.numbers, "x", shaping=other.shaping_text)
    with pytest.raises(ConfigError, match="sampler.presence_penalty=0.5: the trace x was sampled with .* off"):
        check_sampler(made, sampling.numbers, "x", shaping=sampling.shaping_text)


def test_the_report_says_what_was_asked_for_and_who_differs(tmp_path):
    rows = [
        make_row(job=0, exp="parameters", overlap=0.8, overlap_low=0.77, overlap_high=0.83),
        make_row(
            job=1, exp="parameters", sampler="mine", overlap=0.6, overlap_low=0.5, overlap_high=0.7, top_k=5,
            repetition_penalty=1.2, token_rules='{"bad_words": ["a"]}', min_tokens=0,
        ),
    ]  # fmt: skip
    text = markdown_report(parameters, write_run(tmp_path, rows)).replace("\\", "")
    assert 'T=1 top_k=5 repetition_penalty=1.2 bad_words=["a"]' in text
    assert "below that of temperature 1 alone, 0.80 [0.77, 0.83], by intervals that do not touch: mine 0.60" in text
