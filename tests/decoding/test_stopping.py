"""Texts end at the right character and token, whatever blocks, engines and batches their tokens came in."""

import dataclasses
import itertools
import random

import pyarrow.parquet as pq
import pytest

import specbench
from specbench.core.errors import ArgumentError, ConfigError
from specbench.decoding import Decoder
from specbench.decoding.detokenize import TextStream
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.decoding.requests import Completion, Request, requests_of
from specbench.decoding.step_result import FINITE, RequestStep
from specbench.decoding.stopping import StopSearch
from specbench.metrics.results import TEXTS, TextRow, write_rows
from specbench.models import CachedModel
from specbench.protocols.decode import text_row
from specbench.sampling import SamplingParams
from specbench.sampling.batch import STOPPED
from tests.decoding.test_decoding import GREEDY, make_requests, texts
from tests.helpers.cases import decoder, in_float64

ENGINES = {"eager": EagerEngine, "static": StaticEngine}


@pytest.fixture(scope="module")
def exact(pair):
    """The embedded pair: in its texts stop strings end inside of drafted blocks."""
    return in_float64(pair)


each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


class Pieces:
    """A tokenizer whose tokens are these bytes; token 0 is special."""

    def __init__(self, *pieces):
        self.pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]

    def decode(self, token_ids, skip_special_tokens, clean_up_tokenization_spaces=False):
        kept = [self.pieces[token] for token in token_ids if token or not skip_special_tokens]
        return b"".join(kept).decode(errors="replace")


def found_in(pieces, sampling, blocks, prompt=()):
    """What is shown, and how many tokens stand, if all pieces come in order, in blocks of these sizes."""
    tokenizer = Pieces("<end>", *pieces, *prompt)
    first = len(pieces) + 1
    search = StopSearch(TextStream(tokenizer, [first + i for i in range(len(prompt))], True), sampling)
    tokens = iter(range(1, len(pieces) + 1))
    for size in blocks:
        if stop := search.feed(list(itertools.islice(tokens, size))):
            whole = TextStream(tokenizer, [], True).feed(list(range(1, stop.tokens + 1)))
            return stop.text, stop.tokens, whole[: len(whole) - stop.hidden]
    return None


def splits(n):
    """All ways to cut n tokens into blocks."""
    for cuts in itertools.product([False, True], repeat=n - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [n]
        yield [b - a for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["de", "f a", "\n", "\n", "x"], ["\n\n"], ("\n\n", 4, "def a")),
        (["de", "f ST", "O", "P th"], ["STOP"], ("STOP", 4, "def ")),  # the last token holds more than its end
        (["de", "f STO", "P"], ["STOP"], ("STOP", 3, "def ")),  # all but its end in one token
        (["aab", "aa", "bx"], ["aaba", "aabx"], ("aaba", 2, "")),
        (["a", "aa", "ab"], ["aab"], ("aab", 3, "aa")),  # a false start that the true one overlaps
        ([b"caf\xc3", b"\xa9 \xe2\x82", b"\xac", b"!"], ["\u20ac"], ("\u20ac", 3, "caf\u00e9 ")),  # a character's bytes
        ([b"x\xe2", b"\x82\xac"], ["x"], ("x", 1, "")),  # whole before the next character is
        (["ab", "cdef"], ["ef", "cd"], ("cd", 2, "ab")),  # that ends first, in one token
        (["ab", "cd"], ["d", "cd"], ("d", 2, "abc")),  # both end there: that is named first
        (["ab", "cd"], ["bx"], None),
    ],
)
def test_a_stop_string_is_found_however_its_tokens_came(pieces, stop, expected):
    for blocks in splits(len(pieces)):
        assert found_in(pieces, SamplingParams(stop=stop), blocks) == expected, blocks


def test_the_stop_string_is_kept_if_asked_and_nothing_behind_it():
    params = SamplingParams(stop=["STOP"], include_stop_str_in_output=True)
    assert found_in(["a ST", "OP b"], params, [2]) == ("STOP", 2, "a STOP")


def test_special_tokens_are_shown_and_searched_if_asked():
    for skipped, shown in ((True, "ab"), (False, "a<end>b")):
        sampling = SamplingParams(skip_special_tokens=skipped)
        completion = Completion(Request("p", (1,), 0, sampling, 4), [1, 0, 2], tokenizer=Pieces("<end>", "a", "b"))
        assert completion.text == shown
        stream = TextStream(Pieces("<end>", "a", "b"), [1], skipped)
        stop = StopSearch(stream, SamplingParams(stop=["<end>b"], skip_special_tokens=skipped)).feed([1, 0, 2])
        assert (stop is None) == skipped


