"""The Python API: names that import nothing heavy, batches of plain tensors, certificates of functions, texts."""

from __future__ import annotations

import ast
import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import specbench
from specbench.decoding import Decoder, Request
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.errors import ArgumentError, ConfigError, ModelError
from specbench.exactness.statistics import small
from specbench.models import Engine, Pair
from specbench.protocols.exactness import ExactnessProtocol
from specbench.protocols.record import record as record_requests
from specbench.provenance import request_seed
from specbench.results import write_rows
from specbench.rules.token import TOKEN
from specbench.runs.choices import chosen, names
from specbench.runs.samplings import processors_text
from specbench.sampling_params import SamplingParams
from specbench.verifiers.block import BlockVerifier
from specbench.verifiers.masked import MaskedVerifier
from tests.command_lines import ROOT
from tests.test_exactness_protocols import context as run_context

# Names


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_specbench_imports_nothing_heavy():
    heavy = "torch", "transformers", "numpy", "pandas", "hydra", "matplotlib"
    assert fresh(f"import sys, specbench; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_every_public_name_is_there_and_is_what_type_checkers_are_told():
    assert sorted(specbench.__all__) == sorted({*specbench._HOMES, "replay", "__version__"})
    tree = ast.parse((ROOT / "specbench" / "__init__.py").read_text())
    (checking,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    told = {
        alias.name: node.module for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes = {name: f"specbench.{home}" for name, home in specbench._HOMES.items()}
    assert told == homes | {"replay": "specbench.replay.call"}
    for name in specbench.__all__:
        assert name in dir(specbench)
        assert getattr(specbench, name).__doc__ or name == "__version__"
    with pytest.raises(AttributeError, match="no attribute 'verifyy'"):
        specbench.verifyy  # noqa: B018


@pytest.mark.parametrize("before", ["", "import specbench.replay.trace; ", "from specbench import replay; "])
def test_replay_is_a_function_and_a_room_whatever_was_imported_before(before):
    """Importing a module of a room binds the room's name in the package, where the function would have been."""
    code = f"{before}import specbench\ntry:\n    specbench.replay('nope.parquet', 'block', [1])\nexcept Exception as e:"
    assert "nope.parquet" in fresh(f"{code}\n    print(e)\nfrom specbench.replay.trace import Trace")


@pytest.mark.parametrize("name", [name for name in specbench.__all__ if name[0].islower()])
def test_functions_have_docstrings_that_stand_alone(name):
    from specbench.replay import call

    function = call.replay if name == "replay" else getattr(specbench, name)
    for part in ("Args:", "Returns:", "Raises:", "Example:"):
        assert part in function.__doc__


# verify

COUNTS = [3, 0, 1, 2]
SAMPLING = [
    specbench.SamplingParams(temperature=0.7),
    specbench.SamplingParams(top_k=3),
    specbench.SamplingParams(temperature=0.0),
    specbench.SamplingParams(temperature=1.3, top_p=0.8),
]
SEEDS, POSITIONS = [11, 2**62, 0, 5], [9, 0, 2**31, 4]
PLAIN = ["masked", "naive", "block", "control/sample_match"]


def batch(vocabulary: int = 7) -> dict[str, Any]:
    """Ragged requests, each with parameters of its own."""
    generator = torch.Generator().manual_seed(1)
    n = sum(COUNTS)
    return {
        "target_logits": 2 * torch.randn(n + len(COUNTS), vocabulary, generator=generator),
        "draft_logits": 2 * torch.randn(n, vocabulary, generator=generator),
        "draft_token_ids": torch.randint(vocabulary, (n,), generator=generator),
        "num_draft_tokens": COUNTS,
        "sampling": SAMPLING,
        "seeds": SEEDS,
        "positions": POSITIONS,
    }


def apart(given: dict[str, Any]) -> dict[str, Any]:
    """The same batch with an entry a request."""
    return given | {
        "target_logits": list(given["target_logits"].split([count + 1 for count in COUNTS])),
        "draft_logits": list(given["draft_logits"].split(COUNTS)),
        "draft_token_ids": [part.tolist() for part in given["draft_token_ids"].split(COUNTS)],
        "num_draft_tokens": None,
    }


@pytest.mark.parametrize("verifier", PLAIN)
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
def test_a_batch_gives_what_its_requests_give_alone(verifier, one_hot):
    """Catches rows, parameters, seeds or positions that go to another request of a ragged batch."""
    given = batch() | ({"draft_logits": None} if one_hot else {})
    together = specbench.verify(**given, verifier=verifier)
    lists = apart(batch()) | ({"draft_logits": None} if one_hot else {})
    same = specbench.verify(**lists, verifier=verifier)
    assert torch.equal(together.token_ids, same.token_ids)
    for b, count in enumerate(COUNTS):
        alone = specbench.verify(
            lists["target_logits"][b],
            lists["draft_token_ids"][b],
            None if one_hot else lists["draft_logits"][b],
            num_draft_tokens=[count],
            sampling=SAMPLING[b],
            seeds=[SEEDS[b]],
            positions=POSITIONS[b],
            verifier=verifier,
        )
        assert alone.token_ids[0].tolist() == together.token_ids[b, : count + 1].tolist()
        assert alone.num_accepted[0] == together.num_accepted[b]


def test_a_single_seed_gives_every_request_its_own():
    rows = torch.zeros(64, 2, 1000)
    found = specbench.verify(rows[:, :1], [[] for _ in range(64)], seeds=3, positions=0).token_ids[:, 0]
    assert found.unique().numel() > 50  # of 64 draws from 1000; one if they shared a seed
    again = specbench.verify(rows[:, :1], [[] for _ in range(64)], seeds=3, positions=0).token_ids[:, 0]
    assert torch.equal(found, again)


def test_draft_sampling_is_of_the_draft_alone():
    """At draft temperature 0 q is one-hot at the argmax, so that a drafted token of little p is accepted that often."""
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).expand(4000, 2, 2)
    draft = torch.tensor([[0.0, 0.1]]).expand(4000, 1, 2)
    ids = torch.ones(4000, 1, dtype=torch.int64)
    given = {"seeds": 1, "positions": 0}
    cold = specbench.verify(target, ids, draft, draft_sampling=specbench.SamplingParams(0.0), **given)
    one_hot = specbench.verify(target, ids, **given)
    warm = specbench.verify(target, ids, draft, **given)
    assert torch.equal(cold.token_ids, one_hot.token_ids)
    assert warm.num_accepted.sum() > 1.5 * cold.num_accepted.sum()


def test_whole_numbers_may_be_lists_arrays_or_tensors_of_any_width():
    expected = specbench.verify(**batch())
    names = ("draft_token_ids", "num_draft_tokens", "seeds", "positions")
    lists = {name: torch.as_tensor(batch()[name]).tolist() for name in names}
    for kind in (list, np.array, torch.tensor):
        found = specbench.verify(**batch() | {name: kind(value) for name, value in lists.items()})
        assert torch.equal(found.token_ids, expected.token_ids)
    narrow = batch()["draft_token_ids"].to(torch.int32)
    assert torch.equal(specbench.verify(**changed(draft_token_ids=narrow)).token_ids, expected.token_ids)


def test_an_object_verifies_as_its_name_does():
    one, two = (specbench.verify(**batch(), verifier=each) for each in ("block", BlockVerifier()))
    assert torch.equal(one.token_ids, two.token_ids)


def test_arguments_are_left_as_they_are():
    given = batch()
    before = {name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)}
    specbench.verify(**given)
    assert all(torch.equal(given[name], value) for name, value in before.items())


def changed(**changes: Any) -> dict[str, Any]:
    return batch() | changes


NAN = torch.full((10, 7), torch.nan)
WRONG = [  # what is wrong, the arguments, and how the message begins
    ("a row too few", changed(target_logits=torch.zeros(9, 7)), "target_logits: 9 rows; 10 needed"),
    ("one dimension", changed(target_logits=torch.zeros(10)), "target_logits: [10]; a tensor [rows, V]"),
    ("whole numbers", changed(target_logits=torch.zeros(10, 7, dtype=torch.int64)), "target_logits: torch.int64"),
    ("NaN", changed(target_logits=NAN), "target_logits: row 0 holds NaN"),
    ("NaN in drafts", changed(draft_logits=NAN[:6]), "draft_logits: row 0 holds NaN"),
    ("another vocabulary", changed(draft_logits=torch.zeros(6, 8)), "draft_logits: [6, 8] on cpu; [6, 7] on cpu"),
    ("draft rows", changed(draft_logits=torch.zeros(5, 7)), "draft_logits: 5 rows; 6 needed"),
    ("floats as ids", changed(draft_token_ids=torch.zeros(6)), "draft_token_ids: torch.float32 [6]"),
    ("ids beyond", changed(draft_token_ids=[0, 1, 2, 7, 0, 0]), "draft_token_ids[3] = 7 is outside 0 to 6"),
    ("padding as ids", changed(draft_token_ids=[0, 1, -1, 2, 0, 0]), "draft_token_ids[2] = -1 is outside"),
    ("counts missing", changed(num_draft_tokens=None), "num_draft_tokens: missing. Say how many of the 6"),
    ("counts of another sum", changed(num_draft_tokens=[3, 0, 1, 1]), "num_draft_tokens: 5 in all"),
    ("negative counts", changed(num_draft_tokens=[4, -1, 1, 2]), "num_draft_tokens: [4, -1, 1, 2]"),
    ("no requests", changed(num_draft_tokens=[]), "num_draft_tokens: []"),
    ("counts of lists", apart(batch()) | {"num_draft_tokens": [3, 0, 2, 1]}, "num_draft_tokens: [3, 0, 2, 1], but"),
    ("rows of lists", changed(target_logits=list(torch.zeros(4, 3, 7))), "target_logits: [3, 3, 3, 3] rows"),
    ("seeds too few", changed(seeds=[1, 2]), "seeds: 2 for 4 requests"),
    ("negative seed", changed(seeds=[1, -2, 3, 4]), "seeds[1] = -2 is outside"),
    ("a single negative seed", changed(seeds=-1), "seeds: -1 is outside"),
    ("seed beyond 64 bits", changed(seeds=[2**64, 1, 1, 1]), "seeds: no whole numbers"),
    ("positions beyond", changed(positions=2**32), "positions[0] = 4294967296 is outside"),
    ("positions of floats", changed(positions=[0.5, 1, 1, 1]), "positions: torch.float32"),
    ("samplings too few", changed(sampling=SAMPLING[:3]), "sampling: 3 for 4 requests"),
    ("sampling of another kind", changed(sampling=[{"top_k": 3}] * 4), "sampling: a dict among them"),
    (
        "processors",
        changed(sampling=specbench.SamplingParams(processors=(print,))),
        "sampling: processors need the text",
    ),
    ("draft sampling alone", changed(draft_logits=None, draft_sampling=SAMPLING[0]), "draft_sampling: given without"),
    ("unknown verifier", changed(verifier="nonsense"), "verifier='nonsense': not one of conf/verifier. Use block"),
    ("above the folder", changed(verifier="../protocol/decode"), "verifier='../protocol/decode': not one of"),
    ("no verifier", changed(verifier=3.0), "verifier: a float without a method verify"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("given", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_argument_is_named(given, says):
    with pytest.raises(ArgumentError) as raised:
        specbench.verify(**given)
    assert str(raised.value).startswith(says)


OURS = [name for name in names("verifier") if not name.startswith("external/") and name != "flawed"]


@pytest.mark.parametrize("name", [*OURS, "flawed/lenient"])
def test_every_verifier_of_conf_is_built_by_its_name(name):
    assert callable(chosen("verifier", name).verify)


def test_a_name_that_stands_for_many_asks_which():
    with pytest.raises(ArgumentError, match="verifier='flawed': one of many; say which, as verifier='flawed/BUG'"):
        specbench.certify("flawed")
    with pytest.raises(ConfigError, match=r"verifier\.bug=lenience: no such bug"):
        specbench.certify("flawed/lenience")


# certify

SMALL = {"draws": 5000, "serial_draws": 500, "regime_draws": 8, "vocabulary": 300, "seconds": 0, "regime_seconds": 0}
OF_THE_RUN = ("command", "environment", "seconds", "verifier")


def bare(certificate: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(certificate).items() if name not in OF_THE_RUN}


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_a_name_an_object_and_a_function_get_the_certificate_of_the_command_line(monkeypatch):
    monkeypatch.setattr(small, "QUICK", math.inf)  # batches grow whatever the clock says, which the page has
    run = run_context(MaskedVerifier(), gamma=4, batch_size=1)
    protocol = ExactnessProtocol(suite="quick", **SMALL)
    expected = protocol._question(run).answer(protocol._question(run).examine())

    def mine(draft: Any, target: Any, streams: Any) -> Any:
        return MaskedVerifier().verify(draft, target, streams)

    for verifier, more in (("masked", {}), (MaskedVerifier(), {}), (mine, {"rule": TOKEN}), (mine, {"rule": "token"})):
        found = specbench.certify(verifier, "quick", device="cpu", **SMALL, **more)
        assert bare(found) == bare(expected)
    assert found.verifier == "mine"
    assert found.command.startswith("specbench.certify(mine, suite='quick', seed=0, draws=5000")
    assert found.headline in found.page


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_what_a_function_does_wrong_is_said_and_not_raised():
    def falls(draft: Any, target: Any, streams: Any) -> Any:
        raise IndexError("no such row")

    found = specbench.certify(falls, rule="mine", lossless=False, **SMALL)
    assert found.verdict == "broken"
    assert "no such row" in found.headline
    assert (found.rule, found.declared_lossless) == ("mine", False)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"verifier": print}, ArgumentError, "rule: missing for the function print"),
        ({"verifier": "masked", "rule": "token"}, ArgumentError, "rule='token': given for masked, which says itself"),
        ({"verifier": MaskedVerifier(), "lossless": True}, ArgumentError, "lossless=True: given for MaskedVerifier"),
        ({"verifier": "masked", "suite": "thorough"}, ConfigError, "protocol.suite=thorough: no such suite"),
        ({"verifier": "masked", "drawss": 3}, ConfigError, "protocol.drawss=3: no setting of a suite"),
        ({"verifier": "masked", "batch_size": 0}, ConfigError, "batch_size=0: not a count"),
        ({"verifier": "masked", "device": "tpu"}, ConfigError, "device=tpu"),
        ({"verifier": MaskedVerifier}, ArgumentError, "verifier: a class, MaskedVerifier; give an object of it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_certify_names_a_wrong_argument(given, error, says):
    with pytest.raises(error) as raised:
        specbench.certify(**given)
    assert says in str(raised.value)


# decode, record, replay

PROMPTS = ["def add(a, b):\n", "import os\nimport ", "class A"]


def test_decode_is_the_loop_with_seeds_of_its_own(pair: Pair):
    sampling = specbench.SamplingParams(temperature=0.8)
    found = specbench.decode(pair, PROMPTS, gamma=3, verifier="block", sampling=sampling, max_new_tokens=12, seed=5)
    requests = [
        Request(str(i), tuple(pair.encode(text)), request_seed(5, str(i)), sampling, 12)
        for i, text in enumerate(PROMPTS)
    ]
    target = Engine(pair.target, pair.vocab_size, "target")
    decoder = Decoder(target, ModelDrafter().bind(pair, target), BlockVerifier(), 3, pair.stop_ids)
    for each, expected in zip(found, decoder.run(requests), strict=True):
        assert each.token_ids == expected.token_ids
        assert each.prompt == expected.request.prompt
        assert [dataclasses.astuple(step) for step in each.steps] == [dataclasses.astuple(s) for s in expected.steps]
        assert each.text == pair.tokenizer.decode(expected.token_ids, skip_special_tokens=True)
        accepted = sum(step.num_accepted for step in each.steps)
        assert each.acceptance_length == 1 + accepted / len(each.steps)
    steps = sum(len(each.steps) for each in found)
    accepted = sum(step.num_accepted for each in found for step in each.steps)
    assert found.acceptance_length == pytest.approx((accepted + steps) / steps)


def test_a_drafter_is_given_by_name_or_as_an_object(pair: Pair):
    given = {"prompts": ["a b c a b c a b", "x = 1\nx = 1\nx ="], "max_new_tokens": 8, "gamma": 3}
    found = specbench.decode(pair, drafter="prompt_lookup", **given)
    assert found == specbench.decode(pair, drafter=PromptLookupDrafter(3, 1), **given)
    drafted = [step.num_draft_tokens for each in found for step in each.steps]
    assert drafted != [step.num_draft_tokens for each in specbench.decode(pair, **given) for step in each.steps]


def test_each_prompt_may_have_a_gamma_of_its_own(pair: Pair):
    """And all continuations of it; each text is the one that it is with that gamma alone."""
    given = {"sampling": specbench.SamplingParams(n=2), "max_new_tokens": 8}
    found = specbench.decode(pair, PROMPTS, gamma=[2, 0, 4], **given)
    for place, gamma in enumerate((2, 0, 4)):
        alone = specbench.decode(pair, PROMPTS, gamma=gamma, **given)
        for each in range(2 * place, 2 * place + 2):
            assert (found[each].token_ids, found[each].steps) == (alone[each].token_ids, alone[each].steps)


def test_prompts_may_be_one_text_or_token_ids_in_batches_of_any_size(pair: Pair):
    found = specbench.decode(pair, PROMPTS, max_new_tokens=6)
    ids = [pair.encode(text) for text in PROMPTS]
    assert specbench.decode(pair, ids, max_new_tokens=6, batch_size=2) == found
    assert specbench.decode(pair, PROMPTS[0], max_new_tokens=6) == found[:1]


def test_a_recording_is_of_the_texts_that_plain_decoding_gives(pair: Pair, tmp_path: Path):
    """The same seeds; so a trace and a decoded text may be laid side by side."""
    sampling = specbench.SamplingParams(temperature=0.9, top_k=40)
    given = {"sampling": sampling, "max_new_tokens": 8, "seed": 3}
    trace = specbench.record(pair, PROMPTS, samples=2, **given)
    plain = specbench.decode(pair, PROMPTS, gamma=0, **given)
    texts = [trace.tokens[start:end].tolist() for start, end in zip(trace.starts, trace.starts[1:], strict=False)]
    assert texts[::2] == [each.token_ids for each in plain]
    assert len(texts) == 6
    assert {len(each.steps) for each in plain} == {len(each.token_ids) for each in plain}
    assert trace.identity.sampler == {"temperature": 0.9, "top_k": 40, "top_p": 1, "min_p": 0}

    from specbench.api.texts import _context, _requests

    requests = _requests(pair, PROMPTS, sampling, 8, 3)
    kept = record_requests(_context(pair, ModelDrafter(), requests, 3, 8), requests).table
    write_rows(tmp_path / "trace.parquet", kept.rows, kept.schema)
    one, two = (
        specbench.replay(each, "token", gammas=[0, 3])
        for each in (specbench.record(pair, PROMPTS, **given), tmp_path / "trace.parquet")
    )
    assert [each.acceptance_length for each in one] == [
        each.acceptance_length for each in specbench.replay(tmp_path / "trace.parquet", TOKEN, [0, 3])
    ]
    assert [each.gamma for each in one] == [0, 3]
    assert [each.acceptance_length for each in one] == [each.acceptance_length for each in two]


class Penalty:
    """Takes a number from the logits of tokens that came before."""

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, logits: torch.Tensor, history: Any) -> torch.Tensor:
        return logits - self.penalty * history.counts(logits.shape[1]).to(logits.dtype)


def doubled(logits: torch.Tensor, history: Any) -> torch.Tensor:
    return 2 * logits


def test_a_recording_names_its_processors_as_the_command_line_would(pair: Pair):
    """So that it is not taken for a recording without them; the replay of the command line compares the two texts."""
    sampling = specbench.SamplingParams(processors=[Penalty(0.5), doubled])
    trace = specbench.record(pair, PROMPTS[:1], sampling=sampling, max_new_tokens=3)
    nodes = [{"_target_": f"{__name__}.Penalty", "penalty": 0.5}, {"_target_": f"{__name__}.doubled"}]
    assert trace.identity.processors == processors_text({"processors": nodes})
    plain = specbench.record(pair, PROMPTS[:1], max_new_tokens=3)
    assert plain.identity.processors == processors_text({"processors": []}) == ""


@pytest.mark.usefixtures("unchecked")
def test_decode_says_what_a_pair_is():
    with pytest.raises(ArgumentError, match=r"pair: a str; give what specbench\.load_pair returns"):
        specbench.decode("embedded", PROMPTS[:1])


@pytest.mark.parametrize(("gamma", "checked"), [(0, "token that may come."), (2, "come, and verifier=masked.")])
@pytest.mark.usefixtures("unchecked")
def test_parameters_that_ban_every_token_are_named(pair: Pair, gamma, checked):
    sampling = SamplingParams(allowed_token_ids=sorted(pair.stop_ids), min_tokens=2)
    with pytest.raises(ModelError) as raised:
        specbench.decode(pair, PROMPTS[:1], gamma=gamma, sampling=sampling, max_new_tokens=4)
    assert "Check whether sampler.allowed_token_ids and sampler.min_tokens leave a token" in str(raised.value)
    assert checked in str(raised.value)


@pytest.mark.parametrize("call", [specbench.decode, specbench.record])
@pytest.mark.usefixtures("unchecked")
def test_texts_that_can_never_be_long_enough_are_refused_as_the_command_refuses_them(pair: Pair, call):
    with pytest.raises(ConfigError, match=r"^sampler\.min_tokens=5: above max_new_tokens=4\. Lower it, or raise"):
        call(pair, PROMPTS[:1], sampling=SamplingParams(min_tokens=5), max_new_tokens=4)
    own = SamplingParams(min_tokens=5, max_tokens=6)  # which max_new_tokens says nothing of
    assert call(pair, PROMPTS[:1], sampling=own, max_new_tokens=4)


@pytest.mark.parametrize("gammas", [[], [4, -1], [1.5], [65]], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_replay_names_wrong_gammas(gammas):
    """A negative one beside others would be replayed as something else: only the largest was looked at."""
    with pytest.raises((ArgumentError, ConfigError), match="gammas"):
        specbench.replay("no file", "token", gammas)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompts": []}, "prompts: empty"),
        ({"prompts": [[1], []]}, "prompts[1]: no tokens"),
        ({"prompts": [[1, -1]]}, "prompts[0]: ids outside"),
        ({"prompts": [[1, 10**6]]}, "prompts[0]: ids outside"),
        ({"prompts": [1, 2]}, "prompts[0]: 1 is neither a text nor a list of token ids"),
        ({"prompts": [[1.5, 2]]}, "prompts[0]: [1.5, 2] is neither a text nor a list of token ids"),
        ({"prompts": [b"ab"]}, "prompts[0]: b'ab' is neither"),
        ({"prompts": b"ab"}, "prompts: a bytes; give a text"),
        ({"prompts": None}, "prompts: a NoneType; give a text"),
        ({"sampling": {"temperature": 0.0}}, "sampling: a dict; give specbench.SamplingParams"),
        ({"max_new_tokens": 10**6}, "prompts[0]: 9 tokens and max_new_tokens=1000000 are more than the pair's context"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"gamma": 65}, "gamma=65: outside 0..64"),
        ({"gamma": -1}, "gamma=-1"),
        ({"gamma": [65]}, "gamma=65: outside 0..64"),
        ({"gamma": [4, 4]}, "gamma: 2 numbers for 1 prompts; give one number, or one for each"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"verifier": "nonsense"}, "verifier='nonsense'"),
        ({"drafter": "nonsense"}, "drafter='nonsense': not one of conf/drafter. Use layer_skip, model"),
        ({"drafter": ModelDrafter}, "drafter: a type; a name of conf/drafter or a Drafter needed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("unchecked")
def test_decode_names_a_wrong_argument(pair: Pair, given, says):
    with pytest.raises((ArgumentError, ConfigError)) as raised:
        specbench.decode(pair, **{"prompts": PROMPTS[:1], **given})
    assert says in str(raised.value)
