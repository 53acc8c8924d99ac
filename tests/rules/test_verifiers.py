"""Every verifier of conf/verifier, by the same tests: a new yaml is covered without touching this file.

Accept functions of one request (``specbench.from_accept``) are among them.
"""

from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

import specbench
from specbench.api.accept import AcceptVerifier
from specbench.core.errors import ArgumentError, NotInstalledError
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.rules import RULES
from specbench.rules.external.adapter import ExternalVerifier
from specbench.rules.rule import ReferenceVerifier, rule_of
from specbench.rules.verifier import capabilities
from specbench.sampling import RowParams, SamplingParams, logit_rows, sample
from tests.api.test_accept import by_numpy, by_torch
from tests.helpers.cases import MIXED, amount, missing_device, ragged_case

CONF = Path(__file__).parents[2] / "conf" / "verifier"
VERIFIERS, ABSENT = {}, []
for path in sorted(CONF.glob("**/*.yaml")):
    name = path.relative_to(CONF).with_suffix("").as_posix()
    if name == "flawed":
        continue  # test_exactness.py has those, and the joint distribution of a whole step for all
    try:
        VERIFIERS[name] = instantiate(OmegaConf.load(path))
        reason = missing_device(VERIFIERS[name])
    except InstantiationException as error:
        if not isinstance(error.__cause__, NotInstalledError):
            raise
        reason = str(error.__cause__)
    if reason:
        VERIFIERS.pop(name, None)
        ABSENT.append(pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason)))
VERIFIERS["from_accept/numpy"] = specbench.from_accept(by_numpy, rule="token")
VERIFIERS["from_accept/torch"] = specbench.from_accept(by_torch, rule="token", arrays="torch")
PRESENT = [pytest.param(verifier, id=name) for name, verifier in VERIFIERS.items()]
every_verifier = pytest.mark.parametrize("verifier", PRESENT + ABSENT)
lossless = pytest.mark.parametrize("verifier", [case for case in PRESENT if case.values[0].lossless] + ABSENT)

REGIMES = {
    "uniform gamma": [3] * 12,
    "ragged with empty drafts": [0, 4, 1, 0, 3, 2, 4, 0, 1, 2],
    "one request": [5],
    "one request that drafted nothing": [0],
    "nothing drafted at all": [0, 0, 0],
    "long blocks": [17, 3],
}


@pytest.mark.cases(24)
@every_verifier
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("counts", REGIMES.values(), ids=REGIMES.keys())
def test_agrees_with_its_rules_reference_token_for_token(verifier, counts, one_hot):
    rule = rule_of(verifier)
    if rule.name not in RULES:
        pytest.skip("a rule of its own")
    references = [rule.reference, ReferenceVerifier(rule)]  # the rule's own code, and code made of its formulas
    for seed in range(amount(verifier, 5, interpreted=1)):  # test_kernels.py has more of the interpreted
        draft, target, streams = ragged_case(counts, vocabulary=23, one_hot=one_hot, seed=seed)
        got = verifier.verify(draft, target, streams)
        for expected in (reference.verify(draft, target, streams) for reference in references):
            assert torch.equal(got.token_ids, expected.token_ids)
            assert torch.equal(got.num_accepted, expected.num_accepted)


@pytest.mark.cases(18)
@pytest.mark.parametrize("verifier", [case for case in PRESENT if capabilities(case.values[0]).takes_padded])
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("counts", [[0, 4, 1, 3], [3, 3], [0, 2]], ids=repr)
def test_padding_is_not_looked_at(verifier, counts, one_hot):
    """The same tokens as without padding, though what stands in it is NaN, for p and for q."""
    draft, target, streams = ragged_case(counts, vocabulary=23, one_hot=one_hot)
    expected = verifier.verify(draft, target, streams)
    q, p = draft.drafted.flatten(), torch.cat([torch.ones(len(counts), 1).bool(), draft.drafted], 1).flatten()
    ids = torch.full((len(q),), 7).masked_scatter(q, draft.token_ids)
    rows = None if draft.rows is None else scattered(draft.rows, q)
    padded = Draft(ids, rows, draft.num_draft_tokens, draft.max_draft_tokens, padded=True)
    got = verifier.verify(padded, scattered(target, p), streams)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.num_accepted, expected.num_accepted)
    again, scored = padded.compact(scattered(target, p))
    assert torch.equal(again.token_ids, draft.token_ids)
    assert torch.equal(scored.logits, target.logits)


