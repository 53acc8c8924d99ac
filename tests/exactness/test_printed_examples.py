"""The simplest failing example: it is of the fixture in the headline, and fails as it is printed."""

import dataclasses
import re
from collections.abc import Sequence

import pytest
import torch

from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.injection import Example, extreme_failures
from specbench.exactness.evidence import Evidence
from specbench.exactness.failures.call_failure import failure_of
from specbench.exactness.failures.fixture_failure import _tokens, simplest_failure
from specbench.exactness.failures.likely_cause import CauseSearch
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.results import EXTREMES, JOINT, Failure, Row
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import request_streams
from specbench.exactness.zoo import accept, residual, wrong_q
from specbench.exactness.zoo.steps import TokenSteps
from tests.exactness.test_trials import trials
from tests.helpers.cases import CPU, FIXTURES, FLAWED
from tests.helpers.made_up_verifiers import changed

pytestmark = pytest.mark.usefixtures("unchecked")


def simplest(
    verifier, probes: dict[str, Probe], rows: Sequence[Row] = (), extremes: Sequence[Example] = (), unused=None
) -> Failure:
    """The simplest failing example, with a search of causes as for code that is too slow for other requests."""
    causes = CauseSearch(verifier, [], 0, 0)
    return simplest_failure(Subject(verifier, unused), Evidence(rows=[*rows]), probes, [*extremes], None, causes)


def test_the_example_is_of_the_fixture_that_the_headline_names():
    """Both fixtures have examples; the first one's are of shorter drafts."""
    probes = {name: Probe(accept.Lenient(), FIXTURES[name], 0.02) for name in ("processed", "chain")}
    for headed, shown in (("chain", "chain"), ("large", "processed")):
        row = Row(headed, JOINT, 1000, 99.0, 26, 1e-9, 1000)
        assert simplest(accept.Lenient(), probes, [row]).fixture == shown


@pytest.mark.parametrize(("kind", "draws_itself"), [(accept.Lenient, False), (wrong_q.ArgmaxDraft, True)])
def test_a_bias_without_formulas_is_shown_by_the_sequence_that_is_farthest_off(kind, draws_itself):
    verifier, fixture = changed(kind, rule="a rule of one's own"), FIXTURES["chain"]
    probe = Probe(verifier, fixture, 0.02)
    line, *more = simplest(verifier, {"chain": probe}).lines
    shown = re.search(r"step \[(.+)\] .+ probability (\S+) by the code's thresholds, (\S+) by the target", line)
    tokens, code, target = torch.tensor([list(map(int, shown[1].split(", ")))]), float(shown[2]), float(shown[3])
    rows = fixture.rows_along(tokens[:, :-1])
    assert target == pytest.approx(float(fixture.p[rows, tokens].prod()))
    assert 2 * probe.located / 3**3 <= abs(code - target) <= probe.located + 1e-8
    assert len(more) == draws_itself


class WrongBeyond(TokenSteps):
    """Right in small batches; in larger ones all requests emit their last token again."""

    def emit(self, weights, draft, streams, num_accepted):
        tokens = super().emit(weights, draft, streams, num_accepted)
        return (tokens + 1) % weights.shape[1] if len(tokens) > 64 else tokens


def example_of(verifier, name: str, effort: float) -> tuple[Failure, Probe]:
    """The simplest failing example on a fixture, and what is known of the fixture."""
    fixture = FIXTURES[name]
    probe = Probe(verifier, fixture, effort)
    streams = request_streams(1, 0, 2000, max(4, fixture.gamma + 1), CPU)
    probe.check(verified_steps(verifier, fixture, streams), [2000])
    return simplest(verifier, {name: probe}), probe


SHOWN = (
    *("lenient", "target_residual", "first_unverified", "argmax_bonus", "reseeded_draws", "block_early_stop"),
    *("counts_after_rejection", "reused_accept_uniform", "writes_other_rows"),
)


def printed(failure: Failure, lead: str) -> str:
    """The tokens that a line of the example has."""
    (tokens,) = re.findall(rf"^{lead}: (\[.*?\]|what no rule can give)", "\n".join(failure.lines), re.MULTILINE)
    return tokens


