"""Faults in everyday calls of D that fixed inputs did not meet, and the examples that certificates print of them."""

import copy
import dataclasses
import math
import re

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.exactness import inputs
from specbench.exactness.failures.call_failure import failure_of
from specbench.exactness.inputs import Takes
from specbench.exactness.purity.fresh_copies import Subject
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Limits
from tests.exactness.test_trials import trials

pytestmark = pytest.mark.usefixtures("unchecked")


# Faults of which no fixed input showed any: the trigger and the part of D where it is met soonest.
def _wrong_where(trigger):
    """The token rule, but the first token of the vocabulary that the target allows where ``trigger`` says so."""

    class Wrong(MaskedVerifier):
        calls = 0

        def verify(self, draft, target, streams):
            self.calls += 1
            result = super().verify(draft, target, streams)
            wrong = trigger(self, draft, target, streams) & torch.ones_like(streams.seeds, dtype=torch.bool)
            if not bool(wrong.any()):
                return result
            first = target.logits[_first_rows(draft)]
            allowed = torch.where(first >= target.cutoff[_first_rows(draft), None], first, -math.inf).isfinite()
            ids = torch.full_like(result.token_ids, -1)
            ids[:, 0] = allowed.int().argmax(dim=1)
            accepted = torch.where(wrong, 0, result.num_accepted)
            return dataclasses.replace(
                result, token_ids=torch.where(wrong[:, None], ids, result.token_ids), num_accepted=accepted
            )

    return Wrong()


def _first_rows(draft):
    counts = draft.num_draft_tokens
    if draft.padded:
        return torch.arange(len(counts)) * (draft.max_draft_tokens + 1)
    return (counts + 1).cumsum(0) - counts - 1


# That every option of D is drawn, and is true of its tensors, test_inputs.py asserts.
TRIGGERS = {
    "drafts of 8": (lambda v, d, t, s: d.num_draft_tokens == 8, "tiny"),
    "argmax above 65,535": (lambda v, d, t, s: t.logits[_first_rows(d)].argmax(dim=1) > 65_535, "256k"),
    "padded drafts": (lambda v, d, t, s: torch.tensor(d.padded), "tiny"),
    "vocabularies of multiples of 1,024": (lambda v, d, t, s: torch.tensor(t.logits.shape[1] % 1024 == 0), "32k"),
    "from the 40th call on": (lambda v, d, t, s: torch.tensor(v.calls > 40), "tiny"),
}  # fmt: skip


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", TRIGGERS)
def test_everyday_inputs_that_no_fixture_had(name):
    trigger, stratum = TRIGGERS[name]
    verifier = _wrong_where(trigger)
    unused = None if "call" in name else copy.deepcopy(verifier)  # a fresh object is right for 40 calls
    outcome, rows, _ = trials(verifier, 90, stratum)
    assert rows[stratum].structural > 0
    assert rows[stratum].code > rows[stratum].structural / rows[stratum].requests / 2
    assert_the_example_fails(verifier, outcome, unused)


def test_an_example_of_a_memory_is_printed_as_it_was_seen():
    """Wrong in every seventh call: a new object emits the rule's tokens when the request is made again."""
    verifier = _wrong_where(lambda v, d, t, s: torch.tensor(v.calls % 7 == 0))
    unused = copy.deepcopy(verifier)
    outcome, _, _ = trials(verifier, 90, "tiny")
    lines = failure_of(Subject(verifier, unused), outcome).lines
    assert any(line.endswith("other requests, earlier calls or noise of its own decide") for line in lines)
    (emitted,) = (line for line in lines if line.startswith("emitted: "))
    assert emitted == f"emitted: {[token_id for token_id in outcome.example[2] if token_id >= 0]}"


def assert_the_example_fails(verifier, outcome, unused=None):
    """The printed code makes a request whose tokens are those printed, and not the rule's."""
    failure = failure_of(Subject(verifier, unused), outcome)
    lines = "\n".join(failure.lines)
    emitted, expected = (
        re.search(rf"^{lead}: (\[.*\])$", lines, re.M).group(1) for lead in ("emitted", "by the token rule")
    )
    assert emitted != expected
    made = re.search(r"^made again by specbench.exactness.inputs.(draw_call\(.*\))", lines, re.M).group(1)
    number = int(re.search(r"draw_call\(\d+, (\d+)", made).group(1))
    stratum = outcome.example[0].stratum
    made = made.replace("Takes.of(verifier))", "Takes.of(verifier), stratum)", 1)  # of a test that draws from it alone
    call = eval(
        made, {"draw_call": inputs.draw_call, "torch": torch, "Takes": Takes, "verifier": verifier, "stratum": stratum}
    )
    assert call.number == number
    used = verifier if unused is None else copy.deepcopy(unused)
    result = used.verify(call.draft, call.target, call.streams)
    alone = re.search(r"^as request (\d+) of its call", lines, re.M)
    shown = result.token_ids[int(alone.group(1)) if alone else 0].tolist()
    assert str([token_id for token_id in shown if token_id >= 0]) == emitted
    return failure


def test_an_example_is_shrunk_to_what_the_verifier_takes():
    verifier = _wrong_where(lambda v, d, t, s: d.num_draft_tokens > 0)
    verifier.limits = Limits(empty=False)
    takes = verifier.verify

    def verify(draft, target, streams):
        if (draft.num_draft_tokens == 0).any():
            raise ArgumentError("draft: empty")
        return takes(draft, target, streams)

    verifier.verify = verify
    outcome, _, _ = trials(verifier, 20, "tiny")
    failure = assert_the_example_fails(verifier, outcome)
    assert sum(line.startswith("draft token") for line in failure.lines) == 1


def test_an_example_in_company_says_so():
    """Wrong for batches of more than one request: alone each is the rule's."""
    verifier = _wrong_where(lambda v, d, t, s: torch.tensor(len(s.seeds) > 1))
    outcome, _, _ = trials(verifier, 60, "tiny")
    failure = assert_the_example_fails(verifier, outcome)
    assert any("a new object gets it right alone" in line for line in failure.lines)