def scattered(rows: LogitRows, places: torch.Tensor) -> LogitRows:
    """The rows at the places that are True, NaN at the others."""

    def spread(values: torch.Tensor) -> torch.Tensor:
        out = values.new_full((len(places), *values.shape[1:]), torch.nan)
        out[places] = values
        return out

    normalizer = rows.log_normalizer
    parts = (spread(column) for column in (rows.logits, rows.temperature, rows.cutoff))
    return LogitRows(*parts, None if normalizer is None else spread(normalizer))


@pytest.mark.cases(8)
@lossless
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
def test_a_draft_ends_at_a_row_that_bans_every_token(verifier, one_hot):
    """The same tokens as of the draft cut there, and padding from that row: such as behind the only token allowed."""
    rule = rule_of(verifier)
    if rule.name not in RULES or capabilities(verifier).synthetic:
        pytest.skip("a rule of its own")
    if isinstance(verifier, AcceptVerifier):
        pytest.skip("a function gets no request with such a row")
    params = [SamplingParams(temperature=0.8), SamplingParams(temperature=0.0)]
    before, after = torch.arange(24) % 3 < 2, torch.arange(32) % 4 < 3  # rows that a cut of the last token leaves
    accepted = set()
    for seed in range(amount(verifier, 5, interpreted=1)):
        draft, target, streams = ragged_case([3] * 8, vocabulary=23, one_hot=one_hot, seed=seed, params=params)
        target.logits[2::4] = -torch.inf
        target = LogitRows(target.logits, target.temperature, target.cutoff, None)
        q = None if draft.rows is None else draft.rows.select(before.nonzero()[:, 0])
        cut = Draft(draft.token_ids[before], q, draft.num_draft_tokens - 1, 2)
        expected = verifier.verify(cut, target.select(after.nonzero()[:, 0]), streams)
        assert (expected.token_ids[:, 2][expected.num_accepted == 2] == PADDING).all()
        for code in (verifier, ReferenceVerifier(rule)):
            got = code.verify(draft, target, streams)
            assert torch.equal(got.token_ids[:, :3], expected.token_ids)
            assert torch.equal(got.num_accepted, expected.num_accepted)
        accepted |= set(got.num_accepted.tolist())
    assert {0, 2} <= accepted


@every_verifier
def test_form_of_the_output(verifier):
    draft, target, streams = ragged_case([0, 4, 1, 3], vocabulary=11, params=[SamplingParams()])
    result = verifier.verify(draft, target, streams)
    assert result.token_ids.shape == (4, 5)
    for b, accepted in enumerate(result.num_accepted.tolist()):
        row, first = result.token_ids[b].tolist(), int(draft.first_row[b])
        assert row[:accepted] == draft.token_ids[first : first + accepted].tolist()
        assert 0 <= row[accepted] < 11
        assert row[accepted + 1 :] == [PADDING] * (4 - accepted)


@every_verifier
def test_a_request_does_not_depend_on_its_batch(verifier):
    if isinstance(verifier, ExternalVerifier) and not verifier.limits.batch_invariant:
        pytest.skip("a declared limit")
    counts = [2, 0, 4, 1, 3, 0, 0]
    draft, target, streams = ragged_case(counts, vocabulary=29)
    whole = verifier.verify(draft, target, streams)
    for b, count in enumerate(counts):
        first = int(draft.first_row[b])
        rows = torch.arange(first, first + count)
        one = Draft(draft.token_ids[rows], draft.rows.select(rows), torch.tensor([count]), count)
        part = target.select(torch.arange(first + b, first + b + count + 1))
        alone = verifier.verify(one, part, Streams(streams.seeds[b : b + 1], streams.positions[b : b + 1], count + 1))
        assert torch.equal(alone.token_ids[0], whole.token_ids[b, : count + 1])
        if count == 0 and not isinstance(verifier, ExternalVerifier):  # a step that drafts nothing draws so by itself
            assert torch.equal(alone.token_ids[0], sample(part, streams.uniform(Stream.EMIT)[b : b + 1, 0]))