def test_prompts_are_not_searched():
    """Not even for the beginning of a stop string."""
    assert found_in(["OP", " STOP"], SamplingParams(stop=["STOP"]), [1, 1], prompt=["STOP", "ST"]) == ("STOP", 2, "OP ")


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, 1), (1, 3), (2, 3), (3, 5)])
def test_no_stop_string_is_complete_within_the_first_min_tokens(min_tokens, expected):
    """One may begin there: vLLM's meaning."""
    pieces = ["e", " L", "ee", ", st", "en"]
    for blocks in splits(5):
        assert found_in(pieces, SamplingParams(stop=["e"], min_tokens=min_tokens), blocks)[1] == expected
    assert found_in(pieces, SamplingParams(stop=["st"], min_tokens=4), [5]) is None
    # Nor later, when a longer one makes the search remember where it stood.
    assert found_in(["ab", "c", "d"], SamplingParams(stop=["ab", "longer"], min_tokens=1), [3]) is None
    assert found_in(pieces, SamplingParams(stop=[", ste"], min_tokens=4), [5]) == (", ste", 5, "e Lee")


def test_text_told_token_by_token_is_the_text_of_all_tokens(pair):
    """Over texts in several scripts and over random ids, many of which are bytes that are no character."""
    rng, tokenizer = random.Random(0), pair.tokenizer
    written = tokenizer.encode("na\u00efve w\u00f6rld \u20ac \u6f22\u5b57 \U0001f642 = 'x'\n")
    for i in range(200):
        ids = [rng.randrange(300) for _ in range(20)] if i % 2 else written
        cut = rng.randrange(len(ids))
        stream = TextStream(tokenizer, ids[:cut], True)
        text = "".join(stream.feed([token]) for token in ids[cut:]) + stream.rest()
        before = tokenizer.decode(ids[:cut], skip_special_tokens=True).rstrip("\ufffd")
        assert before + text == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="module")
def free(exact):
    """Greedy texts that nothing but their length ends."""
    requests = make_requests(exact, 4, dataclasses.replace(GREEDY, ignore_eos=True), max_new_tokens=24)
    return decoder(exact, 0).run(requests)


@pytest.fixture(scope="module")
def stopped(exact, free):
    """Requests with stop strings out of these texts, and where each text has to end: its characters and tokens."""
    rng, requests, expected = random.Random(1), [], []
    for i, completion in enumerate(free * 2):
        place, size = rng.randrange(4, len(completion.text) - 16), (1, 4, 7, 16)[i % 4]
        stop = (completion.text[place : place + size], "never there")
        text = completion.text[: completion.text.index(stop[0])]
        tokens = next(n for n in range(25) if stop[0] in exact.tokenizer.decode(completion.token_ids[:n]))
        sampling = dataclasses.replace(completion.request.sampling, stop=stop)
        requests.append(dataclasses.replace(completion.request, name=str(i), sampling=sampling))
        expected.append((text, completion.token_ids[:tokens], "stop", stop[0]))
    return requests, expected


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@each_engine
@pytest.mark.parametrize("gamma", [0, 4])
def test_texts_end_alike_plainly_and_speculatively_in_continuous_batches(exact, free, stopped, engine, gamma):
    """What the verifier accepted is recorded as in the texts that go on, also behind the stop string."""
    requests, expected = stopped
    made = decoder(exact, gamma, engine=engine())
    longer = decoder(exact, gamma).run([completion.request for completion in free])
    completions = made.run(requests, at_once=3)
    assert [(c.text, c.token_ids, c.finished, c.stop_reason) for c in completions] == expected
    for completion, text in zip(completions, longer * 2, strict=True):
        assert sum(step.num_emitted for step in completion.steps) == len(completion.token_ids)
        accepted = [step.num_accepted for step in completion.steps]
        assert accepted == [step.num_accepted for step in text.steps][: len(accepted)]
    if gamma:  # the cases that this is about are among them
        lasts = [completion.steps[-1] for completion in completions]
        assert any(0 < last.num_emitted < last.num_accepted for last in lasts)
        last = [(exact.tokenizer.decode(c.token_ids[-c.steps[-1].num_emitted :]), c.stop_reason) for c in completions]
        assert any(len(text) < len(stop) for text, stop in last)


@pytest.mark.usefixtures("unchecked")
def test_a_row_whose_text_the_host_has_ended_goes_on_no_more(exact, stopped):
    """The step does not see stop strings: a row that is free has to be told to rest."""
    (request, *_), _ = stopped
    made = decoder(exact, engine=StaticEngine([2]))  # a step of both rows, whatever they hold
    endless = dataclasses.replace(request, sampling=GREEDY, stop_ids=frozenset(), max_new_tokens=40)
    completions = made.start([endless, request])
    while not completions[1].finished:
        made.step()
    length = int(made.engine._slots.batch.lengths[1])
    for _ in range(3):
        made.step()
    assert made.active == 1
    assert int(made.engine._slots.batch.lengths[1]) == length


