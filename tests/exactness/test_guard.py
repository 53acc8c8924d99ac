"""Whatever a verifier under test does wrong is named, with the fixture and the request; the evidence so far is kept."""

import dataclasses
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.types import LogitRows, Verification
from specbench.exactness import guard, suite
from specbench.exactness.results import ALL
from specbench.exactness.settings import Settings
from specbench.exactness.steps import draw
from specbench.exactness.streams import GivenStreams, request_streams
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import run_trials
from specbench.exactness.zoo.residual import TargetResidual
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules import RULES, RuleInfo
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import inverse_cdf
from tests.helpers.cases import CPU, FIXTURES, examined
from tests.helpers.made_up_verifiers import acting, refusing

SETTINGS = Settings(draws=3000, seconds=0, serial_draws=0, calls=0, use_calls=0, call_seconds=2)


def odd(token_ids, num_accepted) -> Verification:
    """A Verification as code without this suite's type checks can make it."""
    result = object.__new__(Verification)
    object.__setattr__(result, "token_ids", token_ids)
    object.__setattr__(result, "num_accepted", num_accepted)
    return result


class Returns(MaskedVerifier):
    """A sound verifier whose result goes through ``made``."""

    def __init__(self, made):
        self.made = made

    def verify(self, draft, target, streams):
        sound = super().verify(draft, target, streams)
        return self.made(sound.token_ids, sound.num_accepted)


def verify_on(verifier, name: str = "chain", requests: int = 6):
    fixture = FIXTURES[name]
    streams = request_streams(0, 100, requests, fixture.gamma + 1, CPU)
    return guard.verify(verifier, draw(MaskedVerifier(), fixture, streams))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda tokens, counts: (tokens, counts), "returned a tuple"),
        (lambda tokens, counts: None, "returned a NoneType"),
        (lambda tokens, counts: odd(tokens.flatten(), counts), r"token_ids \[18\], expected \[6, 3\]"),
        (lambda tokens, counts: odd(tokens[:, :2], counts), r"token_ids \[6, 2\], expected \[6, 3\]"),
        (lambda tokens, counts: odd(tokens, counts[:, None]), r"num_accepted \[6, 1\]"),
        (lambda tokens, counts: odd(tokens.float(), counts), r"torch.float32 token_ids"),
        (
            lambda tokens, counts: odd(tokens.int(), counts),
            r"torch.int32 token_ids, expected torch.int64. Return token_ids.long\(\)\. Return Verification",
        ),
        (lambda tokens, counts: odd(tokens.tolist(), counts), "a list as token_ids"),
        (lambda tokens, counts: odd(tokens.to("meta"), counts), "token_ids on meta"),
    ],
    ids=["tuple", "None", "flat", "narrow", "column", "float", "int32", "list", "device"],
)
def test_what_is_no_verification_is_named(made, message):
    with pytest.raises(guard.VerifierFault, match=message) as fault:
        verify_on(Returns(made))
    assert "Return Verification(" in str(fault.value)
    assert fault.value.fixture == "chain"


def raise_for_some(draft, target, streams):
    if (streams.seeds % 5 == 3).any():
        return {}["never returned"]  # as the message of a call that hangs has it


def test_an_exception_is_named_with_the_request_that_raises_it_alone():
    with pytest.raises(
        guard.VerifierFault, match=r"raised KeyError: 'never returned' \(.*test_guard.py, line \d+\)"
    ) as fault:
        verify_on(acting(raise_for_some), requests=40)
    seed = int(fault.value.request.split("seed ")[1].split(" ")[0])
    assert seed % 5 == 3
    assert "drafted [" in fault.value.request


def test_refusals_are_no_faults_and_the_program_is_not_ended():
    with pytest.raises(ArgumentError, match="not supported"):
        verify_on(refusing(says="draft.rows: not supported"))
    with pytest.raises(guard.VerifierFault, match="ended the program"):
        verify_on(acting(lambda *_: sys.exit(3)))


