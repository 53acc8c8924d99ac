"""The Python API: names that import nothing heavy, batches of plain tensors, certificates of functions."""

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import specbench
from specbench.api.verifiers import FunctionVerifier
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.naming import renamed
from specbench.exactness.certificate import certificate_of
from specbench.exactness.evidence import Evidence
from specbench.exactness.suite import Examination
from specbench.protocols.exactness import ExactnessProtocol
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import Rule, rule_of
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from specbench.runs.choices import chosen, names
from specbench.sampling import RowParams, logit_rows
from tests.exactness.test_exactness_protocols import context as run_context
from tests.helpers.command_lines import ROOT

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
    modules = {
        alias.name: node.module for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes = {name: f"specbench.{home}" for name, home in specbench._HOMES.items()}
    assert modules == homes | {"replay": "specbench.replay.call"}
    for name in specbench.__all__:
        assert name in dir(specbench)
        assert getattr(specbench, name).__doc__ or name == "__version__"
    with pytest.raises(AttributeError, match="no attribute 'verifyy'"):
        specbench.verifyy  # noqa: B018


def test_notebooks_show_the_arguments_of_replay_which_is_a_room_as_well():
    from specbench.replay import call

    assert inspect.signature(specbench.replay) == inspect.signature(call.replay)
    assert "help(specbench.replay.call.replay)" in (specbench.replay.__doc__ or "")


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
BIASED = specbench.SamplingParams(logit_bias={3: 1.5})
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
    target_logits = 2 * torch.randn(n + len(COUNTS), vocabulary, generator=generator)
    draft_logits = 2 * torch.randn(n, vocabulary, generator=generator)
    params = [SAMPLING[b] for b, count in enumerate(COUNTS) for _ in range(count)]
    q = logit_rows(draft_logits, RowParams.of(params)).probs()
    return {
        "target_logits": target_logits,
        "draft_logits": draft_logits,
        "draft_token_ids": q.multinomial(1, generator=generator)[:, 0],
        "num_draft_tokens": COUNTS,
        "sampling": SAMPLING,
        "seeds": SEEDS,
        "positions": POSITIONS,
    }


def apart(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same batch with an entry a request."""
    return arguments | {
        "target_logits": list(arguments["target_logits"].split([count + 1 for count in COUNTS])),
        "draft_logits": list(arguments["draft_logits"].split(COUNTS)),
        "draft_token_ids": [part.tolist() for part in arguments["draft_token_ids"].split(COUNTS)],
        "num_draft_tokens": None,
    }


@pytest.mark.parametrize("verifier", PLAIN)
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
def test_a_batch_gives_what_its_requests_give_alone(verifier, one_hot):
    """Catches rows, parameters, seeds or positions that go to another request of a ragged batch."""
    arguments = batch() | ({"draft_logits": None} if one_hot else {})
    together = specbench.verify(**arguments, verifier=verifier)
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
    tokens = specbench.verify(rows[:, :1], [[] for _ in range(64)], seeds=3, positions=0).token_ids[:, 0]
    assert tokens.unique().numel() > 50  # of 64 draws from 1000; one if they shared a seed
    again = specbench.verify(rows[:, :1], [[] for _ in range(64)], seeds=3, positions=0).token_ids[:, 0]
    assert torch.equal(tokens, again)


def test_draft_sampling_is_of_the_draft_alone():
    """At draft temperature 0 q is one-hot at the argmax, so that a drafted token of little p is accepted that often."""
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).expand(4000, 2, 2)
    draft = torch.tensor([[0.0, 0.1]]).expand(4000, 1, 2)
    ids = torch.ones(4000, 1, dtype=torch.int64)
    arguments = {"seeds": 1, "positions": 0}
    cold = specbench.verify(target, ids, draft, draft_sampling=specbench.SamplingParams(0.0), **arguments)
    one_hot = specbench.verify(target, ids, **arguments)
    warm = specbench.verify(target, ids, draft, **arguments)
    assert torch.equal(cold.token_ids, one_hot.token_ids)
    assert warm.num_accepted.sum() > 1.5 * cold.num_accepted.sum()


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_may_be_lists_arrays_or_tensors_of_any_width():
    expected = specbench.verify(**batch())
    names = ("draft_token_ids", "num_draft_tokens", "seeds", "positions")
    lists = {name: torch.as_tensor(batch()[name]).tolist() for name in names}
    for kind in (list, np.array, torch.tensor, lambda values: list(np.array(values))):
        result = specbench.verify(**batch() | {name: kind(value) for name, value in lists.items()})
        assert torch.equal(result.token_ids, expected.token_ids)
    one = [specbench.verify(**changed(seeds=kind(7), positions=kind(9))) for kind in (int, np.int64)]
    assert torch.equal(one[0].token_ids, one[1].token_ids)
    narrow = batch()["draft_token_ids"].to(torch.int32)
    assert torch.equal(specbench.verify(**changed(draft_token_ids=narrow)).token_ids, expected.token_ids)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_logits_may_be_arrays(dtype):
    """All of them as one array, or one for each request; also an array that is read-only."""
    arguments = batch()
    arguments |= {name: arguments[name].to(dtype) for name in ("target_logits", "draft_logits")}
    expected = specbench.verify(**arguments)
    arrays = arguments | {name: arguments[name].numpy() for name in ("target_logits", "draft_logits")}
    arrays["target_logits"].flags.writeable = False
    lists = apart(arguments)
    lists |= {name: [part.numpy() for part in lists[name]] for name in ("target_logits", "draft_logits")}
    for form in (arrays, lists):
        result = specbench.verify(**form)
        assert torch.equal(result.token_ids, expected.token_ids)


def test_arrays_may_lie_in_memory_in_any_way():
    """In the other byte order, backwards, or in columns."""
    arguments = batch()
    expected = specbench.verify(**arguments)
    for name in ("target_logits", "draft_logits", "draft_token_ids", "seeds"):
        array = torch.as_tensor(arguments[name]).numpy()
        for other in (array.astype(array.dtype.newbyteorder()), array[::-1].copy()[::-1], np.asfortranarray(array)):
            result = specbench.verify(**arguments | {name: other})
            assert torch.equal(result.token_ids, expected.token_ids)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["target_logits", "draft_logits"])
def test_rows_that_look_like_probabilities_are_refused_and_their_logarithms_are_not(name, dtype):
    arguments = batch(vocabulary=300)
    expected = specbench.verify(**arguments | {"sampling": None})
    arguments |= {"sampling": None, name: arguments[name].softmax(dim=1)}
    logarithms = specbench.verify(**arguments | {name: arguments[name].log()})
    assert torch.equal(logarithms.token_ids, expected.token_ids)
    with pytest.raises(ArgumentError, match=rf"^{name}: the rows look like probabilities, .* or the logarithm"):
        specbench.verify(**arguments | {name: arguments[name].to(dtype)})


def test_few_logits_that_are_not_negative_are_no_probabilities():
    target = torch.tensor([[1.0, 0.0], [0.0, 9.0]])
    assert specbench.verify(target, [0], num_draft_tokens=[1], seeds=1, positions=0).num_accepted.shape == (1,)


def test_an_object_verifies_as_its_name_does():
    one, two = (specbench.verify(**batch(), verifier=verifier) for verifier in ("block", BlockVerifier()))
    assert torch.equal(one.token_ids, two.token_ids)


def test_arguments_are_left_as_they_are():
    arguments = batch()
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    specbench.verify(**arguments)
    assert all(torch.equal(arguments[name], value) for name, value in before.items())


def changed(**changes: Any) -> dict[str, Any]:
    return batch() | changes


NAN = torch.full((10, 7), torch.nan)
WRONG = [  # what is wrong, the arguments, and how the message begins
    ("a row too few", changed(target_logits=torch.zeros(9, 7)), "target_logits: 9 rows; 10 needed"),
    ("one dimension", changed(target_logits=torch.zeros(10)), "target_logits: [10]; a tensor or array [rows, V]"),
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
    ("seed beyond 64 bits", changed(seeds=[2**64, 1, 1, 1]), "seeds: no whole numbers of 64 bits in [184467"),
    ("no seeds", changed(seeds=None), "seeds: no whole numbers of 64 bits in None. Give a list, an array or a tensor"),
    ("positions beyond", changed(positions=2**32), "positions[0] = 4294967296 is outside"),
    ("positions of floats", changed(positions=[0.5, 1, 1, 1]), "positions: torch.float32"),
    ("samplings too few", changed(sampling=SAMPLING[:3]), "sampling: 3 for 4 requests"),
    (
        "sampling of another kind",
        changed(sampling=[{"top_k": 3}] * 4),
        "sampling[0]: a dict; give specbench.SamplingParams",
    ),
    (
        "processors",
        changed(sampling=specbench.SamplingParams(processors=(print,))),
        "sampling.processors: needs the text",
    ),
    ("draft sampling alone", changed(draft_logits=None, draft_sampling=SAMPLING[0]), "draft_sampling: given without"),
    ("unknown verifier", changed(verifier="nonsense"), "verifier='nonsense': not one of conf/verifier. Use block"),
    ("above the folder", changed(verifier="../protocol/decode"), "verifier='../protocol/decode': not one of"),
    ("no logits", changed(target_logits=None), "target_logits: a NoneType; give a tensor [rows, V]"),
    ("logits of 8 bits", changed(target_logits=torch.zeros(10, 7, dtype=torch.float8_e5m2)), "target_logits: torch.fl"),
    ("sparse logits", changed(target_logits=torch.zeros(10, 7).to_sparse()), "target_logits: torch.sparse_coo on cpu"),
    ("logits without values", changed(target_logits=torch.zeros(10, 7, device="meta")), "target_logits: torch.strided"),
    ("one logit", changed(draft_logits=torch.tensor(1.0)), "draft_logits: a Tensor; give a tensor [rows, V]"),
    ("one id", changed(draft_token_ids=3), "draft_token_ids: a int; give token ids, or a sequence"),
    ("ids in no order", changed(draft_token_ids={0, 1, 2, 3, 4, 5}), "draft_token_ids: a set; give token ids"),
    (
        "masked logits",
        changed(target_logits=np.ma.masked_array(np.zeros((10, 7)), mask=True)),
        "target_logits: a masked array; give its values as an array, -inf at tokens",
    ),
    ("no ids", changed(draft_token_ids=None), "draft_token_ids: a NoneType"),
    ("texts for ids", changed(draft_token_ids=np.array([["a"]])), "draft_token_ids[0]: no whole numbers"),
    (
        "a number for sampling",
        changed(sampling=0.8),
        "sampling: a float; give specbench.SamplingParams(...), or None",
    ),
    (
        "a mapping for sampling",
        changed(draft_sampling={"top_k": 3}),
        "draft_sampling: a dict; give specbench.SamplingParams",
    ),
    (
        "a token that its draft rules out",
        changed(draft_logits=torch.zeros(6, 7).index_fill(1, batch()["draft_token_ids"][:1], -torch.inf)),
        f"draft_token_ids[0] = {int(batch()['draft_token_ids'][0])} has probability 0 in its draft's distribution",
    ),
    (
        "a verifier that returns nothing",
        changed(verifier=FunctionVerifier(lambda draft, target, streams: None, "own", True)),  # ty: ignore
        "verifier: it returned a NoneType",
    ),
    ("no verifier", changed(verifier=3.0), "verifier: a float without a method verify"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("arguments", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_argument_is_named(arguments, says):
    with pytest.raises(ArgumentError) as raised:
        specbench.verify(**arguments)
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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"target": "/none"}, "target=/none: "),
        ({"target": None}, "target=None: not the name of a model. Use a folder, a hub id"),
        ({"target": 3}, "target=3: not the name of a model"),
        ({"target": Path("/none")}, "target=/none: "),
        ({"target": "embedded:target", "draft": 3}, "draft=3: not the name of a model"),
        ({"target": "embedded:target", "thinking_tokens": [1, 2]}, "thinking_tokens=[1, 2]: not two different texts"),
        ({"target": "embedded:target", "thinking_tokens": 3}, "thinking_tokens=3: not two different texts"),
        ({"target": "embedded:target", "download": "no"}, "download=no: neither true nor false"),
        ({"target": "embedded:target", "dtype": "int8"}, "dtype=int8: "),
        ({"target": "embedded:target", "draft_dtype": "int8"}, "draft_dtype=int8: "),
        ({"target": "embedded:target", "thinking": True}, "thinking=True: "),
        ({"target": "embedded:target", "chat": True}, "chat=True: the target's tokenizer has no chat template. Use"),
        ({"target": "embedded:target", "vocabularies": "all"}, "vocabularies=all: "),
    ],
    ids=str,
)
def test_load_pair_names_its_arguments_and_no_keys_of_the_command_line(arguments, says):
    with pytest.raises(ConfigError) as raised:
        specbench.load_pair(**arguments)
    assert str(raised.value).startswith(says)
    assert "pair." not in str(raised.value)
    assert raised.value.key == says.partition("=")[0]


def test_only_keys_are_renamed():
    message = "pair.target=/a/pair.target/x: no. Use pair.chat=false, or pair.draft=null; see conf/pair.yaml, repair.it"
    assert renamed(message, {"pair.": ""}) == (
        "target=/a/pair.target/x: no. Use chat=False, or draft=None; see conf/pair.yaml, repair.it"
    )


# certify

SMALL = {"draws": 5000, "serial_draws": 500, "calls": 12, "use_calls": 100, "seconds": 0, "input_seconds": 0}
SMALL |= {"inputs_seed": 3, "row_vocabulary": 50}
OF_THE_RUN = ("command", "environment", "seconds", "verifier")


def bare(certificate: Any) -> dict[str, Any]:
    content = {name: value for name, value in vars(certificate).items() if name not in OF_THE_RUN}
    return content | {name: {**content[name], "seconds": 0} for name in ("long_use", "row")}


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_a_name_an_object_and_a_function_get_the_certificate_of_the_command_line():
    run = run_context(MaskedVerifier(), gamma=4, batch_size=1)
    examination = ExactnessProtocol(suite="quick", **SMALL).examination(run)
    examination.run()
    expected = certificate_of(examination, "masked", "quick", "")

    def mine(draft: Any, target: Any, streams: Any) -> Any:
        return MaskedVerifier().verify(draft, target, streams)

    numpys = {"seed": np.int64(0), "gamma": np.int8(4)}  # which JSON would not take
    calls = (("masked", numpys), (MaskedVerifier(), {}), (mine, {"rule": TOKEN}), (mine, {"rule": "token"}))
    for verifier, more in calls:
        certificate = specbench.certify(verifier, "quick", device="cpu", **SMALL, **more)
        assert certificate.json()
        # A function does not say that it takes padded drafts, so other calls are drawn for it.
        content = bare(certificate)
        same = content.keys() if verifier is not mine else ("bounds", "habits", "verdict", "rule", "tv_upper_bound")
        assert all(content[name] == bare(expected)[name] for name in same)
    assert certificate.verifier == "mine"
    assert certificate.command.startswith(
        "specbench.certify(mine, suite='quick', seed=0, inputs_seed=3, rule='token', device='cpu', draws=5000"
    )
    assert certificate.headline in certificate.page


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_the_seeds_that_a_certificate_records_give_its_evidence_again():
    few = {**SMALL, "draws": 1000, "serial_draws": 0, "calls": 3, "use_calls": 0, "row_vocabulary": 0}
    evidence = ("tests", "bounds", "inputs", "census", "habits")

    def certificate(seed: int, inputs_seed: int) -> Any:
        return specbench.certify("masked", "quick", device="cpu", **few | {"seed": seed, "inputs_seed": inputs_seed})

    first = certificate(7, 3)
    again = certificate(first.seed, first.inputs_seed)
    assert all(getattr(first, name) == getattr(again, name) for name in evidence)
    assert first.tests != certificate(8, first.inputs_seed).tests
    assert first.census != certificate(first.seed, 4).census


def verify_masked(draft: Any, target: Any, streams: Any) -> Any:
    return MaskedVerifier().verify(draft, target, streams)


def accept_nothing(p: Any, q: Any, token_ids: Any, uniforms: Any) -> tuple[int, int]:
    return 0, 0


REPEATED = {
    "a name": ("mine", {"rule": "token"}),
    "a Rule of this tree": (
        "mine",
        {"rule": TOKEN, "lossless": False, "suite": "deep", "gamma": np.int8(2), "draws": np.int64(7)},
    ),
    "a Rule of one's own": (
        "mine",
        {"rule": Rule(name="own-rule", title="own"), "dtype": "bfloat16", "batch_size": 3, "seed": 5},
    ),
    "sampling": (
        "mine",
        {"rule": "x", "sampling": specbench.SamplingParams(temperature=0.7, top_k=3), "device": "cpu"},
    ),
    "settings": ("masked", {"seconds": 60, "stop_when_caught": False}),
    "an object": ("object", {"suite": "default"}),
    "a module's": (verify_masked, {"rule": "token"}),
    "accept": (specbench.from_accept(accept_nothing, rule="token", lossless=False, arrays="torch"), {}),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("verifier", "arguments"), REPEATED.values(), ids=REPEATED.keys())
def test_the_call_that_repeats_a_certificate_is_run_as_it_stands(monkeypatch, verifier, arguments):
    """Pasted, with the object as ``verifier`` and a Rule under its name, it asks the same question.

    A function of a module, or an accept function, needs no name of the caller's.
    """
    made: list[Examination] = []

    def remembered(examination: Examination) -> Evidence:
        made.append(examination)
        return Evidence()

    monkeypatch.setattr(Examination, "run", remembered)

    def mine(draft: Any, target: Any, streams: Any) -> Any:
        return MaskedVerifier().verify(draft, target, streams)

    subject = {"mine": mine, "object": MaskedVerifier()}.get(verifier, verifier)
    first = specbench.certify(subject, **arguments)
    names: dict[str, Any] = {"specbench": specbench}
    if isinstance(verifier, str):
        names |= {"mine": mine, "verifier": subject, "own_rule": arguments.get("rule")}
    *imports, call = first.command.splitlines()
    exec("\n".join(imports), names)
    assert eval(call, names).command == first.command
    assert f"    {call}\n" in first.page
    assert repr(first) == f"Certificate({first.verifier}: {first.headline})"
    of_verifier = [(rule_of(examination.verifier).name, examination.verifier.lossless) for examination in made]
    assert len(made) == 2
    assert of_verifier[0] == of_verifier[1]
    assert len({str(dataclasses.replace(examination, verifier=None, interrupted=print)) for examination in made}) == 1


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_what_a_function_does_wrong_is_said_and_not_raised():
    def falls(draft: Any, target: Any, streams: Any) -> Any:
        raise IndexError("no such row")

    certificate = specbench.certify(falls, rule="mine", lossless=False, **SMALL)
    assert certificate.verdict == "broken"
    assert "no such row" in certificate.headline
    assert (certificate.rule, certificate.declared_lossless) == ("mine", False)


@pytest.mark.cases(1)
@pytest.mark.usefixtures("few_enumerated", "little_effort", "unchecked")
@pytest.mark.parametrize(("takes_padded", "left_out"), [(None, True), (True, False)])
def test_a_function_says_whether_it_takes_padded_drafts(takes_padded, left_out):
    certificate = specbench.certify(
        MaskedVerifier().verify, rule="token", takes_padded=takes_padded, **SMALL | {"calls": 20, "inputs_seed": 1}
    )
    assert any(line.startswith("padded drafts") for line in certificate.not_covered) == left_out
    assert ("takes_padded=True" in certificate.command) != left_out


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"verifier": print}, ArgumentError, "rule: missing for the function print"),
        ({"verifier": accept_nothing, "rule": "token"}, ArgumentError, "Give specbench.from_accept(accept_nothing) if"),
        ({"verifier": "masked", "rule": "token"}, ArgumentError, "rule='token': given for masked, which says itself"),
        ({"verifier": MaskedVerifier(), "lossless": True}, ArgumentError, "lossless=True: given for MaskedVerifier"),
        ({"verifier": "masked", "suite": "thorough"}, ConfigError, "suite=thorough: no such suite"),
        ({"verifier": "masked", "takes_padded": True}, ArgumentError, "takes_padded=True: given for masked"),
        ({"verifier": "masked", "draws": "many"}, ConfigError, "draws=many: not a count. Use a whole number from 1 to"),
        ({"verifier": "masked", "drawss": 3}, ConfigError, "drawss=3: no setting of a suite"),
        ({"verifier": "masked", "batch_size": 0}, ConfigError, "batch_size=0: not a count"),
        ({"verifier": "masked", "sampling": {}}, ArgumentError, "sampling: a dict; give specbench.SamplingParams"),
        ({"verifier": "masked", "sampling": [SAMPLING[0]]}, ArgumentError, "sampling: a list; give specbench.Sampling"),
        ({"verifier": "masked", "sampling": BIASED}, ArgumentError, "sampling.logit_bias: needs the text before each"),
        ({"verifier": "masked", "gamma": 65}, ConfigError, "Use a whole number from 0 to 64."),
        ({"verifier": "masked", "seed": 2**63}, ConfigError, f"Use a whole number from 0 to {2**63 - 1}."),
        ({"verifier": "masked", "device": "tpu"}, ConfigError, "device=tpu"),
        ({"verifier": MaskedVerifier}, ArgumentError, "verifier: a class, MaskedVerifier; give an object of it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_certify_names_a_wrong_argument(arguments, error, says):
    with pytest.raises(error) as raised:
        specbench.certify(**arguments)
    assert says in str(raised.value)