@pytest.mark.usefixtures("unchecked")
@each_engine
def test_every_request_has_stop_ids_of_its_own(exact, free, engine):
    """In one batch: none, one, several, and in place of the model's own; the longer rows come later."""
    ids = free[0].token_ids
    once = [i for i in range(2, 20) if ids[i] not in ids[:i]]
    a, b = once[1], once[4]
    pair = dataclasses.replace(exact, stop_ids=frozenset({ids[b]}))
    params = {
        "own": {}, "none": {"ignore_eos": True}, "first": {"stop_token_ids": [ids[a]]},
        "shown": {"stop_token_ids": [ids[a]], "include_stop_str_in_output": True},
        "many": {"stop_token_ids": [*range(4000, 4012), ids[a]], "ignore_eos": True},
    }  # fmt: skip
    requests = [
        dataclasses.replace(free[0].request, name=name, sampling=SamplingParams(temperature=0.0, **parameters))
        for name, parameters in params.items()
    ]
    requests.append(dataclasses.replace(requests[0], name="other", stop_ids=frozenset({ids[a]})))
    completions = {
        completion.request.name: completion for completion in decoder(pair, engine=engine()).run(requests, at_once=4)
    }
    lengths = {name: len(completion.token_ids) for name, completion in completions.items()}
    assert lengths == {"own": b + 1, "none": 24, "first": a + 1, "shown": a + 1, "many": a + 1, "other": a + 1}
    reasons = {name: completion.stop_reason for name, completion in completions.items()}
    assert reasons == {"own": None, "none": None, "first": ids[a], "shown": ids[a], "many": ids[a], "other": None}
    decode = exact.tokenizer.decode
    assert completions["first"].text == decode(ids[:a])
    assert completions["shown"].text == decode(ids[: a + 1])


def test_a_stop_token_is_no_text_to_search():
    """Its characters are shown no more than those of the model's own, unless asked for."""
    for included, shown in ((False, "a"), (True, "a>")):
        sampling = SamplingParams(stop=[">"], stop_token_ids=[2], include_stop_str_in_output=included)
        completion = Completion(Request("p", (1,), 0, sampling, 4), tokenizer=Pieces("<end>", "a", ">"))
        completion.record(RequestStep(2, 1, 2, 2, STOPPED, FINITE, [1, 2, -1]), None, read=0.0)
        assert (completion.token_ids, completion.stop_reason, completion.text) == ([1, 2], 2, shown)


def test_a_table_of_texts_says_what_ended_each(tmp_path):
    """A stop string, an id in digits, since a column has one type, or nothing that was asked for."""
    tokenizer, request = Pieces("<end>", "a", ">"), Request("p", (1,), 0, SamplingParams(), 4)
    reasons = [">", 2, None]
    ended = [
        Completion(request, [1, 2], finished="stop", stop_reason=reason, tokenizer=tokenizer) for reason in reasons
    ]
    write_rows(tmp_path / TEXTS, [text_row(tokenizer, completion) for completion in ended], TextRow)
    assert pq.read_table(tmp_path / TEXTS)["stop_reason"].to_pylist() == [">", "2", None]


def test_a_decoder_without_a_tokenizer_says_that_it_needs_one(pair, stopped):
    requests, _ = stopped
    made = Decoder(CachedModel(pair.target, pair.vocab_size, "target"), None, None, 0, pair.stop_ids)
    with pytest.raises(ArgumentError, match="tokenizer: None"):
        made.run(requests)


def test_several_continuations_have_seeds_of_their_own_that_follow_from_the_first():
    sampling = SamplingParams(n=3, seed=5, truncate_prompt_tokens=2, max_tokens=7)
    made = requests_of("p", (1, 2, 3), sampling, 99, 64)
    continuations = [(r.name, r.prompt_name, r.sample, r.prompt, r.max_new_tokens) for r in made]
    assert continuations == [(name, "p", i, (2, 3), 7) for i, name in enumerate(["p", "p#1", "p#2"])]
    assert made[0].seed == 5
    assert len({r.seed for r in made}) == 3
    others = requests_of("q", (1, 2, 3), sampling, 11, 64)
    assert [r.seed for r in others] == [r.seed for r in made]  # neither the run's seed nor the name is in it
    assert [r.seed for r in requests_of("p", (1,), SamplingParams(), 99, 64)] == [99]


def test_decode_tells_which_continuation_is_which(pair):
    prompts = ["def add(a, b):\n", "import os\nimport "]
    sampling = SamplingParams(n=2, seed=3, max_tokens=6)
    completions = specbench.decode(pair, prompts, sampling=sampling, seed=8)
    assert [(completion.index, completion.sample) for completion in completions] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert completions[0].token_ids != completions[1].token_ids
    again = specbench.decode(pair, prompts[::-1], sampling=sampling, seed=9, batch_size=1)
    assert texts(again) == texts([*completions[2:], *completions[:2]])


def test_ids_that_the_pair_does_not_have_are_refused(pair):
    with pytest.raises(ConfigError, match=r"sampling\.stop_token_ids=4096: id 4096 is beyond the vocabulary of 4096"):
        specbench.decode(pair, "x", sampling=SamplingParams(stop_token_ids=[1, 4096]))
