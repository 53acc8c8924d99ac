"""One pair of rows of a larger vocabulary, located edge by edge: bugs are measured as large as they are."""

import dataclasses

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream, Streams
from specbench.exactness.certificate.words import say
from specbench.exactness.enumeration import row_code
from specbench.exactness.enumeration.laws import pair_distance
from specbench.exactness.enumeration.row import locate_row
from specbench.exactness.enumeration.row_edges import fresh_rows
from specbench.exactness.evidence import Evidence
from specbench.exactness.results import LocatedRow
from specbench.exactness.verdict import names_another_rule
from specbench.exactness.zoo.residual import TargetResidual
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.rules import TOKEN
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import Rule, get_rule, positive_part, rule_of
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import inverse_cdf

CPU = torch.device("cpu")
VOCABULARY, SEED = 211, 4
LOST = 17  # a token that is never drawn


def located(verifier, vocabulary: int = VOCABULARY, seconds: float = 0, **options) -> LocatedRow:
    with torch.inference_mode():
        row = locate_row(verifier, rule_of(verifier), vocabulary, SEED, CPU, seconds, **options)
    assert row is not None
    return row


def rows(vocabulary: int = VOCABULARY):
    """p of both rows and q."""
    return torch.cat(fresh_rows(vocabulary, SEED, CPU)).double().softmax(dim=1).unbind()


def true_distance(accept, residual, bonus, vocabulary: int = VOCABULARY) -> float:
    """Of a step with these accept probabilities, draws after a refusal and bonus draws, over all pairs of tokens."""
    first, second, q = rows(vocabulary)
    refusal = (q * (1 - accept)).sum()
    joint = (q * accept)[:, None] * bonus + refusal * (residual / residual.sum())[:, None] * second
    return float((joint - first[:, None] * second).abs().sum() / 2)


@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockVerifier()])
@pytest.mark.parametrize("normalized", [False, True])
def test_sound_verifiers_have_the_edges_of_their_rule(verifier, normalized):
    row = located(verifier, normalized=normalized)
    assert row.displaced == 0
    assert row.largest == 0
    assert not row.cut
    assert row.tv < 1e-14
    assert row.slack < 1e-9
    assert row.edges > 2.4 * VOCABULARY  # half of the tokens have nothing in the residual
    assert row.requests < 6 * VOCABULARY
    assert row.rule == verifier.rule
    sentence = say("located_row", row)[0]
    assert f"{VOCABULARY:,} tokens" in sentence
    assert "none is displaced" in sentence
    assert sentence.endswith("its draw after a refusal does not depend on the refused token.")
    assert "\n" not in sentence


class DroppedResidual(TokenSteps):
    least = 1e-3

    def residual(self, p, q):
        left = (p - q).clamp(min=0)
        return torch.where(left < self.least, 0.0, left)


def test_no_call_has_no_request():
    """Code may rely on a request: torch.tensor([]) is of floats."""

    class Counts(MaskedVerifier):
        def verify(self, draft, target, streams):
            assert len(streams.seeds) > 0
            return super().verify(draft, target, streams)

    assert located(Counts()).displaced == 0


class Displaced(TokenSteps):
    """Draws with a uniform that is off, as rounding would make it or by more; a bias of neither."""

    lossless = True

    def __init__(self, by: float):
        self.by = by

    def emit(self, weights, draft, streams, num_accepted):
        return inverse_cdf(weights, (streams.uniform(Stream.EMIT)[:, 0] + self.by) % 1)


@pytest.mark.parametrize(("by", "beyond"), [(1e-6, False), (1e-3, True)])
def test_displaced_thresholds_are_told_from_rounding(by, beyond):
    row = located(Displaced(by))
    assert row.displaced > 50
    assert (row.structural > 0) == beyond
    assert names_another_rule(Evidence(row=row)) == beyond


def test_a_rule_of_ones_own_that_is_biased_is_measured_against_the_target():
    def dropped(p, q):
        left = positive_part(p, q)
        return torch.where(left < 1e-3, 0.0, left)

    info = dataclasses.replace(TOKEN, name="dropped")
    biased_rule = Rule.of(info, thresholds=get_rule("token").thresholds, residual=dropped)

    class Follows(DroppedResidual):
        rule = biased_rule

    row, token = located(Follows()), located(DroppedResidual())
    assert row.displaced == 0
    assert row.tv == pytest.approx(token.tv, abs=1e-9)
    assert token.structural > 20
    assert token.slack < 1e-9


