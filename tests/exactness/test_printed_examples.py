"""The simplest failing example: it is of the fixture in the headline, and fails as it is printed."""

import re

import pytest
import torch

from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.injection import Point
from specbench.exactness.evidence import Evidence
from specbench.exactness.failures import fixture_failure
from specbench.exactness.failures.copies import run_copies
from specbench.exactness.failures.likely_cause import CauseSearch
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.results import JOINT, Failure, Row
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import request_streams
from specbench.exactness.zoo import accept, wrong_q
from specbench.exactness.zoo.steps import TokenSteps
from tests.helpers.cases import CPU, FIXTURES, FLAWED


def of_points(verifier) -> CauseSearch:
    """The search for code that is too slow for other requests."""
    return CauseSearch(verifier, [], 0, 0)


@pytest.mark.usefixtures("unchecked")
def test_the_example_is_of_the_fixture_that_the_headline_names():
    """Both fixtures have examples; the first one's are of shorter drafts."""
    evidence = Evidence(rows=[Row("chain", JOINT, 1000, 99.0, 26, 1e-9, 1000)])
    probes = {name: Probe(accept.Lenient(), FIXTURES[name], 0.02) for name in ("processed", "chain")}
    arguments = (Subject(accept.Lenient()), evidence, probes, [], None, of_points(accept.Lenient()))
    assert fixture_failure.simplest_failure(*arguments).fixture == "chain"
    evidence.rows = [Row("large", JOINT, 1000, 99.0, 26, 1e-9, 1000)]
    assert fixture_failure.simplest_failure(*arguments).fixture == "processed"


class OwnRule(accept.Lenient):
    rule = "a rule of one's own"


class OwnDrafts(wrong_q.ArgmaxDraft):
    rule = "a rule of one's own"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("verifier", "draws_itself"), [(OwnRule(), False), (OwnDrafts(), True)])
def test_a_bias_without_formulas_is_shown_by_the_sequence_that_is_farthest_off(verifier, draws_itself):
    fixture = FIXTURES["chain"]
    probe = Probe(verifier, fixture, 0.02)
    failure = fixture_failure.simplest_failure(
        Subject(verifier), Evidence(), {"chain": probe}, [], None, of_points(verifier)
    )
    assert failure is not None
    line, *more = failure.lines
    shown = re.search(r"step \[(.+)\] .+ probability (\S+) by the code's thresholds, (\S+) by the target", line)
    assert shown is not None
    tokens, code, target = torch.tensor([list(map(int, shown[1].split(", ")))]), float(shown[2]), float(shown[3])
    rows = fixture.rows_along(tokens[:, :-1])
    assert target == pytest.approx(float(fixture.p[rows, tokens].prod()))
    assert probe.located is not None
    assert 2 * probe.located / 3**3 <= abs(code - target) <= probe.located + 1e-8
    assert len(more) == draws_itself


class WrongBeyond(TokenSteps):
    """Right in small batches; in larger ones all requests from some place on emit their last token again."""

    def __init__(self, size: int, place: int = 0):
        self.size, self.place = size, place

    def emit(self, weights, draft, streams, num_accepted):
        tokens = super().emit(weights, draft, streams, num_accepted)
        chosen = (torch.arange(len(tokens)) >= self.place) & (len(tokens) > self.size)
        return torch.where(chosen, (tokens + 1) % weights.shape[1], tokens)


def example_of(verifier, name: str, effort: float, unused=None) -> tuple[Failure, Point]:
    """The simplest failing example on a fixture, and the request that it is of."""
    fixture, kept = FIXTURES[name], []
    probe = Probe(verifier, fixture, effort)
    streams = request_streams(1, 0, 2000, max(4, fixture.gamma + 1), CPU)
    probe.check(verified_steps(verifier, fixture, streams), [2000])
    shown = fixture_failure.smallest_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixture_failure, "smallest_batch", lambda *args: kept.append(args[1]) or shown(*args))
        arguments = (Subject(verifier, unused), Evidence(), {name: probe}, [], None, of_points(verifier))
        failure = fixture_failure.simplest_failure(*arguments)
    assert failure is not None
    return failure, kept[0]


def runs_as_printed(verifier, failure: Failure, point: Point) -> None:
    """The data fail when they are run, and the text says the same."""
    request = failure.request
    arguments = (request.seed, request.position, request.given, request.batch)
    for _ in range(request.calls):
        steps = run_copies(verifier, point, *arguments)
    assert tuple(steps.visible[request.place].tolist()) == request.emitted != request.wanted
    text = "\n".join(failure.lines)
    assert f"{fixture_failure._tokens(torch.tensor(request.wanted))}" in text
    if -1 not in request.emitted[:1]:
        assert f"emitted: {fixture_failure._tokens(torch.tensor(request.emitted))}" in text
    assert ("copies of this request" in text) == (request.batch > 1)


SHOWN = (
    *("lenient", "target_residual", "first_unverified", "argmax_bonus", "reseeded_draws", "block_early_stop"),
    *("counts_after_rejection", "reused_accept_uniform", "writes_other_rows"),
)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bug", SHOWN)
def test_printed_examples_fail_as_they_are_printed(bug):
    verifier = FLAWED[f"flawed/{bug}"]
    failure, point = example_of(verifier, "chain", 0.02 if bug == "lenient" else 0.0)
    if failure.request is None:
        assert "it emits" in failure.lines[-1]
    else:
        runs_as_printed(verifier, failure, point)


class Ninth(TokenSteps):
    """Wrong in every ninth call."""

    def __init__(self):
        self.calls = 0

    def emit(self, weights, draft, streams, num_accepted):
        self.calls += 1
        tokens = super().emit(weights, draft, streams, num_accepted)
        return tokens if self.calls % 9 else (tokens + 1) % weights.shape[1]


@pytest.mark.usefixtures("unchecked")
def test_an_example_of_a_memory_prints_the_history_that_it_needs():
    """A new object that is called as printed fails in the last call and in none before."""
    used = Ninth()
    used.calls = 8
    failure, point = example_of(used, "chain", 0.0, unused=Ninth())
    assert failure.request.calls == 9
    assert any("in call 9 of a new object" in line for line in failure.lines)
    runs_as_printed(Ninth(), failure, point)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("size", "place"), [(64, 0), (64, 90)])
def test_an_example_of_large_batches_says_which(size, place):
    """The request alone is right; the smallest batch of its copies that fails has one more, or reaches the place."""
    verifier = WrongBeyond(size, place)
    failure, point = example_of(verifier, "chain", 0.02 if place == 0 else 0.0)
    runs_as_printed(verifier, failure, point)
    assert failure.request.batch == max(size, place) + 1
    assert failure.request.place == place
    assert f"in copy {place + 1} of a batch of {max(size, place) + 1} copies" in "\n".join(failure.lines)