@pytest.mark.parametrize("bug", SHOWN)
def test_printed_examples_fail_as_they_are_printed(bug):
    """What the thresholds of code show it emits alone; what it emitted in its batch it may not emit alone."""
    verifier = FLAWED[f"flawed/{bug}"]
    failure, probe = example_of(verifier, "chain", 0.02 if bug == "lenient" else 0.0)
    if bug == "lenient":
        assert printed(failure, "emitted") != printed(failure, "by the token rule")
        return
    request = next(line for line in failure.lines if line.startswith("emitted"))
    seed, position = map(int, re.search(r"by the request of seed (\d+) at position (\d+)$", request).groups())
    assert (seed, position) == (probe.example.seed, probe.example.position)
    one = request_streams(1, 0, 2000, 4, CPU)
    one = one.select(((one.seeds == seed) & (one.positions == position)).nonzero()[:, 0])
    steps = verified_steps(verifier, FIXTURES["chain"], one)
    alone, emitted = (printed(failure, lead) for lead in ("alone, by a new object", "emitted"))
    assert alone == _tokens(steps.visible[0])
    assert emitted != printed(failure, "foreseen")
    assert (alone == printed(failure, "foreseen")) == ("So other requests of its batch" in failure.lines[-1])


def test_an_example_that_fails_in_company_alone_says_so():
    failure, _ = example_of(WrongBeyond(), "chain", 0.0)
    assert printed(failure, "emitted") != printed(failure, "foreseen") == printed(failure, "alone, by a new object")
    assert "So other requests of its batch, earlier calls or noise of its own decide" in failure.lines[-1]


class PadsWithZeros(TokenSteps):
    def output(self, draft, num_accepted, emitted):
        result = super().output(draft, num_accepted, emitted)
        return dataclasses.replace(result, token_ids=result.token_ids.clamp(min=0))


def test_the_cause_of_a_wrong_padding_is_the_padding():
    """On requests of a fixture and on calls of D."""
    failure, _ = example_of(PadsWithZeros(), "chain", 0.02)
    outcome, _, _ = trials(PadsWithZeros(), 90, "tiny")
    of_call = failure_of(Subject(PadsWithZeros()), outcome)
    for cause in (failure.cause, of_call.cause):
        assert cause.startswith("The padding: 0 stands behind the emitted token, where -1 is required.")
    failure, _ = example_of(accept.FirstUnverified(), "chain", 0.0)
    assert "padding" not in failure.cause


class KeepsWeights(TokenSteps):
    """Adds a little of what the last call of its shape drew from: its first call is right."""

    def __init__(self):
        self.last = {}

    def weights(self, draft, target, num_accepted):
        weights = super().weights(draft, target, num_accepted)
        last = self.last.get(weights.shape, weights)
        self.last[weights.shape] = weights
        return weights + 1e-3 * last


@pytest.mark.parametrize("rule", ["token", "a rule of one's own"])
def test_an_example_at_the_ends_of_the_uniforms_fails_as_printed_or_says_that_earlier_calls_decide(rule):
    def shown(kind) -> tuple[Failure, Example]:
        verifier = kind()
        verifier.rule = rule
        extreme_failures(verifier, FIXTURES["mixed"])
        calls, extremes = extreme_failures(verifier, FIXTURES["mixed"])
        row = Row("mixed", EXTREMES, calls, float(len(extremes)), 0, 0.0, calls)
        return simplest(verifier, {}, [row], extremes, kind()), extremes[0]

    failure, example = shown(KeepsWeights)
    assert printed(failure, "emitted") == _tokens(example.emitted) != printed(failure, "alone, by a new object")
    assert "earlier calls or noise of its own decide" in failure.lines[-1]
    assert (rule == "token") == any(line.startswith("foreseen") for line in failure.lines)
    failure, example = shown(residual.OutsideVocabulary)
    assert not any("alone" in line for line in failure.lines)
    assert "num_accepted" in failure.lines[-1 if rule != "token" else -2]