def hang(draft, target, streams):
    """For one-hot drafts, although the code means to catch everything."""
    while draft.rows is None:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def test_a_call_that_never_returns_is_stopped(monkeypatch):
    with guard.call_limit(0.3), pytest.raises(guard.VerifierFault, match=r"never returned: it was stopped after 0\.3"):
        verify_on(acting(hang), "one_hot")
    monkeypatch.setattr(suite, "small_fixtures", lambda: (FIXTURES["one_hot"],))
    fault = examined(acting(hang), dataclasses.replace(SETTINGS, call_seconds=1)).fault
    assert fault.startswith("On the fixture 'one_hot': verify never returned: it was stopped after 1 seconds")
    assert "Raise protocol.call_seconds if it is only slow." in fault


def test_a_call_that_cannot_be_interrupted_is_reported_from_another_thread(monkeypatch):
    """A call that hangs in compiled code is like this: the alarm does nothing."""
    monkeypatch.setattr(guard.signal, "setitimer", lambda *_: None)
    seen = threading.Event()
    faults = []

    def stuck(fault):
        faults.append(fault)
        seen.set()

    with guard.call_limit(0.2, stuck):
        verify_on(acting(lambda *_: seen.wait(20)))
    assert "never returned within 0.4 seconds" in str(faults[0])
    assert faults[0].fixture == "chain"


def test_a_process_that_was_stopped_has_not_been_slow():
    """As by Ctrl-Z: its alarms come when it goes on, and clocks do not stop."""
    faults = []
    helper = subprocess.Popen(
        ["sh", "-c", "read go; kill -STOP $0; sleep 0.7; kill -CONT $0", str(os.getpid())], stdin=-1
    )

    with guard.call_limit(0.3, faults.append):
        verify_on(acting(lambda *_: helper.communicate(b"\n")))
        time.sleep(0.4)  # in which the other thread looks
    assert faults == []
    assert helper.returncode == 0


