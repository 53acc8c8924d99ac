"""Our own decoder and files of texts as engines under test."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.decoding.engines import EagerEngine
from specbench.drafters.model import ModelDrafter
from specbench.exactness.two_sample.bets import evidence
from specbench.exactness.two_sample.pairs import text_pairs
from specbench.exactness.zoo.bugs import flawed
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from specbench.sources import Mode, Source, TextCompletion, TextRequest, own
from specbench.sources.file import FileSource, line_of
from specbench.sources.own import OwnSource

PROMPT = "import"


def opened(verifier: Any = None, drafter: ModelDrafter | None = None, **options: Any) -> OwnSource:
    parts = (verifier or MaskedVerifier(), drafter or ModelDrafter(), EagerEngine())
    source = OwnSource("embedded:target", "embedded:draft", *parts, gamma=3, device="cpu", **options)
    source.open()
    return source


def request(number: int = 0, length: int = 8, prompt: str = PROMPT, **sampling: Any) -> TextRequest:
    params = SamplingParams(**sampling)
    return TextRequest(prompt_id="a", prompt=prompt, sampling=params, seed=number, max_new_tokens=length)


@pytest.mark.usefixtures("unchecked")
def test_our_decoder_is_a_source():
    source = opened()
    assert isinstance(source, Source)
    greedy = [request(temperature=0.0, logprobs=0), request(length=3, temperature=0.0, logprobs=0)]
    plain, speculative = (source.complete(greedy, mode) for mode in (Mode.PLAIN, Mode.SPECULATIVE))
    assert [text.token_ids for text in plain] == [text.token_ids for text in speculative]
    assert plain[1].token_ids == (plain[0].token_ids or ())[:3]
    assert plain[0].logprobs == pytest.approx(speculative[0].logprobs, abs=1e-4)
    assert plain[0].counters == {}
    assert speculative[0].counters["drafted"] >= speculative[0].counters["accepted"]
    one, same, other = (source.complete([request(seed)], Mode.SPECULATIVE)[0] for seed in (1, 1, 2))
    assert one.token_ids == same.token_ids != other.token_ids
    with pytest.raises(ConfigError, match="more than the"):
        source.complete([request(length=10_000)], Mode.PLAIN)
    with pytest.raises(ConfigError, match=r"^prompt=a: it has the id 4096, and the target has ids below 4096\."):
        source.complete([dataclasses.replace(request(), token_ids=(4096,))], Mode.PLAIN)
    with pytest.raises(ConfigError, match=r"sampler\.n=2"):
        source.complete([request(n=2)], Mode.PLAIN)
    source.close()


@pytest.mark.cases(2)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("bug", "biased"), [("accepts_everything", True), ("returns_argmax", True), (None, False)])
def test_flawed_verifiers_are_found_by_their_texts_alone(bug, biased, exact, monkeypatch):
    """Drafts are drawn at another temperature, so that many are wrong, however good the draft is."""
    monkeypatch.setattr(own, "load_pair", lambda *_, **__: exact)  # whose steps take a fifth of the time
    source = opened(None if bug is None else flawed(bug), ModelDrafter(temperature=3.0), batch_size=150)
    plain, speculative = (
        [text.token_ids for text in source.complete([request(1000 * side + i, 5) for i in range(150)], mode)]
        for side, mode in enumerate(Mode)
    )
    pairs = text_pairs([0] * 150, plain, speculative, 5)  # ty: ignore
    assert (evidence(pairs).rejected_at(1e-4) is not None) == biased


LINE = {"prompt_id": "a", "mode": "plain", "text": " os"}


def completion(mode: Mode, **fields: Any) -> TextCompletion:
    return TextCompletion(**{"request": request(), "mode": mode, "text": " os", "token_ids": (1, 2), **fields})


def written(folder: Path, *lines: str | Mapping[str, Any]) -> FileSource:
    """A file of these lines as a source; objects become JSON."""
    texts = (line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines)
    (folder / "served.jsonl").write_text("".join(texts))
    source = FileSource(str(folder / "served.jsonl"))
    source.open()
    return source


def test_a_file_gives_texts_in_their_order(tmp_path):
    texts = [completion(mode, text=f" {n}", request=request(n)) for n in range(2) for mode in Mode]
    other = {"prompt_id": "b", "mode": "plain", "text": "by hand"}
    source = written(tmp_path, *(line_of(text, "distribution", "llama.cpp b1") for text in texts), other)
    assert isinstance(source, Source)
    assert source.prompts == {"a": PROMPT, "b": ""}
    assert source.pairs == {"a": 2, "b": 0}
    assert source.engine == "texts of served.jsonl, served by llama.cpp b1"
    got = [source.complete([request(9)], Mode.PLAIN)[0] for _ in range(2)]
    assert [text.text for text in got] == [" 0", " 1"]
    assert got[0].token_ids == (1, 2)
    with pytest.raises(ConfigError, match="has 2 plain texts of prompt 'a'"):
        source.complete([request()], Mode.PLAIN)


def test_texts_of_other_questions_are_left_alone(tmp_path):
    lines = [line_of(completion(mode), "limits", "e") for mode in Mode]
    judged = [line_of(completion(mode), "distribution", "e") for mode in Mode]
    assert written(tmp_path, *lines, *judged).pairs == {"a": 1}
    with pytest.raises(ConfigError, match="no line has the question 'distribution' or 'greedy', for which texts are"):
        written(tmp_path, *lines)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("stated", "sampling", "problem"),
    [
        ({"temperature": 0.7}, {"temperature": 0.7, "top_k": 5}, None),  # a line by hand need not say everything
        ({"temperature": 0.7}, {}, r"sampler\.temperature=1\.0: texts of prompt 'a' in .* were sampled with 0\.7"),
        ({"sampling": {"top_k": 5}}, {"top_k": 5}, None),
        (
            {"sampling": {"top_k": 5, "ignore_eos": True, "logit_bias": [[3, 1.0]]}},
            {"top_k": 5},
            r"sampler\.logit_bias",
        ),
        ({"sampling": {}}, {"top_k": 5}, r"sampler\.top_k=5: .* were sampled with 0\. Use the parameters"),
        ({"temperature": 0, "sampling": {"top_p": 0.5}}, {"temperature": 0.0, "top_k": 5}, None),
        ({"question": "greedy", "sampling": {}}, {"temperature": 0.0}, None),
        (
            {"temperature": 0, "sampling": {"repetition_penalty": 1.3}},
            {"temperature": 0.0},
            r"sampler\.repetition_penalty=1\.0: texts of prompt 'a' in .* were sampled with 1\.3",
        ),
        ({"question": "greedy", "sampling": {"temperature": 1.0}}, {"temperature": 0.0}, r"were sampled with 1\.0"),
    ],
)
def test_texts_of_another_distribution_than_the_run_s_are_refused(stated, sampling, problem, tmp_path):
    source = written(tmp_path, LINE | stated)
    if problem is None:
        assert source.complete([request(**sampling)], Mode.PLAIN)
    else:
        with pytest.raises(ConfigError, match=problem):
            source.complete([request(**sampling)], Mode.PLAIN)


@pytest.mark.parametrize(("limits", "same"), [((3, 8), False), ((3, None), False), ((6, 8), True), ((3, 3), True)])
def test_texts_with_another_limit_than_the_other_mode_s_are_refused(limits, same, tmp_path):
    """Where their lengths were compared, a sound engine would be refuted. The request has a limit of 5."""
    lines = [LINE | {"mode": mode, "max_new_tokens": limit} for mode, limit in zip(Mode, limits, strict=True)]
    source, shorter = written(tmp_path, *lines), dataclasses.replace(request(), max_new_tokens=5)
    assert source.complete([shorter], Mode.PLAIN)
    if same:
        assert source.complete([shorter], Mode.SPECULATIVE)
    else:
        with pytest.raises(ConfigError, match=r"have up to 3 tokens one way, 5 the other\. .* protocol\.length=3\."):
            source.complete([shorter], Mode.SPECULATIVE)


def test_a_field_that_is_null_is_none_at_all(tmp_path):
    names = ("text", "question", "prompt", "counters", "engine", "logprobs", "finish_reason", "seconds", "temperature")
    source = written(tmp_path, LINE | {"token_ids": [5], **dict.fromkeys(names)})
    assert source.prompts == {"a": ""}
    (text,) = source.complete([request()], Mode.PLAIN)
    assert (text.text, text.token_ids, text.counters) == ("", (5,), {})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no json", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("[1]", "is no object with a prompt_id and a mode"),
        ('{"mode": "plain", "text": ""}', "is no object with a prompt_id and a mode"),
        ('{"prompt_id": "a", "mode": "plain"}', "has neither text nor token_ids"),
        ('{"prompt_id": "a", "mode": "plain", "mode": "speculative", "text": ""}', "line 1 has two values of 'mode'"),
        ("", r"served.jsonl: it has no lines. Give a file of texts"),
        ({"prompt_id": 3}, "line 1 has the prompt_id 3, which is no text"),
        ({"prompt_id": "\ud800"}, "has the prompt_id .*, which is no text"),
        ({"mode": "fast"}, "has the mode 'fast', which is neither plain nor"),
        ({"mode": ["plain"]}, "has the mode .*, which is neither plain nor"),
        ({"text": 3}, "has a text that cannot be read"),
        ({"token_ids": "12"}, "has a token_ids that cannot be read, '12'"),
        ({"logprobs": [math.nan]}, "has a logprobs that cannot be read"),
        ({"counters": {"drafted": -1}}, "has a counters that"),
        ({"temperature": math.nan}, "has a temperature that"),
        ({"seconds": "1"}, "has a seconds that"),
        ({"engine": "\ud800"}, "has a engine that"),
        ({"token_id": 0}, r"the key 'token_id'.* mean token_ids\? Rename"),
        ({"logprob": 0}, r"the key 'logprob'.* mean logprobs\? Rename"),
        ({"temprature": 0}, r"the key 'temprature'.* mean temperature\? Rename"),
        (
            {"question": "greedy", "temperature": 1.0},
            "line 1 has the question 'greedy' and the temperature 1.0; give 'distribution', or 0",
        ),
        ({"sampling": {"typical_p": 0.9}}, "has the sampling parameter 'typical_p', which is not known here"),
        *(
            ({"token_ids": [5, 6], "logprobs": logprobs}, problem)
            for logprobs, problem in (
                ([-0.1, -0.1, -0.1], "line 1 has 3 logprobs for 2 token_ids; leave the prompt's out"),
                ([-0.1], "1 logprobs for 2 token_ids; .* give one for each token"),
                ([-0.1, 0.99], "the logprob 0.99; give natural logarithms of probabilities, 0 at most"),
            )
        ),
    ],
)
def test_lines_that_cannot_be_read_are_named(line, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        written(tmp_path, line if isinstance(line, str) else LINE | line)


def test_keys_of_an_engine_s_own_are_left_alone(tmp_path):
    """A key that is near to a known one is a key of the engine's own if the line has the known one too."""
    own = {"token_ids": [5], "tokens": 1, "model": "m", "prompt_tokens": 3}
    assert written(tmp_path, LINE | own).pairs == {"a": 0}


