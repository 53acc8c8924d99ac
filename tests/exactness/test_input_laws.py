"""Whether a rule is the target's distribution on the input distribution D, and what has no closed form there."""

import pytest
import torch

from specbench.exactness.enumeration.laws import rule_error
from specbench.exactness.inputs.law import law_error, same_in_batch
from specbench.rules.block import formulas as block
from specbench.rules.block.formulas import RULE as BLOCK
from specbench.rules.law import emitted
from specbench.rules.rule import LAST_SUCCESS
from specbench.rules.token import formulas as token
from specbench.rules.token.formulas import RULE as TOKEN
from tests.exactness.test_inputs import BY_NAME, some_calls
from tests.helpers.cases import FIXTURES
from tests.helpers.made_up_verifiers import DROPS, LENIENT, made_up_rule

pytestmark = pytest.mark.usefixtures("unchecked")


UNSCALED = made_up_rule(
    "unscaled", block.thresholds, decides=LAST_SUCCESS,
    prefix_weights=lambda along: torch.ones_like(block.prefix_weights(along)),
)  # fmt: skip
STOPS_EARLY = made_up_rule("early", block.thresholds, prefix_weights=block.prefix_weights)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK], ids=lambda rule: rule.name)
def test_a_proved_rule_is_the_targets_distribution_on_d(rule):
    for call in some_calls(60):
        error = law_error(rule, call, 0)
        assert error.step < 1e-12, call.name


# With chances below 0 it would be right: q t + |p - q| is p for t = min(2 p / q - 1, 1).
NEGATIVE = made_up_rule(
    "negative", lambda along: (2 * along.ratio - 1).clamp(max=1), residual=lambda p, q: (p - q).abs()
)


# Lenient from the tenth drafted token on: what comes before, and every draft of up to nine tokens, is right.
LATE = made_up_rule("late", lambda along: (along.ratio * (1 + (torch.arange(along.ratio.shape[1]) >= 9))).clamp(max=1))


@pytest.mark.parametrize("rule", [DROPS, UNSCALED, LENIENT, NEGATIVE, LATE], ids=lambda rule: rule.name)
def test_a_wrong_rule_is_not(rule):
    calls = some_calls(30, strata=(BY_NAME["long drafts"],)) if rule is LATE else some_calls(40)
    errors = [law_error(rule, call, 0) for call in calls]
    assert sum(error is not None and error.step > 1e-3 for error in errors) > 5


def test_the_first_token_of_a_wrong_rule_is_as_far_off_as_its_law_over_all_drafts_says():
    """Dropped residuals of one small vocabulary, by summing over all drafts of one token."""
    coarse = made_up_rule("coarse", residual=lambda p, q: torch.where(p - q < 0.1, 0.0, p - q))
    checked = 0
    for call in some_calls(60, strata=(BY_NAME["tiny"],)):
        if call.counts[0] == 0 or call.q is None:
            continue
        p, q = call.p[:1], call.q[:1]
        first_tv = 0.5 * float((emitted(coarse, p, q) - p).abs().sum())
        checked += 1
        error = law_error(coarse, call.alone(0, 1), 0)
        assert error.first == pytest.approx(first_tv, abs=1e-12)
    assert checked > 20


def test_what_is_below_0_balances_nothing_on_small_pairs():
    assert rule_error(NEGATIVE, FIXTURES["chain"]) > 1e-3


def test_a_residual_of_0_that_a_rule_normalises_is_not_wrong():
    def residual(p, q):
        """0 / 0 where nothing is left."""
        rest = (p - q).clamp(min=0)
        return rest / rest.sum(dim=-1, keepdim=True)

    normalised = made_up_rule("normalised", residual=residual)
    for call in some_calls(60, strata=(BY_NAME["tiny"],)):
        error = law_error(normalised, call, 0)
        assert error.step < 1e-12


def test_a_rule_without_a_closed_form_along_a_path_says_so():
    long = [call for call in some_calls(60) if call.counts[0] > 2]
    assert all(law_error(STOPS_EARLY, call, 0) is None for call in long)


def test_a_rule_that_looks_ahead_has_no_closed_form():
    """Where p = q any threshold leaves the token itself right: a look at the next one spoils that one alone."""

    def thresholds(along):
        first = (along.ratio[:, :1] == 1) & (along.counts[:, None] > 1)
        ahead = torch.where(first, (along.drafted_q[:, 1:2] > 0.05).double(), along.ratio[:, :1])
        return torch.cat([ahead, along.ratio[:, 1:]], dim=1).clamp(max=1) if along.ratio.shape[1] > 1 else along.ratio

    rule, seen = made_up_rule("ahead", thresholds), 0
    for call in some_calls(120, strata=(BY_NAME["tiny"], BY_NAME["small"])):
        if call.options["draft rows"][0] == "equal" and call.counts[0] > 1 and call.q is not None:
            seen += law_error(rule, call, 0) is None
    assert seen > 0


def test_a_wrong_second_candidate_is_no_wrong_first_token():
    """The residual is right until a first candidate was refused, whose residual has zeros."""

    def residual(p, q):
        return torch.where((p == 0).any(), p, (p - q).clamp(min=0))

    rule, later = made_up_rule("second", residual=residual), 0
    for call in some_calls(60, strata=(BY_NAME["tiny"],)):
        if call.counts[0] == 0 or call.q is None or (call.p[0] == 0).any():
            continue
        error = law_error(rule, call.alone(0, 1), 0)
        assert error.first < 1e-12
        later += error.step > 1e-3
    assert later > 0


READS_OTHERS = made_up_rule("others", residual=lambda p, q: (p - q[:1]).clamp(min=0))
READS_WIDTH = made_up_rule(
    "width", lambda along: token.thresholds(along) * (along.counts[:, None] == along.ratio.shape[1])
)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK, READS_OTHERS, READS_WIDTH], ids=lambda rule: rule.name)
def test_formulas_that_read_the_batch_are_noticed(rule):
    """Alone they are the token rule's, so that the law of a request alone is the target's."""
    same = []
    for call in some_calls(60):
        request = len(call.counts) - 1
        error = law_error(rule, call, request)
        assert error.step < 1e-9
        same.append(same_in_batch(rule, call, request))
    assert all(same) == (rule in (TOKEN, BLOCK))