class StoppedAtEnd(guard._Limit):
    """A signal comes when a call has ended, before its timer does."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "begun" and value is None and "left" in vars(self):
            del self.left
            raise guard.Stopped


def test_a_signal_at_the_end_of_a_call_leaves_no_timer(monkeypatch):
    limit = StoppedAtEnd(seconds=60)
    vars(limit)["left"] = 1
    monkeypatch.setattr(guard, "_LIMIT", limit)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(guard.Stopped):
        verify_on(MaskedVerifier())
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before


class Lifts(TokenSteps):
    def read(self, draft, target, streams):
        target.logits[:, 0] += 0.02
        return draft, LogitRows(target.logits, target.temperature, target.cutoff, None), streams


class OneBuffer(MaskedVerifier):
    def __init__(self):
        self.buffer = {}

    def verify(self, draft, target, streams):
        sound = super().verify(draft, target, streams)
        kept = self.buffer.setdefault(sound.token_ids.shape, sound)
        kept.token_ids.copy_(sound.token_ids)
        kept.num_accepted.copy_(sound.num_accepted)
        return kept


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked", "few_enumerated", "little_effort")
@pytest.mark.parametrize(
    ("verifier", "message"), [(Lifts(), r"altered target\.logits in place"), (OneBuffer(), "overwrites the tensors")]
)
def test_what_alters_its_arguments_or_its_results_is_named(verifier, message):
    evidence = examined(verifier, SETTINGS)
    assert message.replace("\\", "") in evidence.fault


def _wrapped(function):
    """A decorated method: inspect shows the signature of the function inside."""

    @functools.wraps(function)
    def verify(self, draft, target, streams):
        return function(self, draft, target, streams, 1)

    return verify


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"lossless": True}, 'has no attribute rule. Write rule = "token"'),
        ({"rule": 7, "lossless": True}, "has 7 as its attribute rule"),
        ({"rule": "token"}, "has no attribute lossless"),
        ({"rule": "token", "lossless": True}, "has no method verify"),
        (
            {"rule": "token", "lossless": True, "verify": lambda self, draft, target: None},
            "has verify(draft, target), which is called as verify(draft, target, streams). Write def verify(self,",
        ),
        ({"rule": "token", "lossless": True, "verify": print, "limits": {}}, "has {} as its attribute limits. Write"),
    ],
)
def test_what_is_no_verifier_is_named_before_anything_is_run(attributes, message):
    evidence = examined(type("Mine", (), attributes)(), SETTINGS)
    assert "Mine " + message in (evidence.fault or "")
    assert evidence.rows == []


@pytest.mark.parametrize(
    "verify",
    [print, lambda *arguments: None, lambda self, draft, target, streams, more=1: None,
     _wrapped(lambda self, draft, target, streams, more: None)],
    ids=["built in", "any", "more", "decorated"],
)  # fmt: skip
def test_a_verify_that_takes_three_arguments_is_one_whatever_else_it_takes(verify):
    guard.check_attributes(type("Mine", (), {"rule": "token", "lossless": True, "verify": verify})())


class Draws(MaskedVerifier):
    """A sound sampler, of which ``made`` alters the tokens and rows of vocabularies above some size."""

    def __init__(self, made, above: int = 0):
        self.made, self.above = made, above

    def draft_tokens(self, rows, u):
        drawn = inverse_cdf(rows.probs(), u)
        return self.made(drawn, rows) if rows.logits.shape[1] > self.above else (drawn, rows)


def raises(error: Exception):
    def made(tokens, rows):
        raise error

    return made


def test_what_is_known_of_a_rule_may_stand_for_it():
    attributes = {"lossless": True, "verify": MaskedVerifier().verify}
    for rule in (RULES["token"], RuleInfo(name="mine", title="my rule")):
        guard.check_attributes(type("Mine", (), {"rule": rule, **attributes})())


@pytest.mark.usefixtures("unchecked", "little_effort", "few_enumerated")
@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (raises(KeyError("no sampler")), "raised KeyError: 'no sampler'"),
        (lambda tokens, rows: tokens, "returned a Tensor. Return (tokens [n] int64, LogitRows"),
        (lambda tokens, rows: (tokens, rows.probs()), "returned no LogitRows ["),
        (lambda tokens, rows: (tokens.int(), rows), "returned torch.int32 tokens, expected torch.int64."),
        (lambda tokens, rows: (tokens[1:], rows), "returned tokens ["),
        (lambda tokens, rows: (tokens, rows.select(slice(1, None))), "returned no LogitRows ["),
        (lambda tokens, rows: (tokens + 99, rows), "returned a token outside of the vocabulary."),
    ],
    ids=["raises", "no rows", "probabilities", "int32", "short", "few rows", "outside"],
)
def test_a_sampler_of_its_own_that_does_wrong_is_broken(made, problem):
    evidence = examined(Draws(made), SETTINGS)
    assert f"draft_tokens {problem}" in (evidence.fault or "")


@pytest.mark.usefixtures("unchecked")
def test_a_sampler_of_its_own_may_refuse_calls_of_d_and_is_broken_if_it_raises_there():
    calls = CallsToDraw(0, CPU, 30)
    with torch.inference_mode():
        trials = run_trials(Draws(raises(ArgumentError("rows: too many tokens")), above=50), calls)
    whole = next(row for row in trials.rows if row.stratum == ALL)
    assert whole.calls + whole.refused == 30
    assert trials.refusals == {"rows: too many tokens": whole.refused}
    assert 5 < whole.refused < 30
    with pytest.raises(guard.VerifierFault, match=r"On call \d+ of D, seed 0: draft_tokens raised KeyError"):
        run_trials(Draws(raises(KeyError()), above=50), calls)


@pytest.mark.usefixtures("unchecked", "little_effort", "few_enumerated")
def test_a_refuted_verifier_that_refuses_given_uniforms_is_refuted_all_the_same():
    def refuse(draft, target, streams):
        if isinstance(streams, GivenStreams):
            raise ArgumentError("real streams alone")

    evidence = examined(acting(refuse, TargetResidual), dataclasses.replace(SETTINGS, draws=20_000))
    assert evidence.fault is None
    assert evidence.rejected


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked", "little_effort")
def test_the_evidence_so_far_is_kept():
    """Broken at the 5,000th request or so."""
    calls = itertools.count(1)

    def tire(draft, target, streams):
        if streams.width == 4 and next(calls) > 150:  # drawn with real seeds
            raise RuntimeError("out of workspace")

    settings = dataclasses.replace(SETTINGS, draws=200_000, stop_when_caught=False)
    evidence = examined(acting(tire), settings)
    assert "RuntimeError: out of workspace" in (evidence.fault or "")
    assert evidence.habits
    assert any(row.draws > 1000 for row in evidence.rows)