def test_drawn_texts_are_cut_at_their_limit_and_overruns_are_counted(tmp_path):
    line = LINE | {"token_ids": [5, 6, 7], "logprobs": [-1.0] * 3, "finish_reason": "stop"}
    limited = line | {"max_new_tokens": 2}
    source = written(tmp_path, line, limited, limited | {"temperature": 0.0})
    texts = [source.complete([request()], Mode.PLAIN)[0] for _ in range(2)]
    texts += source.complete([request(temperature=0.0)], Mode.PLAIN)
    assert [text.token_ids for text in texts] == [(5, 6, 7), (5, 6), (5, 6, 7)]
    assert (texts[1].logprobs, texts[1].finish_reason) == ((-1.0, -1.0), "length")
    detail = ("too long", "3 tokens for max_tokens=2, prompt 'a'")
    assert source.overruns == {Mode.PLAIN: (2, [detail, detail]), Mode.SPECULATIVE: (0, [])}


def test_drawn_texts_of_one_seed_are_left_out_but_for_the_first(tmp_path):
    """They may be one draw. Texts without a seed, of another prompt or mode, or at temperature 0 are others."""
    seeded = LINE | {"seed": 0}
    others = [LINE, LINE, seeded | {"prompt_id": "b"}, seeded | {"mode": "speculative"}, seeded | {"seed": 1}]
    greedy = [seeded | {"temperature": 0.0, "mode": mode} for mode in Mode for _ in range(2)]
    source = written(tmp_path, seeded, *others, *greedy, seeded | {"text": " as"}, seeded)
    assert source.same_seed == 2
    assert [text.text for text in source.complete([request()] * 4, Mode.PLAIN)] == [" os"] * 4
    with pytest.raises(ConfigError, match="has 4 plain texts of prompt 'a'"):
        source.complete([request()], Mode.PLAIN)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (2024, r"2024: not a path\. Put \./ before a name of digits"),
        ("nothing.jsonl", r"nothing\.jsonl: cannot be read"),
        ("a\0b", ".*: cannot be read"),
        ("\ud800", ".*: cannot be read"),
    ],
    ids=ascii,
)
def test_a_path_that_leads_to_no_file_is_named(path, problem):
    with pytest.raises(ConfigError, match=rf"^source\.path={problem}"):
        FileSource(path).open()


def test_a_prompt_with_two_texts_is_refused(tmp_path):
    """Texts of different prompts would be compared."""
    lines = [LINE | {"prompt": text} for text in "xxy"]
    assert written(tmp_path, *lines[:2], LINE).prompts == {"a": "x"}
    with pytest.raises(ConfigError, match=r"prompt 'a' have different prompts\. Give each prompt a prompt_id"):
        written(tmp_path, *lines)


def test_lines_with_impossible_tokens_are_read_again(tmp_path):
    line = line_of(completion(Mode.PLAIN, logprobs=(-0.5, float("-inf"))), "distribution", "e")
    (text,) = written(tmp_path, line).complete([request()], Mode.PLAIN)
    assert text.logprobs == (-0.5, float("-inf"))


def test_lines_are_json_whatever_the_text_holds():
    line = line_of(completion(Mode.PLAIN, text='"\n\ud800', token_ids=None), "distribution", "e")
    assert json.loads(line)["text"] == '"\n\ud800'
    assert line.count("\n") == 1