class Emits(TokenSteps):
    """Emits a function of the token that the rule draws, of the weights and of the number of accepted tokens."""

    def __init__(self, changed):
        self.changed = changed

    def emit(self, weights, draft, streams, num_accepted):
        return self.changed(super().emit(weights, draft, streams, num_accepted), weights, num_accepted)


class Float32Sums(TokenSteps):
    def emit(self, weights, draft, streams, num_accepted):
        sums = weights.float().cumsum(dim=1)
        drawn = torch.searchsorted(sums, streams.uniform(Stream.EMIT)[:, :1] * sums[:, -1:].double(), right=True)
        return drawn[:, 0].clamp(max=weights.shape[1] - 1)


def test_sums_in_float32_are_displaced_by_their_rounding():
    row = located(Float32Sums())
    assert row.displaced > 50
    assert 1e-9 < row.largest < 1e-6
    assert 1e-9 < row.tv < 1e-5
    assert row.slack < 1e-9


class HighThreshold(TokenSteps):
    def accepts(self, p, q, u):
        return u < p / q + 1e-6


class HighThresholdBlock(BlockSteps):
    def accepted_length(self, draft, target, weights, u):
        return super().accepted_length(draft, target, weights, u - 1e-6)


class OneDraft(TokenSteps):
    """Never accepts one drafted token."""

    wrong = 23

    def verify(self, draft, target, streams):
        self.tokens = draft.token_ids
        return super().verify(draft, target, streams)

    def count(self, mask):
        return super().count(mask & (self.tokens != self.wrong)[:, None])


class BonusFromDraft(TokenSteps):
    def bonus(self, draft, target, p):
        return draft.rows.probs()