@lossless
def test_equal_distributions_accept_everything(verifier):
    if verifier.rule == "sample_match":
        pytest.skip("accepts where two independent draws agree")
    batch = amount(verifier, 50, interpreted=20)
    draft, _, streams = ragged_case([4] * batch, vocabulary=13)
    owner = torch.arange(batch).repeat_interleave(5)
    rows = (torch.arange(5 * batch) - owner).clamp(max=4 * batch - 1)
    result = verifier.verify(draft, draft.rows.select(rows), streams)
    assert result.num_accepted.tolist() == [4] * batch


@lossless
def test_disjoint_support_rejects_and_stays_inside_the_target(verifier):
    """p(x) = 0 for every drafted token: each must be rejected, and the recovered token must come from p's support."""
    vocabulary, batch = 10, amount(verifier, 60, interpreted=10)
    upper = torch.arange(vocabulary) >= 5
    q_logits = torch.where(upper, -torch.inf, torch.zeros(vocabulary)).expand(batch, -1).clone()
    p_logits = torch.where(upper, torch.zeros(vocabulary), -torch.inf).expand(2 * batch, -1).clone()
    params = RowParams.of([SamplingParams()] * batch)
    q = logit_rows(q_logits, params)
    streams = Streams(torch.arange(batch), torch.zeros(batch, dtype=torch.int64), 2)
    draft = Draft(sample(q, streams.uniform(Stream.DRAFT)[:, 0]), q, torch.ones(batch, dtype=torch.int64), 1)
    target = logit_rows(p_logits, params.select(torch.arange(batch).repeat_interleave(2)))
    result = verifier.verify(draft, target, streams)
    assert result.num_accepted.sum() == 0
    assert (result.token_ids[:, 0] >= 5).all()


@pytest.mark.cases(12)
@every_verifier
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
def test_nothing_is_emitted_where_all_tokens_are_banned(verifier, temperature, one_hot):
    """Token 0 would be the argmax of such a row. One of the requests drafts nothing."""
    if verifier.rule == "synthetic" or isinstance(verifier, ExternalVerifier):
        pytest.skip("looks at no logits, or is another project's function")
    sampling = [SamplingParams(temperature=temperature)]
    draft, target, streams = ragged_case([2, 0], vocabulary=23, params=sampling, one_hot=one_hot)
    logits = target.logits.clone()
    logits[[0, 3]] = -torch.inf
    banned = LogitRows(logits, target.temperature, target.cutoff, None)
    result = verifier.verify(draft, banned, streams)
    assert result.num_accepted.tolist() == [0, 0]
    assert (result.token_ids == PADDING).all()
    assert not banned.finite()[[0, 3]].any()


@every_verifier
def test_shapes_that_do_not_fit_are_refused(verifier):
    draft, target, streams = ragged_case([2, 1], vocabulary=7)
    with pytest.raises(ArgumentError, match="target: 4 rows"):
        verifier.verify(draft, target.select(torch.arange(4)), streams)
    with pytest.raises(ArgumentError, match="streams"):
        verifier.verify(draft, target, Streams(streams.seeds[:1], streams.positions[:1], 3))
    narrow = logit_rows(torch.randn(3, 6), RowParams.of([SamplingParams()] * 3))
    with pytest.raises(ArgumentError, match=r"draft\.rows"):
        verifier.verify(Draft(draft.token_ids, narrow, draft.num_draft_tokens, 2), target, streams)


def test_mixed_parameters_are_really_mixed():
    assert {p.greedy for p in MIXED} == {True, False}
