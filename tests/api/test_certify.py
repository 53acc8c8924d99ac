"""The Python API: certificates of names, objects and functions, and the calls that repeat them."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import specbench
from specbench.core.errors import ArgumentError, ConfigError
from specbench.exactness.certificate import certificate_of
from specbench.exactness.evidence import Evidence
from specbench.exactness.suite import Examination
from specbench.protocols.exactness import ExactnessProtocol
from specbench.rules.rule import Rule, rule_of
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.contexts import run_context

SMALL = {"draws": 5000, "serial_draws": 500, "calls": 12, "use_calls": 100, "seconds": 0, "input_seconds": 0}
SMALL |= {"inputs_seed": 3}
BIASED = specbench.SamplingParams(logit_bias={3: 1.5})
OF_THE_RUN = ("command", "environment", "seconds", "verifier")


def bare(certificate: Any) -> dict[str, Any]:
    content = {name: value for name, value in vars(certificate).items() if name not in OF_THE_RUN}
    return content | {"long_use": {**content["long_use"], "seconds": 0}}


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_a_name_an_object_and_a_function_get_the_certificate_of_the_command_line():
    run = run_context(verifier=MaskedVerifier(), gamma=4, batch_size=1)
    examination = ExactnessProtocol(suite="quick", **SMALL).examination(run)
    examination.run()
    expected = certificate_of(examination, "masked", "quick", "")

    def mine(draft: Any, target: Any, streams: Any) -> Any:
        return MaskedVerifier().verify(draft, target, streams)

    numpys = {"seed": np.int64(0), "gamma": np.int8(4)}  # which JSON would not take
    calls = (("masked", numpys), (MaskedVerifier(), {}), (mine, {"rule": TOKEN}), (mine, {"rule": "token"}))
    for verifier, more in calls:
        certificate = specbench.certify(verifier, "quick", device=torch.device("cpu"), **SMALL, **more)
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
    few = {**SMALL, "draws": 1000, "serial_draws": 0, "calls": 3, "use_calls": 0}
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


def test_a_name_that_stands_for_many_asks_which():
    with pytest.raises(ArgumentError, match="verifier='flawed': one of many; say which, as verifier='flawed/BUG'"):
        specbench.certify("flawed")
    with pytest.raises(ConfigError, match=r"verifier\.bug=lenience: no such bug"):
        specbench.certify("flawed/lenience")
