"""A signal ends a certificate early: what was done is judged and kept, and what was not is named."""

import itertools
import os
import signal
from collections import Counter

import pytest
import torch

import specbench
from specbench.exactness import guard, suite
from specbench.exactness.certificate import NOT_LOSSLESS, NOT_REJECTED
from specbench.exactness.certificate.words import say
from specbench.exactness.draws.probes import Probe
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.power import mean_at_most
from specbench.exactness.steps import draw
from specbench.exactness.streams import request_streams
from specbench.exactness.suite import Examination
from specbench.exactness.verdict import verdict_of
from specbench.exactness.zoo.residual import TargetResidual
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.cases import CPU, FIXTURES
from tests.helpers.made_up_verifiers import acting

FEW = {"draws": 3000, "calls": 20, "serial_draws": 0, "use_calls": 50}
NOT_RUN = "; not run: calls in long use"

pytestmark = pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort", "python_handler")


@pytest.fixture
def python_handler():
    """What a shell starts in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_certificate_has_the_bounds_of_what_was_done():
    """In a call of D: the first one after five others of vocabularies larger than those of small fixtures."""
    large = itertools.count()
    verifier = acting(lambda _, target, __: interrupt() if target.logits.shape[1] > 300 and next(large) >= 5 else None)
    with pytest.raises(specbench.CertificateInterrupt, match="interrupted after") as caught:
        specbench.certify(verifier, inputs_seed=4, device="cpu", **FEW)
    certificate = caught.value.certificate
    calls = next(row["calls"] for row in certificate.inputs if row["stratum"] == "all of D")
    assert 0 < calls < 20
    assert certificate.interrupted == f"after {calls} of 20 calls of D{NOT_RUN}"
    assert certificate.inputs_upper_bound == mean_at_most(Counter(), calls, 0.01, 0)
    assert certificate.verdict == NOT_REJECTED
    assert certificate.headline.endswith(f"; interrupted {certificate.interrupted}")
    assert "It is not called lossless, because the suite was interrupted." in certificate.words
    assert all(bound["draws"] == 3000 for bound in certificate.bounds)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not guard.stopped()


def examined(verifier, report=lambda _: None, **more):
    """The evidence that an interrupted suite leaves."""
    left = []
    with torch.inference_mode(), pytest.raises(KeyboardInterrupt):
        Examination(verifier, Settings(**FEW, **more), 0, CPU, report=report, interrupted=left.append).run()
    return left[0]


def test_a_verifier_that_was_refuted_before_stays_so(monkeypatch):
    def search(*_):
        interrupt()
        streams = request_streams(0, 0, 1, FIXTURES["chain"].gamma + 1, CPU)
        guard.verify(MaskedVerifier(), draw(None, FIXTURES["chain"], streams))

    monkeypatch.setattr(suite, "simplest_failure", search)
    evidence = examined(TargetResidual())
    assert verdict_of(evidence).kind == NOT_LOSSLESS
    assert evidence.rejected
    assert evidence.interrupted == "during the search for the simplest failing example"


def test_a_signal_is_raised_where_no_count_is_torn(monkeypatch):
    """It comes when a batch is counted and not yet compared: both or none are in the evidence."""
    check = Probe.check

    def interrupted_check(probe, *arguments):
        if probe.draws > 1000:
            interrupt()
        check(probe, *arguments)

    monkeypatch.setattr(Probe, "check", interrupted_check)
    evidence = examined(TargetResidual(), stop_when_caught=False)
    assert verdict_of(evidence).kind == NOT_LOSSLESS  # although no look came before
    done = {bound.fixture: bound.draws for bound in evidence.bounds}
    assert done == {name: tally.draws for name, tally in evidence.tallies.items()}
    assert sorted(set(done.values())) == [2016, 3000]  # the first fixture has its last batch
    assert evidence.interrupted.startswith("after 2,016 of 3,000 requests on each small pair; not run: calls of D, ")
    assert not evidence.inputs


def test_a_signal_before_any_request_was_judged_is_no_verdict_of_refusal():
    evidence = examined(MaskedVerifier(), report=lambda text: interrupt() if "depend on" in text else None)
    words = say("sentences", verdict_of(evidence), evidence, Settings(**FEW))
    assert words[0].startswith("Interrupted during the search for habits; not run: the search for thresholds, ")
    assert words[1:] == ["No request was judged before, so that nothing is known of the verifier."]