def moved(row: torch.Tensor) -> torch.Tensor:
    """If ids in the upper half of the vocabulary are emitted as the id before."""
    ids = torch.arange(VOCABULARY)
    return torch.zeros_like(row).index_add(0, ids - (ids > VOCABULARY // 2).long(), row)


def without(row: torch.Tensor) -> torch.Tensor:
    """If LOST is emitted as the argmax."""
    row = row.clone()
    mass, row[LOST] = float(row[LOST]), 0
    row[row.argmax()] += mass
    return row


P, AFTER, Q = rows()
HIGHER = ((P / Q).clamp(max=1) + 1e-6).clamp(max=1)
REFUSED = int((P < Q).sum())  # tokens with a threshold below 1
BUGS = {  # by name: the verifier, what it makes of (accept, residual, bonus), edges displaced, largest displacement
    "small entries of the residual are dropped": (
        DroppedResidual(), lambda a, r, b: (a, torch.where(r < 1e-3, 0.0, r), b), (51, 1e6), (0, 1),
    ),
    "ids in the upper half": (
        Emits(lambda drawn, weights, _: drawn - (drawn > weights.shape[1] // 2).long()),
        lambda a, r, b: (a, moved(r), moved(b)), (1, 1e6), (1e-3, 1),
    ),
    "thresholds that are moved": (
        HighThreshold(), lambda a, r, b: (HIGHER, r, b), (REFUSED, REFUSED), (0.999e-6, 1.001e-6),
    ),
    "thresholds of the block rule": (
        HighThresholdBlock(), lambda a, r, b: (HIGHER, r, b), (REFUSED, REFUSED), (0.999e-6, 1.001e-6),
    ),
    "one token is never drawn": (
        Emits(lambda drawn, weights, _: torch.where(drawn == LOST, weights.argmax(dim=1), drawn)),
        lambda a, r, b: (a, without(r), without(b)), (1, 4), (0, 1),
    ),
    "one drafted token is never accepted": (
        OneDraft(), lambda a, r, b: (a * (torch.arange(VOCABULARY) != OneDraft.wrong), r, b), (1, 1e6), (0, 1),
    ),
    "a bonus from the draft's row": (BonusFromDraft(), lambda a, r, b: (a, r, Q), (1, 1e6), (0, 1)),
    "a residual that is the target": (TargetResidual(), lambda a, r, b: (a, P, b), (1, 1e6), (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_measured_as_large_as_it_is(name):
    verifier, wrong, displaced, largest = BUGS[name]
    truth = true_distance(*wrong((P / Q).clamp(max=1), (P - Q).clamp(min=0), AFTER))
    row = located(verifier)
    assert truth > 1e-7
    assert row.tv == pytest.approx(truth, abs=min(1e-9, truth / 1000))
    assert displaced[0] <= row.displaced <= displaced[1]
    assert largest[0] <= row.largest <= largest[1]


def test_what_no_rule_can_give_counts():
    first, _, q = rows()
    refusal = float((q - first).clamp(min=0).sum())
    behind_the_vocabulary = Emits(lambda drawn, weights, accepted: torch.where(accepted == 0, weights.shape[1], drawn))
    assert located(behind_the_vocabulary).tv == pytest.approx(refusal, abs=1e-9)


class Counting:
    calls = 0

    def verify(self, draft, target, streams):
        self.calls += 1
        return super().verify(draft, target, streams)


class Counted(Counting, MaskedVerifier):
    pass


class CountedBonusFromDraft(Counting, BonusFromDraft):
    pass


def test_the_time_cuts_it_short_and_the_bound_says_so(monkeypatch):
    monkeypatch.setitem(row_code._CELLS, "cpu", VOCABULARY * 8)
    whole, verifier = located(MaskedVerifier()), Counted()
    monkeypatch.setattr(row_code.RowCode, "late", property(lambda code: verifier.calls > 30))
    row = located(verifier, seconds=100)
    assert row.cut
    assert row.requests < whole.requests / 2
    assert whole.slack < 1e-9 < row.slack < 1
    assert row.upper == pytest.approx(row.tv + row.slack)
    assert "The time limit came before all were located." in say("located_row", row)[0]
    # The likely half comes first.
    assert row.slack < 0.2


def test_a_bug_that_was_not_located_in_time_is_within_the_bound(monkeypatch):
    verifier, truth = CountedBonusFromDraft(), located(BonusFromDraft()).tv
    monkeypatch.setitem(row_code._CELLS, "cpu", VOCABULARY * 64)
    monkeypatch.setattr(row_code.RowCode, "late", property(lambda code: verifier.calls > 24))
    row = located(verifier, seconds=100)
    assert row.cut
    assert row.tv + row.slack >= truth


def test_what_does_not_draw_from_the_streams_is_not_located():
    class FromSeeds(TokenSteps):
        def verify(self, draft, target, streams):
            return super().verify(draft, target, Streams(streams.seeds, streams.positions, streams.width))

    with torch.inference_mode():
        assert locate_row(FromSeeds(), get_rule("token"), VOCABULARY, SEED, CPU, 0) is None


def test_a_refusal_is_the_verifiers_own():
    class Refuses(TokenSteps):
        def verify(self, draft, target, streams):
            raise ArgumentError("target: too large")

    with pytest.raises(ArgumentError, match="too large"):
        located(Refuses())


@pytest.mark.parametrize("vocabulary", [1, 2])
def test_the_smallest_vocabularies_have_a_law(vocabulary):
    row = located(MaskedVerifier(), vocabulary)
    assert (row.displaced, row.structural) == (0, 0)
    assert row.upper < 1e-9


def test_noise_of_ones_own_ends():
    class Noisy(TokenSteps):
        def emit(self, weights, draft, streams, num_accepted):
            return inverse_cdf(
                weights, torch.rand(len(weights), dtype=torch.float64) + 0 * streams.uniform(Stream.EMIT)[:, 0]
            )

    assert located(Noisy(), 31).cut


def test_the_distance_over_pairs_is_that_of_the_whole_table():
    generator = torch.Generator().manual_seed(1)
    accepted, first, bonus, second = (torch.rand(40, generator=generator, dtype=torch.float64) for _ in range(4))
    accepted[3] = 0
    second[5] = 0
    second /= second.sum()
    excess = first - accepted
    table = accepted[:, None] * bonus + excess[:, None] * second
    assert float(pair_distance(accepted, excess, bonus, second)) == pytest.approx(float(table.abs().sum()), rel=1e-12)
